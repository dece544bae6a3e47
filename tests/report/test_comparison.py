"""Pages that compare: what they show is what the runs say, on one axis, in a browser, too."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import clusim
from clusim.replays import ReplayRequest, replay
from clusim.replays.replayreport import replay_page
from clusim.report.comparison import Compared, comparison_page, read_compared, wire_loads
from clusim.report.verdictcard import AxisRow, axis
from clusim.simulation.request import Request
from clusim.simulation.setup import Setup
from clusim.simulation.speed import speed_of
from clusim.studies.whatif import what_if
from clusim_cli.main import cli, run
from support.browser import chromium, until, watched

TRACES = Path(__file__).parents[2] / "traces"
SIZE = 1 << 16


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("runs")
    made = [folder / "ring.h5", folder / "tree.h5"]
    for path in made:
        clusim.collective(
            "dgx-a100", "allreduce", SIZE, algorithm=path.stem, trace_out=path, confirm=False
        )
    return made


@pytest.fixture(scope="module")
def text(paths: list[Path]) -> str:
    runs = read_compared(paths, [path.stem for path in paths])
    return comparison_page("Ring and tree", [("", runs)])


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    yield from chromium()


def widths(markup: str, kind: str) -> list[float]:
    return [float(own) for own in re.findall(rf'class="{kind}"[^>]* width="([\d.]+)"', markup)]


def test_bars_are_as_long_as_their_numbers_say() -> None:
    rows = [AxisRow("a", "", 50.0, "50"), AxisRow("b", "", 80.0, "80", (("measured", 40.0),))]
    drawn = axis(rows, "{:g}".format).html
    assert re.findall(r"<i>([^<]*)</i>", drawn) == ["0", "25", "50", "75", "100"]
    assert widths(drawn, "work") == [50.0, 80.0]
    assert 'class="measured" x="39.60"' in drawn, "the middle of a mark is its number"


def test_a_logarithmic_axis_has_a_decade_every_so_far() -> None:
    rows = [AxisRow("a", "", 100.0, ""), AxisRow("b", "", 1e4, "", (("measured", 10.0),))]
    drawn = axis(rows, "{:g}".format, log=True).html
    assert re.findall(r"<i>([^<]*)</i>", drawn) == ["10", "100", "1000", "10000"]
    assert widths(drawn, "work") == pytest.approx([33.33, 100], abs=0.01)


@pytest.mark.parametrize("value", [None, 0.0])
def test_an_axis_of_nothing_is_none(value: float | None) -> None:
    assert axis([AxisRow("a", "", value, "cannot run")], str).html == ""


def test_the_page_has_verdicts_times_and_what_differs(paths: list[Path], text: str) -> None:
    runs = read_compared(paths, ["ring", "tree"])
    for one in runs:
        assert one.verdict is not None
        assert one.verdict.lines()[0] in text
    change = (runs[1].time_ps - runs[0].time_ps) / runs[0].time_ps
    assert f"({change:+.1%})" in text
    differing, alike = text.split("What differs")[1].split("The same of all: ")
    assert ">Plan<" in differing
    assert ">Machine<" not in differing
    assert "Machine: dgx-a100" in alike


def test_wires_are_as_busy_as_in_the_run() -> None:
    result = clusim.collective("dgx-a100", "allreduce", SIZE, algorithm="ring")
    ((name, (mean, most)),) = wire_loads(result).items()
    assert name == "NVLink, GPU-NVSwitch"
    busy = result.utilisation[[c.startswith("nvlink") for c in result.wires.classes]]
    assert (mean, most) == pytest.approx((busy.mean(), busy.max()))


def test_a_run_that_cannot_be_is_shown_as_such() -> None:
    runs = [Compared("a", 10**6), Compared("<b>", 0, told=("cannot run: no such thing",))]
    text = comparison_page("x", [("", runs)])
    assert "cannot run: no such thing" in text
    assert "<b>" not in text


def test_what_if_is_a_page_with_the_plan_held_beside_the_other() -> None:
    base = Request(Setup("dgx-a100"), "allreduce", SIZE, granularity="packet")
    half = speed_of("nvlink x0.5")
    assert half is not None
    found = what_if(base, [("nvlink x0.5", half)], title="half the links")
    text = found.page()
    (row,) = found.rows
    assert row.planned.busbw_GBps is not None
    assert row.planned.busbw_GBps < (found.baseline[0].outcome.busbw_GBps or 0)
    assert 'class="held"' in text
    assert row.planned.cause.partition(" ")[2] in text


def test_a_replay_shows_what_was_measured_where_it_was() -> None:
    found = replay(ReplayRequest((str(TRACES / "flight-2ranks"),), topology="dgx-a100"))
    text = replay_page(found)
    drawn = text.split("Measured against simulated")[1].split("<h2>")[0]
    measured = [call for call in found.calls if call.measured_us]
    assert len(measured) == drawn.count('class="measured"') - 1 > 1, "one is the legend's"
    for call in measured:
        assert f"({call.error:+.1%})" in drawn


def test_commands_write_the_pages(paths: list[Path], tmp_path: Path) -> None:
    made = {name: tmp_path / f"{name}.html" for name in ("report", "what-if", "replay")}
    words = [
        ["report", *map(str, paths), "dgx-a100 --size 64KiB", "-o", str(made["report"])],
        ["what-if", "run dgx-a100 --size 64KiB", "step x2", "--html", str(made["what-if"])],
        ["replay", str(TRACES / "nccl-8xh100.log"), "--calls", "1", "--html", str(made["replay"])],
    ]
    for own in words:
        assert CliRunner().invoke(cli, own).exit_code == 0
    assert all("<h1>" in path.read_text(encoding="utf-8") for path in made.values())
    assert "clusim run dgx-a100 --size 64KiB" in made["report"].read_text(encoding="utf-8")


def test_a_trace_that_is_none_is_one_line(
    paths: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    missing, target = tmp_path / "missing.h5", tmp_path / "page.html"
    assert run(["report", str(paths[0]), str(missing), "-o", str(target)]) == 2
    assert capsys.readouterr().err.count("\n") == 1
    assert not target.exists()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("wide", [1280, 390])
def test_pages_are_drawn_at_every_size(
    scheme: str, wide: int, browser: Any, text: str, tmp_path: Path
) -> None:
    path = tmp_path / "page.html"
    path.write_text(text, encoding="utf-8")
    page, troubles = watched(browser, viewport={"width": wide, "height": 800}, color_scheme=scheme)
    page.goto(path.as_uri())
    until(page, "document.documentElement.dataset.ready === 'true'")
    assert page.evaluate("document.documentElement.scrollWidth") <= wide
    assert page.evaluate("document.documentElement.dataset.theme") == scheme
    before = page.evaluate("getComputedStyle(document.documentElement).backgroundColor")
    page.locator("#theme").press("Enter")
    assert page.evaluate("getComputedStyle(document.documentElement).backgroundColor") != before
    assert page.locator("article").count() == 2
    assert troubles == []
    page.close()
