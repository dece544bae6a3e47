"""Which measurements calibrated which figures: every mark names its rows, and every set of rows its figures."""

from __future__ import annotations

import pytest

from clusim.base.errors import InputError
from clusim.hardware import all_figures
from clusim.hardware.calibration import ROW_SETS, RowSet, Selector, row_sets_of
from clusim.hardware.figures import assumed, calibrated

ROW = {
    "source": "ncclgauge",
    "system": "aws-p5en",
    "n_nodes": 4,
    "collective": "all_reduce",
    "algorithm": "ring",
    "protocol": "ll128",
    "channels": 16,
    "size_bytes": 1 << 20,
}


def test_every_calibrated_figure_names_its_rows_and_no_other_does() -> None:
    for figure in all_figures():
        assert bool(figure.rows) == (figure.mark == "calibrated"), figure
        assert set(figure.rows) <= set(ROW_SETS), figure


def test_every_set_of_rows_calibrated_a_figure() -> None:
    used = {name for figure in all_figures() for name in figure.rows}
    assert sorted(set(ROW_SETS) - used) == []
    assert all(item.text for item in ROW_SETS.values())


@pytest.mark.parametrize(
    ("changed", "names"),
    [
        ({}, ("p5en-16-channels",)),
        ({"channels": 1}, ("p5en-1-channel",)),
        ({"channels": 4}, ()),
        ({"channels": 4, "size_bytes": 8192}, ("p5en-1-channel",)),
        ({"channels": 4, "size_bytes": 8193}, ()),
        ({"n_nodes": 8, "channels": 1}, ()),
        ({"source": "else", "channels": 1}, ()),
        ({"source": "alps", "system": "alps-gh200", "n_nodes": 2}, ()),
        ({"source": "alps", "system": "alps-gh200", "n_nodes": 2, "size_bytes": 8}, ("alps-2",)),
        (
            {"source": "AI-benchmarking-guide+superbench", "system": "dgx-a100", "n_nodes": 1},
            ("superbench-a100", "azure-a100"),
        ),
    ],
)
def test_rows_are_found_by_their_columns(changed: dict[str, str], names: tuple[str, ...]) -> None:
    assert row_sets_of({**ROW, **changed}) == names


def test_a_name_that_no_set_has_is_refused() -> None:
    with pytest.raises(InputError, match=r"'p5en-1-chanel'.*did you mean 'p5en-1-channel'"):
        calibrated("1us", "a measurement", "p5en-1-chanel")
    assert assumed("1us", "as another").rows == ()


@pytest.mark.parametrize(("size", "found"), [(15, False), (16, True), (64, True), (65, False)])
def test_limits_of_sizes_belong_to_the_selector(size: int, found: bool) -> None:
    assert (
        Selector({"system": ("a", "b")}, (16, 64)).matches({"system": "b", "size_bytes": size})
        == found
    )


@pytest.mark.parametrize("size", [0, 1 << 62])
def test_a_selector_without_sizes_has_all(size: int) -> None:
    assert Selector({}).matches({"size_bytes": size})
    assert not Selector({}).matches({"size_bytes": (1 << 62) + 1})


@pytest.mark.parametrize(
    ("source", "plugin", "found"),
    [
        ("one", "1.17", True),
        ("two+one", "1.17", True),
        ("two", "1.17", False),
        ("one", "1.16", False),
    ],
)
def test_a_source_is_found_by_each_of_its_names_and_its_plugin_only(
    source: str, plugin: str, found: bool
) -> None:
    selector = Selector({"source": ("one",), "plugin": ("1.17",), "channels": (4,)})
    row = {"source": source, "plugin": plugin, "channels": 8}
    assert selector.matches_source(row) == found
    assert RowSet("set", "text", (selector,)).has_source(row) == found


def test_a_set_without_systems_has_rows_of_all() -> None:
    named, plain = Selector({"system": ("a",)}), Selector({"source": ("one",)})
    for selectors, systems in (((named,), "a"), ((named, plain), "ab"), ((plain,), "ab"), ((), "")):
        rows = RowSet("set", "text", selectors)
        assert [name for name in "ab" if rows.has_system({"system": name})] == list(systems)
