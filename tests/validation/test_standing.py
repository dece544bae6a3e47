"""Standing of rows, and expected errors from independent rows: laws by hand on few rows."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from clusim.simulation import expected, residuals
from clusim.simulation.expected import (
    P2P,
    Expected,
    MeasuredError,
    RunPlace,
    expected_error,
    expected_of,
)
from clusim.simulation.plan import plan
from clusim.simulation.request import Request
from clusim.simulation.setup import Setup
from clusim.validation.collectives.breakdown import Point, TimeSpan
from clusim.validation.collectives.measurements import CurveGroup, Row, read_measurements
from clusim.validation.collectives.standing import (
    CALIBRATION,
    INDEPENDENT,
    LAUNCH,
    PLAN,
    SAME_SOURCE,
    UNEVEN,
    left_out,
    standings,
)
from clusim.validation.collectives.validate import CollectiveReport, save_accuracies

MIB = 1 << 20
H100 = CurveGroup(
    "dgx-h100", 1, 8, "all_reduce", nccl_version="2.27.3", gpus_per_process=8, harness="nccl-tests"
)
A100 = replace(H100, system="dgx-a100")
GB200 = replace(H100, system="gb200-nvl72", n_gpus=4)
P5EN = CurveGroup("aws-p5en", 4, 32, "all_reduce", "tree", "ll", 1, gpus_per_process=1)
OLDER = replace(P5EN, channels=0, plugin="aws-ofi-nccl <1.17", release="2.23.4 to 2.28.9")
RANGE = TimeSpan(50.0, 100.0, "launch")


def point(predicted: float, group: CurveGroup = H100, source: str = "x", **more: Any) -> Point:
    """Return a prediction of a row that took 100 us."""
    names = {"algorithm", "protocol", "family", "span"} & more.keys()
    fields = {name: more.pop(name) for name in names}
    row = Row(group, **{"size_bytes": 8, "time_us": 100.0, "source": source, **more})
    words = {"algorithm": "Ring", "protocol": "LL", "family": "hopper"}
    return Point(row, predicted, notes=(), **{**words, **fields})


def standing(*points: Point) -> list[str]:
    found = standings(points)
    return [found[item] for item in points]


def test_a_row_is_left_out_if_its_source_calibrated_no_parameter_of_its_system() -> None:
    assert standing(
        point(1, P5EN, "ncclgauge"),
        point(1, replace(P5EN, n_nodes=8, n_gpus=64), "ncclgauge"),
        point(1, P5EN, "someone"),
        point(1, H100, "wayne"),
        point(1, A100, "superbench+someone"),
    ) == [CALIBRATION, SAME_SOURCE, INDEPENDENT, CALIBRATION, CALIBRATION]


def test_a_source_also_counts_on_another_system_with_the_same_parameters() -> None:
    # GB200 has the protocols of B200, which aiconfigurator calibrated; H100 has others.
    assert standing(
        point(1, GB200, "aiconfigurator", family="blackwell"), point(1, H100, "aiconfigurator")
    ) == [SAME_SOURCE, INDEPENDENT]


def test_only_the_parameters_of_the_rows_algorithm_and_protocol_count() -> None:
    source = "aiconfigurator"
    assert standing(
        point(1, H100, source, algorithm="NVLS", protocol="Simple"),
        point(1, H100, source, algorithm="Ring", protocol="Simple"),
    ) == [SAME_SOURCE, INDEPENDENT]
    ten = replace(H100, system="hgx-h100-ndr")
    assert standing(
        point(1, ten, "xxrjun", protocol="Simple"), point(1, ten, "xxrjun", protocol="LL128")
    ) == [SAME_SOURCE, INDEPENDENT]


def test_a_system_is_left_out_if_no_parameter_of_its_rows_is_calibrated_on_it() -> None:
    ten = replace(H100, system="hgx-h100-ndr")
    points = [
        point(1, GB200, "aiconfigurator", family="blackwell"),
        point(1, ten, "xxrjun", protocol="Simple"),
        point(1, ten, "someone", protocol="LL128"),
        point(1, H100, "wayne"),
    ]
    found = left_out(points, standings(points))
    # Sends and receives of xxrjun on hgx-h100-ndr calibrated Simple; B200's rows calibrated GB200.
    assert found == {"source": [points[2]], "system": [points[0], points[2]]}


def test_campaigns_of_one_source_with_another_plugin_are_separate() -> None:
    small = replace(OLDER, algorithm="ring", protocol="ll")
    other = replace(small, plugin="aws-ofi-nccl <1.14")
    curves = small, other, replace(P5EN, protocol="ll")
    points = [point(1, curve, "ncclgauge") for curve in curves]
    # Control messages before 1.17 are calibrated on rings of LL128 of that campaign.
    assert standing(*points) == [SAME_SOURCE, INDEPENDENT, CALIBRATION]
    assert points[0].row.campaign == "ncclgauge (aws-ofi-nccl <1.17)"


def test_rows_of_an_unknown_plan_are_excluded() -> None:
    blank = replace(H100, nccl_version="")
    alps = replace(P5EN, system="alps-gh200", n_gpus=16, nccl_version="2.27.3")
    auto = {"algorithm": "auto", "protocol": "auto", "channels": 0}
    ib = replace(alps, system="hgx-h100-ndr", n_gpus=32)
    assert standing(
        point(1, blank),
        point(1, replace(blank, release="2.23 to 2.27")),
        point(1, replace(alps, **auto)),
        point(1, replace(alps, **auto, plugin="aws-ofi-nccl 1.16")),
        point(1, alps),
        point(1, replace(ib, **auto)),
    ) == [PLAN, INDEPENDENT, PLAN, INDEPENDENT, INDEPENDENT, INDEPENDENT]


def test_an_unknown_launch_excludes_only_where_it_changes_the_time() -> None:
    blank = replace(H100, gpus_per_process=0)
    assert standing(
        point(1, blank, span=RANGE), point(1, blank, span=replace(RANGE, low_us=99.0)), point(1)
    ) == [LAUNCH, INDEPENDENT, INDEPENDENT]


def test_a_row_slower_than_one_of_the_next_three_sizes_is_not_monotone(tmp_path: Path) -> None:
    """Of the whole table: a row is marked if the faster size is not predicted."""

    def curve(*times_us: float, sources: str = "") -> list[str]:
        table = tmp_path / "t.csv"
        rows = [
            f"dgx-h100,1,8,all_reduce,2.27.3,8,{8 << at},{us},{sources[at : at + 1]}"
            for at, us in enumerate(times_us)
        ]
        head = "system,n_nodes,n_gpus,collective,nccl_version,gpus_per_process,size_bytes,time_us"
        table.write_text("\n".join([f"{head},source", *rows]), encoding="utf-8")
        some = [replace(point(1), row=row) for row in read_measurements([table])]
        return [standing(one)[0] for one in some]

    assert curve(10, 116, 20, 100, 101) == [INDEPENDENT, UNEVEN] + [INDEPENDENT] * 3
    # 15 % is the limit, and the fourth size is no longer compared.
    assert curve(114, 100) == [INDEPENDENT] * 2
    assert curve(100, 100, 100, 100, 50)[:2] == [INDEPENDENT, UNEVEN]
    assert curve(200, 100, sources="xy") == [INDEPENDENT] * 2


def test_a_figure_omits_curves_of_one_size_beside_longer_ones(tmp_path: Path) -> None:
    one, other = ([point(1), point(2, size_bytes=16)], [point(3, GB200)])
    assert [name for name, _ in save_accuracies([one, other], tmp_path)] == ["dgx-h100"]
    assert [name for name, _ in save_accuracies([other], tmp_path)] == ["gb200-nvl72"]


@pytest.fixture
def shipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a function that ships the expected errors of some points."""
    table, data = tmp_path / "t.csv", tmp_path / "accuracy.json"
    table.write_text("", encoding="utf-8")
    monkeypatch.setattr(expected, "DATA", data)

    def ship(*points: Point) -> dict[str, Any]:
        CollectiveReport(list(points)).write_data(data, [table])
        residuals.known_campaigns.cache_clear()
        residuals.data_of.cache_clear()
        result: dict[str, Any] = json.loads(data.read_text(encoding="utf-8"))
        return result

    return ship


def rows(
    error_pct: float, group: CurveGroup = H100, source: str = "x", **more: Any
) -> Sequence[Point]:
    """Return the rows of a campaign with an error, at sizes below 1 MiB."""
    made = (point(100 + error_pct, group, source, size_bytes=8 + at, **more) for at in range(8))
    return list(made)


def near(
    system: str, algorithm: str = "", without: Sequence[str] = (), size_bytes: int = 12
) -> Expected:
    setup = Setup(system)
    return expected_error(RunPlace.of(setup), size_bytes, algorithm, without)


def test_written_errors_have_their_date_commit_and_rows(shipped: Any) -> None:
    written = shipped(*rows(0, A100, "superbench", family="ampere"), *rows(0, H100, "wayne"))
    assert (written["rows"], written["independent"]) == (16, 0)
    assert re.fullmatch(r"\d{4}-\d\d-\d\d", written["date"])
    assert "commit" in written
    first = dict(zip(written["columns"], written["campaigns"][0], strict=True))
    assert (first["source"], first["links"], first["standing"]) == (
        "superbench",
        "NVSwitch",
        "calibrated",
    )
    assert first["rows"] == [[8 + at, 0.0] for at in range(8)]


@pytest.mark.parametrize(
    ("system", "why"),
    [
        ("dgx-a100", "another generation"),
        ("gh200x4-mesh", "a mesh"),
        ("mi300x", "RCCL"),
        ("l40s-x8", "PCIe"),
    ],
)
def test_other_classes_of_systems_have_no_known_error(shipped: Any, system: str, why: str) -> None:
    shipped(*rows(4), *rows(5, replace(H100, system="dgx-h200"), "y"))
    assert near("dgx-h200").nearest is not None
    assert near(system).text() == (
        "expected error: not known (no measurements of comparable systems)"
    ), why


def test_sizes_nodes_and_messages_beyond_a_campaign_have_no_known_error(shipped: Any) -> None:
    shipped(*rows(4))
    assert near("dgx-h100", size_bytes=1).nearest, "latency, as at the campaign's smallest size"
    assert near("dgx-h100", size_bytes=16).nearest is None
    assert near("dgx-h100", P2P).nearest is None
    place = replace(RunPlace.of(Setup("dgx-h100")), machines=2)
    assert expected_error(place, 12).nearest is None


def test_a_campaign_counts_once_and_the_very_system_twice(shipped: Any) -> None:
    h200 = replace(H100, system="dgx-h200")
    shipped(*rows(4), *rows(-31, h200, "y"), *rows(-31, h200, "y"))
    found = near("dgx-h100").nearest
    assert found is not None
    assert (found.system, found.systems, found.sources, found.n) == ("dgx-h100", 2, 2, 24)
    assert "dgx-h100 and 1 comparable system; 24 rows of 2 sources" in found.text()
    other = near("dgx-h200").nearest
    assert other is not None
    # Two parts of 4% and one of 31%, and the reverse; both times the factor for left-out sources.
    assert other.median_abs_pct / found.median_abs_pct == pytest.approx(22 / 13, rel=1e-3)


def test_few_rows_are_drawn_to_the_errors_of_other_classes(shipped: Any) -> None:
    """One source is told, and half of the weight is that of the others; they do not lower an error."""
    shipped(*rows(4, replace(H100, system="dgx-h200")), *rows(16, A100, "y", family="ampere"))
    found = near("dgx-h100").nearest
    assert found is not None
    assert found.median_abs_pct == pytest.approx(10, abs=0.01)
    worse = near("dgx-a100").nearest
    assert worse is not None
    assert worse.median_abs_pct == pytest.approx(16, abs=0.01)


def test_sources_can_be_left_out(shipped: Any) -> None:
    shipped(*rows(4), *rows(30, H100, "y"))
    known = near("dgx-h100", without=["x"]).nearest
    assert known is not None
    assert known.sources == 1
    assert near("dgx-h100", without=["x (aws-ofi-nccl 1.17)", "y"]).nearest is None
    report = CollectiveReport([*rows(4), *rows(20, H100, "z")])
    shipped(*report.points)
    (both,) = report.expectations()
    # Neither source judges the table that contains it.
    assert both.expected.nearest is None
    assert both.to_json()["found"] == {"n": 16, "median_abs_pct": 12.0, "most_abs_pct": 20.0}


def test_what_has_no_measurements(shipped: Any) -> None:
    shipped(
        *(
            replace(one, row=replace(one.row, size_bytes=1020 + at))
            for at, one in enumerate(rows(4))
        )
    )
    named = near("dgx-h100", "hierarchical")
    assert "hierarchical is not an algorithm of NCCL: no measurements" in named.text()
    request = Request(Setup("dgx-h100"), "allreduce", 1024)
    assert expected_of(plan(request), "ring") == near("dgx-h100", "ring", size_bytes=1024)
    assert near("dgx-h100", "ring", size_bytes=1024).nearest
    paper = replace(request, algorithm="ring")
    assert "ring differs from NCCL's plan" in expected_of(plan(paper), "ring").text()
    broken = replace(request, setup=Setup("dgx-h100", faults=("rank 1 slow x1.3",)))
    assert "no measurements of systems with faults" in expected_of(plan(broken), "ring").text()


def test_measured_errors_by_hand() -> None:
    assert MeasuredError.of([]) is None
    found = MeasuredError.of([-30, 10, 148.0])
    assert found == MeasuredError(3, 30, 148)
    assert found.text() == "this file: median 30 %, at most 148 % (3 measurements)"
