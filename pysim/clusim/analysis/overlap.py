"""Overlap: when ranks compute, communicate, do both or neither, and whose communication nothing hides."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clusim.analysis.columns import ColumnTable
from clusim.analysis.critical import Traced
from clusim.analysis.intervals import Union, first_come
from clusim.analysis.tasks import TaskColumns, task_columns
from clusim.analysis.traced import open_traced
from clusim.units import format_time

__all__ = ["exposed_ps", "overlap"]

Array = NDArray[Any]

COLUMNS = (
    "level",
    "of",
    "ranks",
    "compute_ps",
    "communication_ps",
    "both_ps",
    "neither_ps",
    "exposed_ps",
    "worst_rank",
)


def exposed_ps(tasks: TaskColumns) -> Array:
    """Return for each task how much of its communication nothing hid [ps]; 0 for kernels.

    Communication is exposed while no kernel of its rank runs. A moment in which several communicate belongs to the one
    that began first, so the values of a rank add up to the time in which it communicates and does not compute.
    """
    found = np.zeros(len(tasks.rank), np.int64)
    for rank in np.unique(tasks.rank):
        mine = tasks.rank == rank
        kernels = mine & tasks.computes
        computing = Union(tasks.start_ps[kernels], tasks.end_ps[kernels])
        own = np.flatnonzero(mine & tasks.communicates)
        start, end = first_come(tasks.start_ps[own], tasks.end_ps[own])
        found[own] = (end - start) - computing.within(start, end)
    return found


def overlap(path: str | Path) -> ColumnTable:
    """Return compute, communication, both and neither for ranks and streams, and exposed communication.

    Rows have a level: ``all`` (mean over ranks), ``rank``, ``stream`` (of a rank), and ``collective``, ``name``,
    ``dimension`` (the stream's name over all ranks), whose times are means over the ranks that take part, with the
    rank where most is exposed.
    """
    traced = open_traced(path)
    tasks = task_columns(traced)
    total = traced.result.time_ps
    exposed = exposed_ps(tasks)
    ranks = np.unique(tasks.rank).tolist()
    by_rank = [_rank_row(tasks, exposed, rank, total) for rank in ranks]
    rows: list[tuple[Any, ...]] = []
    if by_rank:
        means = [round(float(np.mean([row[i] for row in by_rank]))) for i in range(3, 8)]
        worst = max(by_rank, key=lambda row: (row[7], -int(row[1])))
        rows.append(("all", "ranks", len(ranks), *means, int(worst[1])))
    rows += by_rank
    rows += _streams(tasks, exposed, total)
    rows += _grouped(tasks, exposed, "collective", _call_names(traced, tasks))
    rows += _grouped(tasks, exposed, "name", tasks.name)
    rows += _grouped(tasks, exposed, "dimension", tasks.stream)
    facts = {"time_ps": total, "complete": traced.result.complete}
    return ColumnTable.of(COLUMNS, rows, facts, _notes(rows, total))


def _rank_row(tasks: TaskColumns, exposed: Array, rank: int, total: int) -> tuple[Any, ...]:
    mine = tasks.rank == rank
    compute, talk = mine & tasks.computes, mine & tasks.communicates
    computing = Union(tasks.start_ps[compute], tasks.end_ps[compute])
    talking = Union(tasks.start_ps[talk], tasks.end_ps[talk])
    both = int(computing.within(talking.start_ps, talking.end_ps).sum())
    neither = total - computing.length_ps - talking.length_ps + both
    return (
        "rank", str(rank), 1, computing.length_ps, talking.length_ps, both, neither,
        int(exposed[mine].sum()), rank,
    )  # fmt: skip


def _streams(tasks: TaskColumns, exposed: Array, total: int) -> Iterable[tuple[Any, ...]]:
    """Yield a row for each stream of each rank; `both` is its time beside the other kind on its rank."""
    keys = sorted({(int(r), s) for r, s in zip(tasks.rank, tasks.stream, strict=True)})
    streams = np.array(tasks.stream, object)
    unions: dict[int, tuple[Union, Union]] = {}
    for rank, stream in keys:
        mine = (tasks.rank == rank) & (streams == stream)
        if rank not in unions:
            of_rank = tasks.rank == rank
            unions[rank] = tuple(  # type: ignore[assignment]
                Union(tasks.start_ps[of_rank & kind], tasks.end_ps[of_rank & kind])
                for kind in (tasks.computes, tasks.communicates)
            )
        own = [
            Union(tasks.start_ps[mine & kind], tasks.end_ps[mine & kind])
            for kind in (tasks.computes, tasks.communicates)
        ]
        computing, talking = own
        both = int(unions[rank][1].within(computing.start_ps, computing.end_ps).sum())
        both += int(unions[rank][0].within(talking.start_ps, talking.end_ps).sum())
        busy = Union(
            *(np.concatenate([getattr(u, side) for u in own]) for side in ("start_ps", "end_ps"))
        )
        yield (
            "stream", f"{rank} {stream}", 1, computing.length_ps, talking.length_ps, both,
            total - busy.length_ps, int(exposed[mine].sum()), rank,
        )  # fmt: skip


def _call_names(traced: Traced, tasks: TaskColumns) -> list[str]:
    operations = traced.inputs.texts("calls/operation")
    return ["" if c < 0 else f"{c} {operations[c]}" for c in tasks.call.tolist()]


def _grouped(
    tasks: TaskColumns, exposed: Array, level: str, keys: list[str]
) -> Iterable[tuple[Any, ...]]:
    """Yield a row for each key of communication, most exposed first."""
    groups: dict[str, list[int]] = {}
    for index in np.flatnonzero(tasks.communicates).tolist():
        if keys[index]:
            groups.setdefault(keys[index], []).append(index)
    rows = []
    for key, members in groups.items():
        ranks = tasks.rank[members]
        lengths = tasks.end_ps[members] - tasks.start_ps[members]
        count = len(np.unique(ranks))
        bare = np.bincount(ranks, weights=exposed[members])
        talk, shown = int(lengths.sum()), int(exposed[members].sum())
        hidden = talk - shown
        rows.append(
            (
                level,
                key,
                count,
                0,
                talk // count,
                hidden // count,
                0,
                shown // count,
                int(np.argmax(bare)),
            )
        )
    return sorted(rows, key=lambda row: (-row[7], row[1]))


def _notes(rows: list[tuple[Any, ...]], total: int) -> list[str]:
    if not rows or not total:
        return []
    _, _, count, compute, talk, both, _, bare, worst = rows[0]
    notes = [
        f"of {format_time(total)}, a rank computes {compute / total:.1%}, communicates {talk / total:.1%},"
        f" both at once {both / total:.1%}; {bare / total:.1%} is communication that nothing hides"
        f" (mean of {count} ranks; most on rank {worst})"
    ]
    shown = [row for row in rows if row[0] == "name" and row[7] > 0]
    if shown:
        notes.append(f"most exposed: {shown[0][1]}, {format_time(shown[0][7])} per rank")
    return notes
