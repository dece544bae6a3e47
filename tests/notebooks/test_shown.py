"""How objects show themselves at a prompt and in a notebook, and as tables and pictures of other libraries."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import clusim
from clusim.base.display import Shown, Summary
from clusim.base.errors import EnvironmentFailure, InputError
from clusim.base.resources import shipped_topologies
from clusim.base.tables import ColumnTable
from clusim.results.result import Result

LONGEST = 200
"""Characters of the longest line at a prompt, of presets and what runs on them."""


@pytest.fixture(scope="module")
def result() -> Result:
    return clusim.collective("a100x4-mesh", "allreduce", "256KiB")


@pytest.fixture(scope="module")
def shown(result: Result) -> dict[str, Shown]:
    fabric = clusim.load("a100x4-mesh")
    return {
        "Fabric": fabric,
        "Schedule": clusim.collectives.build(fabric, "allreduce", "ring", 1 << 18),
        "Result": result,
        "Table": clusim.nccl_tests(
            "all_reduce_perf", fabric, "-b 1K -e 64K -f 8 -g 4 -c 0", jobs=1
        ),
        "ColumnTable": ColumnTable.of(("wire", "busy_ps"), [("a", 1), ("b", 2)]),
    }


@pytest.mark.parametrize("name", list(shipped_topologies()))
def test_a_fabric_is_one_short_line(name: str) -> None:
    fabric = clusim.load(name)
    line = repr(fabric)
    assert line.startswith(f"<Fabric {name}: ")
    assert "\n" not in line
    assert len(line) <= LONGEST
    chips = {n.endpoint.chip for n in fabric.nodes if n.kind == "gpu" and n.endpoint is not None}
    assert all(f" x {chip}" in line for chip in chips)
    assert f"{sum(link.count for link in fabric.links)} links" in line


def test_everything_people_hold_is_one_short_line(shown: dict[str, Shown]) -> None:
    for name, item in shown.items():
        line = repr(item)
        assert line.startswith(f"<{name} ")
        assert "\n" not in line
        assert len(line) <= LONGEST


def test_a_result_says_what_ran_how_long_it_took_and_how_fast_it_was(result: Result) -> None:
    line = repr(result)
    assert "allreduce 256 KiB float32 over 4 ranks of a100x4-mesh" in line
    assert f"{result.time_ps / 1e6:.2f} us" in line
    assert f"{result.busbw_GBps:.2f} GB/s of bus bandwidth" in line
    assert "unfinished" in repr(replace(result, complete=False))


def test_texts_of_files_are_no_html() -> None:
    class Named(Shown):
        def summary(self) -> Summary:
            return Summary("<script>", ("a & b",), "<i>", {"<td>": "</table>"})

    html = Named()._repr_html_()
    assert "&lt;script&gt;" in html
    assert "a &amp; b" in html
    for text in ("<script>", "<i>", "<td></", "</table></td>"):
        assert text not in html


def test_tables_have_the_numbers_of_the_object(shown: dict[str, Shown], result: Result) -> None:
    wires = result.to_dataframe()
    assert wires["wire"].tolist() == result.wires.names
    for name in result.wires.counters.dtype.names or ():
        assert (wires[name].to_numpy() == result.wires.counters[name]).all()
    history = result.to_dataframe("history").groupby("wire")[["bytes", "busy_ps"]].sum()
    totals = wires.set_index("wire")[["bytes", "busy_ps"]].astype(np.int64)
    assert (history.sort_index() == totals.sort_index()).all(axis=None)
    assert result.to_dataframe("tasks")["end_ps"].max() == result.time_ps
    links = shown["Fabric"].to_dataframe("links")
    fabric = clusim.load("a100x4-mesh")
    assert links["rate_Bps"].tolist() == [link.rate.bytes_per_s for link in fabric.links]
    lines = shown["Table"].to_dataframe()
    assert lines["size"].tolist() == [1024, 8192, 65536]
    assert shown["ColumnTable"].to_dataframe()["busy_ps"].tolist() == [1, 2]


def test_every_table_of_every_object_can_be_had(shown: dict[str, Shown]) -> None:
    for item in shown.values():
        for name, columns in item.tables().items():
            assert len(item.to_dataframe(name)) == len(next(iter(columns().values())))


def test_histories_in_xarray_add_up_to_the_totals(result: Result) -> None:
    found = result.to_xarray()
    assert found["busy"].attrs == {"units": "ps", "long_name": "time the wire was busy"}
    assert (found["busy"].sum("time") == result.wires.counters["busy_ps"].astype(np.int64)).all()
    one = result.wires.names[0]
    assert found["bytes"].sel(wire=one).sum() == result.wires.counters["bytes"][0]
    assert found["memory_bytes"].dims == ("endpoint", "time")


def test_messages_are_a_table_of_traffic() -> None:
    result = clusim.traffic("mesh:2x2", "permutation", "4KiB")
    table = result.to_dataframe("messages")
    assert (table["end_ps"] > table["start_ps"]).all()
    assert table["size_bytes"].tolist() == [4096] * 4


def test_what_there_is_not_is_said(shown: dict[str, Shown], tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"Fabric: has no table 'link'; did you mean 'links'\?"):
        shown["Fabric"].to_dataframe("link")
    with pytest.raises(InputError, match="Schedule: no pictures"):
        shown["Schedule"].plot()
    with pytest.raises(InputError, match=r"figure 'heat'.*did you mean 'heatmap'\?"):
        shown["Result"].plot("heat")
    with pytest.raises(InputError, match="timeline: no tasks of ranks"):
        shown["Result"].plot("timeline")
    with pytest.raises(InputError, match="no option 'colour'"):
        shown["Result"].plot(colour="red")
    with pytest.raises(InputError, match=r"f.gif: pictures are .png, .svg or .pdf"):
        shown["Fabric"].plot().save(tmp_path / "f.gif")


@pytest.mark.parametrize("name", ["Fabric", "Result", "Table"])
def test_pictures_are_shown_and_saved(name: str, shown: dict[str, Shown], tmp_path: Path) -> None:
    plot = shown[name].plot()
    assert repr(plot).startswith("<Plot: ")
    assert plot._repr_png_().startswith(b"\x89PNG")
    for ending, start in (("png", b"\x89PNG"), ("svg", b"<?xml"), ("pdf", b"%PDF")):
        plot.save(tmp_path / f"a.{ending}", dpi=50)
        assert (tmp_path / f"a.{ending}").read_bytes().startswith(start)
    for again in ("b", "c"):
        shown[name].plot().save(tmp_path / f"{again}.svg")
    assert (tmp_path / "b.svg").read_bytes() == (tmp_path / "c.svg").read_bytes()


def test_a_package_that_is_missing_is_named(
    shown: dict[str, Shown], result: Result, monkeypatch: pytest.MonkeyPatch
) -> None:
    for package in ("pandas", "xarray", "matplotlib"):
        monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(
        EnvironmentFailure, match=r"needs pandas; pip install 'clusim-net\[notebook\]'"
    ):
        result.to_dataframe()
    with pytest.raises(
        EnvironmentFailure, match=r"needs xarray; pip install 'clusim-net\[notebook\]'"
    ):
        result.to_xarray()
    for name in ("Fabric", "Result"):
        with pytest.raises(
            EnvironmentFailure, match=r"needs matplotlib; pip install 'clusim-net\[plot\]'"
        ):
            shown[name].plot()
