"""Scores of a validation: errors by hand, tables, and the page."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from clusim.base.terms.times import regime_of
from clusim.hardware.calibration import ROW_SETS
from clusim.validation.collectives.accuracypage import page_text
from clusim.validation.collectives.breakdown import Point, score, statistics
from clusim.validation.collectives.classtables import calibrated_by, class_tables
from clusim.validation.collectives.measurements import CurveGroup, Row, read_measurements
from clusim.validation.collectives.validate import CollectiveReport

MIB = 1 << 20
GROUP = CurveGroup(
    "dgx-h100", 1, 8, "all_reduce", nccl_version="2.27", gpus_per_process=8, harness="nccl-tests"
)
OTHER = replace(GROUP, system="dgx-a100")
P5EN = CurveGroup("aws-p5en", 4, 32, "all_reduce", "ring", "ll", 1, gpus_per_process=1)
P5EN8 = replace(P5EN, n_nodes=8, n_gpus=64)
TABLE = """\
system,n_nodes,n_gpus,collective,algorithm,protocol,channels,gpus_per_process,threads_per_process,iters,harness,size_bytes,time_us,spread_pct,source
dgx-h100,1,8,all_reduce,auto,auto,,1,8,100,nccl-tests,1024,10,4.5,aiconfigurator
dgx-h100,1,8,all_reduce,auto,auto,,8,,,nccl-tests,1024,10,,wayne
dgx-h100,1,8,all_reduce,auto,auto,,,,,torch,1024,10,,someone
"""


def point(
    predicted: float, size: int = 8, spread: float = 0, group: CurveGroup = GROUP, source: str = "x"
) -> Point:
    """Return a prediction of a row that took 100 us."""
    row = Row(group, size, 100.0, source, "t.csv:2", 0, spread)
    return Point(row, predicted, "Ring", "LL", (), family="hopper")


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


def test_rows_are_scored_by_their_standing() -> None:
    points = [
        point(110, group=P5EN, source="ncclgauge"),
        point(150, group=P5EN8, source="ncclgauge"),
        point(120, source="new"),
        point(90, group=OTHER, source="superbench"),
    ]
    tables = {
        table.title: {line.name: line for line in table.lines} for table in class_tables(points)
    }
    systems = tables["Systems"]
    assert list(systems) == [
        "aws-p5en, several nodes, same source",
        "aws-p5en, several nodes, calibrated",
        "dgx-a100, one node, calibrated",
        "dgx-h100, one node, independent",
    ]
    independent = systems["dgx-h100, one node, independent"]
    assert independent.points == [points[2]]
    assert independent.remark == "new"
    assert independent.to_json()["mean_abs_pct"] == 20.0
    left_out = tables["Sources and systems without calibration rows"]
    # Parameters of H100 are calibrated on rows of that system, of other sources.
    assert {name: line.points for name, line in left_out.items()} == {
        "no calibration rows of the source, one node": [points[2]]
    }
    by_hand = tables["Held-out rows by collective"]
    assert [line.points for line in by_hand.values()] == [[points[2]], [points[1]]]
    calibration = tables["Calibration rows"]
    assert calibration["all"].points == [points[0], points[3]]
    name = f"p5en-1-channel: {ROW_SETS['p5en-1-channel'].text}"
    assert calibration[name].points == [points[0]]
    assert any("Ring LL of 1 KiB" in text for text in calibrated_by(points)["p5en-1-channel"])
    counts = tables["Numbers of nodes without calibration rows"]
    assert {name: line.remark for name, line in counts.items()} == {
        "aws-p5en (ncclgauge), 4 nodes": "with calibration rows",
        "aws-p5en (ncclgauge), 8 nodes": "not calibrated",
    }


def test_the_spread_and_the_row_sets_of_a_row(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text(TABLE, encoding="utf-8")
    rows = read_measurements([path])
    assert [row.spread_pct for row in rows] == [4.5, 0, 0]
    assert [row.row_sets for row in rows] == [(), ("wayne-h100",), ()]


def test_the_page_begins_with_the_systems_and_has_every_table() -> None:
    report = CollectiveReport([point(110), point(120, group=P5EN, source="ncclgauge")])
    text = page_text(report, "clusim validate t.csv", [("dgx-h100", "accuracy/dgx-h100.png")])
    first, *tables = class_tables(report.points)
    assert first.title == "Systems"
    assert text.index("| dgx-h100 | one | independent | 10.0% (1) |  |  | x |") < text.index(
        "\n## "
    )
    assert "| aws-p5en | several | calibrated | 20.0% (1) |  |  | ncclgauge |" in text
    for table in tables:
        assert f"## {table.title}\n" in text
    assert "![dgx-h100: measured and predicted](accuracy/dgx-h100.png)" in text
    assert "    clusim" not in text
