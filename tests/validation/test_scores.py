"""Scores of a validation: the errors by hand, which rows are left out, what they are counted in."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from clusim.base.terms.times import regime_of
from clusim.hardware.calibration import ROW_SETS
from clusim.simulation import expected
from clusim.simulation.expected import Expected, RunPlace, expected_error, expected_of
from clusim.simulation.plan import plan
from clusim.simulation.request import Request
from clusim.simulation.setup import Setup
from clusim.validation.collectives import validate
from clusim.validation.collectives.accuracypage import page_text
from clusim.validation.collectives.breakdown import (
    Point,
    calibrated_by,
    class_tables,
    score,
    statistics,
)
from clusim.validation.collectives.measurements import CurveGroup, Row, read_measurements
from clusim.validation.collectives.validate import CollectiveReport

MIB = 1 << 20
GROUP = CurveGroup("dgx-h100", 1, 8, "all_reduce", gpus_per_process=8, harness="nccl-tests")
OTHER = replace(GROUP, system="dgx-a100")
P5EN = CurveGroup("aws-p5en", 4, 32, "all_reduce", "ring", "ll", 1, gpus_per_process=1)
P5EN8 = replace(P5EN, n_nodes=8, n_gpus=64)
TABLE = """\
system,n_nodes,n_gpus,collective,algorithm,protocol,channels,gpus_per_process,threads_per_process,iters,harness,size_bytes,time_us,spread_pct,source
dgx-h100,1,8,all_reduce,auto,auto,,1,8,100,nccl-tests,1024,10,4.5,aiconfigurator
dgx-h100,1,8,all_reduce,auto,auto,,1,,,nccl-tests,1024,10,,aiconfigurator
dgx-h100,1,8,all_reduce,auto,auto,,8,,,nccl-tests,1024,10,,wayne
dgx-h100,1,8,all_reduce,auto,auto,,,,,,1024,10,,someone
dgx-h100,1,8,all_reduce,auto,auto,,,,,torch,1024,10,,someone
"""


def point(
    predicted: float, size: int = 8, spread: float = 0, group: CurveGroup = GROUP, source: str = "x"
) -> Point:
    """Return a prediction of a row that took 100 us."""
    row = Row(group, size, 100.0, source, "t.csv:2", 0, spread)
    return Point(row, predicted, "Ring", "LL", (), family="hopper")


def near(setup: Setup, size: int, algorithm: str = "") -> Expected:
    """Return the error to expect on a machine."""
    return expected_error(RunPlace.of(setup), size, algorithm)


def test_scores_by_hand() -> None:
    found = score([point(110), point(80, spread=25), point(130, spread=25), point(100)])
    # Errors +10, -20, +30, 0; of those 20 is within 25, and two rows weigh 100 / 125.
    assert found.n == 4
    assert found.median_abs_pct == 15.0
    assert found.mean_abs_pct == 15.0
    assert found.bias_pct == 5.0
    assert found.by_spread_pct == pytest.approx((10 + 0.8 * 30) / 3.6, abs=0.005)
    assert (found.spread, found.met, found.followed) == (2, 1, 0)
    assert score([]).median_abs_pct is score([]).by_spread_pct is None


def test_an_error_of_exactly_the_spread_is_met_and_none_without_a_spread() -> None:
    assert point(125, spread=25).met
    assert not point(126, spread=25).met
    assert not point(100).met


def test_statistics_by_regime() -> None:
    points = [
        point(110, 8),
        point(80, MIB - 1),
        point(130, MIB),
        point(100, 64 * MIB),
        point(99, 1 << 33),
    ]
    found = statistics(points)
    assert [score.n for score in found.values()] == [2, 1, 2]
    assert found["small"].bias_pct == -5.0
    assert found["mid"].median_abs_pct == 30.0
    assert found["large"].median_abs_pct == 0.5
    assert [regime_of(p.row.size_bytes) for p in points] == [*["small"] * 2, "mid", *["large"] * 2]


def test_calibration_rows_are_scored_apart_and_sources_left_out_say_so() -> None:
    points = [
        point(110, group=P5EN, source="ncclgauge"),
        point(150, group=P5EN8, source="ncclgauge"),
        point(120, source="new"),
        point(90, group=OTHER, source="superbench"),
    ]
    tables = {
        table.title: {line.name: line for line in table.lines} for table in class_tables(points)
    }
    head = tables["Held-out rows"]
    assert head["all"].points == [points[1], points[2]]
    assert head["one node"].points == [points[2]]
    assert head["of a source without calibration rows, one node"].points == [points[2]]
    assert "of a source without calibration rows, several nodes" not in head
    calibration = tables["Calibration rows"]
    assert calibration["all"].points == [points[0], points[3]]
    name = f"p5en-1-channel: {ROW_SETS['p5en-1-channel'].text}"
    assert calibration[name].points == [points[0]]
    sources = tables["Leave one source out"]
    assert sources["ncclgauge"].points == points[:2]
    assert (
        "not held out: 1 of its rows calibrated parameters (p5en-1-channel)"
        in sources["ncclgauge"].remark
    )
    assert sources["new"].remark == "held out: no row of this source calibrated a parameter"
    systems = tables["Leave one system out"]
    assert systems["dgx-h100"].remark.startswith("held out")
    assert systems["dgx-a100"].remark.startswith("not held out")
    by_hand = {name: line.to_json()["mean_abs_pct"] for name, line in head.items()}
    assert by_hand["all"] == 35.0
    assert by_hand["one node"] == 20.0
    assert any("Ring LL of 1 KiB" in text for text in calibrated_by(points)["p5en-1-channel"])


def test_classes_of_harness(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text(TABLE, encoding="utf-8")
    rows = read_measurements([path])
    assert [row.group.launch_class for row in rows] == [
        "nccl-tests, launch known",
        "nccl-tests, threads not given",
        "nccl-tests, launch known",
        "harness not given, launch not given",
        "torch",
    ]
    assert [row.spread_pct for row in rows] == [4.5, 0, 0, 0, 0]
    assert [row.row_sets for row in rows] == [(), (), ("wayne-h100",), (), ()]


def test_the_page_has_every_table_and_no_place_of_this_computer() -> None:
    report = CollectiveReport([point(110), point(120, group=P5EN, source="ncclgauge")])
    text = page_text(report, "clusim validate t.csv", [("dgx-h100", "accuracy/dgx-h100.png")])
    for table in class_tables(report.points):
        assert f"## {table.title}\n" in text
    assert "| dgx-h100, one node | 1 | 10.0 / 10.0 (1) | +10.0 |  |  |  |  | 10.0 | 0% |" in text
    assert "![dgx-h100: measured and predicted](accuracy/dgx-h100.png)" in text
    assert "    clusim" not in text


def test_expected_errors_are_those_of_the_nearest_class(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = tmp_path / "t.csv"
    table.write_text(TABLE, encoding="utf-8")
    h100 = [point(100 + number) for number in range(9)]
    others = [point(150, group=replace(GROUP, system="other")) for _ in range(9)]
    fitted = [point(100, group=OTHER, source="superbench") for _ in range(99)]
    several = [point(170, 2 * MIB, group=P5EN8, source="y") for _ in range(8)]
    few = [point(300, 64 * MIB) for _ in range(validate.CollectiveReport.class_least - 1)]
    data = tmp_path / "accuracy.json"
    CollectiveReport([*h100, *others, *fitted, *several, *few]).write_data(data, [table])
    written = json.loads(data.read_text(encoding="utf-8"))
    assert written["left_out"] == written["rows"] - 99
    assert written["measurements"].keys() == {"t.csv"}
    monkeypatch.setattr(expected, "DATA", data)
    same = near(Setup("dgx-h100"), 1024, "ring")
    assert same.text() == (
        "expected error: 4 % (median of 9 held-out rows, one node, dgx-h100, Ring, < 1 MiB)"
    )
    assert same.error.to_json()["median_abs_pct"] == 4.0
    # A tree was not measured there: any algorithm of the system.
    assert near(Setup("dgx-h100"), 1024, "tree").nearest == replace(same.nearest, algorithm="")
    # H200 has the same chips' family.
    family = near(Setup("dgx-h200"), 1024).text()
    assert "29 % (median of 18 held-out rows, one node, Hopper, < 1 MiB)" in family
    assert "all systems" in near(Setup("dgx-a100"), 1024).text()
    several_found = near(Setup("dgx-a100", 2), 2 * MIB)
    assert "median of 8 held-out rows, several nodes, all systems" in several_found.text()
    # Seven rows are no class; no other place has rows of this size.
    assert "unknown" in near(Setup("dgx-h100"), 64 * MIB).text()
    named = near(Setup("dgx-h100"), 1024, "hierarchical")
    assert "hierarchical is not an algorithm of NCCL: no measurements" in named.text()
    assert named.error.to_json()["median_abs_pct"] is None
    request = Request(Setup("dgx-h100"), "allreduce", 1024)
    assert expected_of(plan(request), "ring") == same
    paper = replace(request, algorithm="ring")
    assert "ring differs from NCCL's plan" in expected_of(plan(paper), "ring").text()
    broken = replace(request, setup=Setup("dgx-h100", faults=("rank 1 slow x1.3",)))
    assert "no measurements of systems with faults" in expected_of(plan(broken), "ring").text()
