"""Which measurements calibrated which figures: every mark names its rows, and every set of rows its figures."""

from __future__ import annotations

import pytest

from clusim.base.errors import InputError
from clusim.hardware import all_figures
from clusim.hardware.calibration import ROW_SETS, row_sets_of
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
