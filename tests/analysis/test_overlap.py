"""Overlap of compute and communication of two ranks, by hand from their times."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from clusim.analysis import overlap as module
from clusim.analysis.overlap import exposed_ps, overlap
from clusim.analysis.tasks import RunTasks
from clusim.base.tables import ColumnTable

TASKS = (
    # rank, kind, call, stream, name, start, end
    *((3, "kernel", -1, "compute", "F", 0, 40), (3, "kernel", -1, "compute", "B", 60, 80)),
    *((3, "program", 0, "tp", "reduce", 30, 70), (3, "program", 1, "dp", "gather", 50, 100)),
    *((7, "program", 0, "tp", "reduce", 20, 70), (7, "program", 1, "dp", "gather", 50, 100)),
    *((7, "program", -1, "p2p", "send", 5, 15), (7, "program", -1, "p2p", "hidden", 101, 102)),
    *((7, "kernel", -1, "compute", "F", 101, 103), (7, "program", -1, "p2p", "recv", 15, 25)),
)
"""Data of call 0 move from 30 on."""


def run() -> Any:
    columns = list(zip(*TASKS, strict=True))
    names = ("rank", "kind", "call", "stream", "name", "start", "end")
    rank, kind, call, stream, name, start, end = columns
    schedule = {"tasks/rank": rank, "tasks/kind": kind, "tasks/call": call, "tasks/stream": stream}
    assert len(names) == len(columns)
    times = {"start_ps": np.array(start), "end_ps": np.array(end)}
    tasks = SimpleNamespace(names=list(name), blocks=None, **times)
    return RunTasks(SimpleNamespace(tasks=tasks, time_ps=110), schedule)


@pytest.fixture
def table(monkeypatch: pytest.MonkeyPatch) -> ColumnTable:
    """The table of a run of 110 ps."""
    inputs = SimpleNamespace(texts=lambda _: ["allreduce", "all_gather"])
    traced = SimpleNamespace(result=SimpleNamespace(time_ps=110), inputs=inputs, facts={})
    monkeypatch.setattr(module, "open_traced", lambda _: traced)
    monkeypatch.setattr(module, "run_tasks", lambda _: run())
    return overlap(Path("by-hand.h5"))


COLUMNS = ("of", "ranks", "compute_ps", "communication_ps", "both_ps", "neither_ps", "exposed_ps")


def rows(table: ColumnTable, level: str) -> list[tuple[Any, ...]]:
    """Return the columns of the rows of a level, and the rank with most exposed communication."""
    return [
        (*(row[name] for name in COLUMNS), row["worst_rank"])
        for row in table.rows()
        if row["level"] == level
    ]


def test_exposed_time_goes_to_the_collective_that_began_first() -> None:
    """Of rank 3, 40 to 60 to tp and 80 to 100 to dp; of rank 7, 30 to 70 and 70 to 100, without what a kernel hides."""
    first, second = run()
    assert exposed_ps(first).tolist() == [0, 20, 20, 0]
    order = [run().names[name] for name in second.name]
    assert dict(zip(order, exposed_ps(second).tolist(), strict=True)) == {
        **{"send": 10, "recv": 10, "reduce": 40, "gather": 30},
        **{"hidden": 0, "F": 0},
    }


def test_ranks_and_their_mean(table: ColumnTable) -> None:
    assert rows(table, "rank") == [
        ("3", 1, 60, 70, 30, 10, 40, 3),
        ("7", 1, 2, 91, 1, 18, 90, 7),
    ]
    assert rows(table, "all") == [("ranks", 2, 31, 80, 16, 14, 65, 7)]


def test_streams_of_a_rank_by_name(table: ColumnTable) -> None:
    """`both` is the time beside the other kind: kernels 30 to 40 and 60 to 80, tp the first and 60 to 70."""
    assert rows(table, "stream") == [
        ("3 compute", 1, 60, 0, 30, 50, 0, 3),
        ("3 dp", 1, 0, 50, 20, 60, 20, 3),
        ("3 tp", 1, 0, 40, 20, 70, 20, 3),
        ("7 compute", 1, 2, 0, 1, 108, 0, 7),
        ("7 dp", 1, 0, 50, 0, 60, 30, 7),
        ("7 p2p", 1, 0, 21, 1, 89, 20, 7),
        ("7 tp", 1, 0, 40, 0, 70, 40, 7),
    ]


def test_collectives_names_and_dimensions_are_means_with_the_most_exposed_first(
    table: ColumnTable,
) -> None:
    reduce_, gather = (2, 0, 40, 10, 0, 30, 7), (2, 0, 50, 25, 0, 25, 7)
    send, hidden = (1, 0, 10, 0, 0, 10, 7), (1, 0, 1, 1, 0, 0, 7)
    assert rows(table, "collective") == [("0 allreduce", *reduce_), ("1 all_gather", *gather)]
    assert rows(table, "name") == [
        ("reduce", *reduce_), ("gather", *gather), ("recv", *send), ("send", *send), ("hidden", *hidden),
    ]  # fmt: skip
    assert rows(table, "dimension") == [
        ("tp", *reduce_), ("dp", *gather), ("p2p", 1, 0, 21, 1, 0, 20, 7),
    ]  # fmt: skip


def test_notes_are_of_the_mean_and_the_most_exposed_name(table: ColumnTable) -> None:
    assert table.notes == [
        "of 110 ps, a rank computes 28.2%, communicates 72.7%, both at once 14.5%; 59.1% is exposed communication"
        " (mean of 2 ranks; most on rank 7)",
        "most exposed: reduce, 30 ps per rank",
    ]


def test_a_run_without_tasks_or_time_has_no_notes() -> None:
    assert module._notes([], 10) == []
    assert module._notes([("all", "ranks", 1, 0, 0, 0, 0, 0, 0)], 0) == []
