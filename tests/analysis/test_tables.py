"""Overlap, collectives, pipelines, memory, congestion and differences, against numbers worked out by hand."""

from __future__ import annotations

import json
from pathlib import Path

import h5py
import numpy as np
import pytest

import clusim
from clusim.analysis.blame import blame
from clusim.analysis.calls import collectives
from clusim.analysis.congestion import congestion, wire_history
from clusim.analysis.diff import diff
from clusim.analysis.memory import memory
from clusim.analysis.overlap import overlap
from clusim.analysis.pipeline import pipeline, timeline
from clusim.base.errors import TraceError
from clusim.base.tables import ColumnTable
from clusim.results.trace.reader import read_result

US = 1_000_000


def rows(table: ColumnTable, level: str) -> list[dict[str, object]]:
    return [row for row in table.rows() if row["level"] == level]


@pytest.fixture(scope="module")
def by_hand(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A trace whose task times are set by hand: rank 0 computes 0..40 and 60..80, talks 30..70 and 50..100."""
    path = tmp_path_factory.mktemp("hand") / "hand.h5"
    fabric = clusim.load("dgx-a100")
    builder = clusim.collectives.ScheduleBuilder(fabric)
    builder.kernel(0, compute_ps=US, name="forward 0")
    builder.kernel(0, compute_ps=US, name="backward 0")
    builder.collective("allreduce", 1 << 12, ranks=(0, 1), stream="tp", channels=1)
    builder.collective("allreduce", 1 << 12, ranks=(0, 1), stream="dp", channels=1)
    clusim.simulate(fabric, builder.build(), trace_out=path, confirm=False)
    with h5py.File(path, "r+") as file:
        file["/tasks/start"][:] = [0, 60, 30, 30, 50, 50]
        file["/tasks/end"][:] = [40, 80, 70, 70, 100, 100]
        file["/meta"].attrs["time_ps"] = 100
    return path


def test_overlap_of_a_timeline_worked_out_by_hand(by_hand: Path) -> None:
    table = overlap(by_hand)
    first, second = rows(table, "rank")
    names = ("compute_ps", "communication_ps", "both_ps", "neither_ps", "exposed_ps")
    # Computes 0..40 60..80, talks 30..100: both 30..40 and 60..80; bare are 40..60 and 80..100.
    assert [first[name] for name in names] == [60, 70, 30, 0, 40]
    assert [second[name] for name in names] == [0, 70, 0, 30, 70]
    by_call = {row["of"]: row["exposed_ps"] for row in rows(table, "dimension")}
    # Of rank 0, 40..60 belongs to tp, which began first, and 80..100 to dp; of rank 1, 40 and 30.
    assert by_call == {"tp": (20 + 40) // 2, "dp": (20 + 30) // 2}
    streams = {row["of"]: row for row in rows(table, "stream")}
    assert streams["0 compute"]["both_ps"] == 30
    assert streams["0 tp"]["neither_ps"] == 60


def test_every_moment_of_a_rank_is_in_one_column(traces: dict[str, Path]) -> None:
    table = overlap(traces["training"])
    for row in rows(table, "rank"):
        total = row["compute_ps"] + row["communication_ps"] - row["both_ps"] + row["neither_ps"]  # type: ignore[operator]
        assert total == table.facts["time_ps"]
        assert row["exposed_ps"] == row["communication_ps"] - row["both_ps"]  # type: ignore[operator]


def test_bubbles_of_a_timeline_worked_out_by_hand(by_hand: Path) -> None:
    first = pipeline(by_hand).rows()[0]
    names = (
        "compute_ps",
        "bubble_ps",
        "fill_ps",
        "drain_ps",
        "gaps_ps",
        "gaps",
        "waits_exposed_ps",
    )
    assert [first[name] for name in names] == [60, 40, 0, 20, 20, 1, 40]
    lines = timeline(by_hand, width=10)
    assert lines[0] == "rank 0 |FFFf==bb==|"
    assert lines[1] == "rank 1 |...=======|"


def test_collectives_have_the_bandwidth_of_the_result(traces: dict[str, Path]) -> None:
    for name in ("pull ring", "push ring", "tree", "nvls", "alltoall"):
        result, table = read_result(traces[name]), collectives(traces[name])
        (row,) = table.rows()
        assert row["time_ps"] == result.time_ps
        assert row["busbw_GBps"] == pytest.approx(result.busbw_GBps)
        assert row["limit_busy"] == pytest.approx(result.utilisation.max())
    calls = collectives(traces["training"]).columns["operation"]
    assert sorted(calls) == ["allreduce", "send", "send", "send"]


def test_memory_use_is_that_of_the_histories(traces: dict[str, Path]) -> None:
    result, table = read_result(traces["training"]), memory(traces["training"])
    by_rank = {row["rank"]: row for row in table.rows()}
    assert by_rank[0]["communication_bytes"] == int(result.bins.hbm_bytes[0].sum())
    assert by_rank[1]["kernel_bytes"] == 3 << 24
    for row in table.rows():
        assert row["communication"] + row["kernels"] + row["left"] == pytest.approx(1.0)


def test_congestion_ranks_by_the_counters(traces: dict[str, Path]) -> None:
    result, table = read_result(traces["alltoall"]), congestion(traces["alltoall"])
    found = rows(table, "wire")
    counters = result.wires.counters
    stress = counters["busy_ps"] + counters["stall_credit_ps"]
    assert found[0]["name"] == result.wires.names[int(np.argmax(stress))]
    assert found[0]["busy"] == pytest.approx(
        counters["busy_ps"][np.argmax(stress)] / result.time_ps
    )
    carried = {name for name, n in zip(result.wires.classes, counters["packets"], strict=True) if n}
    assert {row["name"] for row in rows(table, "tier")} == carried
    assert all(row["sources"] == 7 for row in found if "->gpu" in str(row["name"]))
    history = wire_history(traces["alltoall"])
    mine = [row for row in history.rows() if row["name"] == found[0]["name"]]
    assert sum(row["bytes"] for row in mine) == counters["bytes"][np.argmax(stress)]


def test_incast_is_named(tmp_path: Path) -> None:
    traffic = clusim.Traffic("incast", 1 << 16, 4096)
    clusim.simulate_traffic(
        clusim.load("star:8"), traffic, trace_out=tmp_path / "a.h5", confirm=False
    )
    table = congestion(tmp_path / "a.h5")
    assert any(note.startswith("incast: 7 sources share") for note in table.notes), table.notes
    with pytest.raises(TraceError, match="no tasks"):
        overlap(tmp_path / "a.h5")


def test_uniform_traffic_is_no_incast_and_tiers_have_directions(tmp_path: Path) -> None:
    traffic = clusim.Traffic("uniform", 4096, 4096, load=0.8, duration_ps=20 * US)
    clusim.simulate_traffic(
        clusim.load("fat-tree:k=4"), traffic, trace_out=tmp_path / "a.h5", confirm=False
    )
    table = congestion(tmp_path / "a.h5")
    assert not any(note.startswith("incast") for note in table.notes), table.notes
    pairs = (("edge", "aggregation"), ("aggregation", "core"))
    names = {str(row["name"]).split(" ", 1)[1] for row in rows(table, "tier")}
    assert {f"{a}->{b}" for a, b in pairs} | {f"{b}->{a}" for a, b in pairs} <= names
    with pytest.raises(TraceError, match="critical path"):
        blame(tmp_path / "a.h5")


def test_uneven_parallel_wires_are_named(tmp_path: Path) -> None:
    from clusim.lowering import Fault

    fabric = clusim.load("dgx-a100")
    schedule = clusim.collectives.build(fabric, "allreduce", "ring", 1 << 20, channels=8)
    clusim.simulate(
        fabric,
        schedule,
        trace_out=tmp_path / "a.h5",
        confirm=False,
        faults=[Fault(0, 0.5, wire="gpu0->nvswitch0.0")],
    )
    groups = rows(congestion(tmp_path / "a.h5"), "group")
    assert str(groups[0]["name"]).startswith("gpu0->nvswitch0")
    assert groups[0]["imbalance"] > 1.5  # type: ignore[operator]


def test_a_run_does_not_differ_from_itself(traces: dict[str, Path]) -> None:
    table = diff(traces["tree"], traces["tree"])
    assert "the same run" in table.notes[0]
    assert not any(table.columns["change_ps"])


def test_differences_are_told_with_numbers(traces: dict[str, Path]) -> None:
    a, b = (read_result(traces[name]).time_ps for name in ("pull ring", "push ring"))
    table = diff(traces["pull ring"], traces["push ring"])
    assert table.rows()[0]["change_ps"] == b - a
    assert any("dgx-a100" in note and "dgx-h100" in note for note in table.notes)
    blamed = [row for row in table.rows() if row["level"] == "blame"]
    assert sum(row["a_ps"] for row in blamed) == a
    assert sum(row["b_ps"] for row in blamed) == b


def test_tables_become_json_and_csv(traces: dict[str, Path]) -> None:
    for table in (congestion(traces["tree"]), overlap(traces["tree"]), memory(traces["tree"])):
        again = json.loads(json.dumps(table.to_json()))
        assert again["rows"] == table.rows()
        lines = table.to_csv().splitlines()
        assert len(lines) == len(table) + 1
        assert lines[0].split(",") == list(table.columns)
