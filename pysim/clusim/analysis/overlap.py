"""Overlap of compute and communication, and exposed communication."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from clusim.analysis.critical import open_traced
from clusim.analysis.tablejson import OverlapRowJson
from clusim.analysis.tasks import RankTasks, RunTasks, run_tasks
from clusim.base.arrays import Array
from clusim.base.tables import ColumnTable
from clusim.base.units import format_time
from clusim.results.intervals import Union, first_come


def exposed_ps(tasks: RankTasks) -> Array:
    """Return the exposed communication of each task of a rank [ps]; 0 for kernels.

    Communication is exposed while data move and no kernel of the rank runs. If several tasks communicate at a time,
    the time is attributed to the one that began first, so the values add up to the time in which the rank
    communicates without computing.
    """
    result = np.zeros(len(tasks.number), np.int64)
    talking = np.flatnonzero(tasks.communicates)
    start, end = first_come(tasks.moves_ps[talking], tasks.end_ps[talking])
    result[talking] = (end - start) - tasks.computing().within(start, end)
    return result


def overlap(path: str | Path) -> ColumnTable:
    """Return compute, communication, overlap and exposed communication of ranks and streams.

    Rows have a level: ``all`` (mean over ranks), ``rank``, ``stream`` (of a rank), and ``collective``, ``name``,
    ``dimension`` (the stream's name over all ranks), whose times are means over the participating ranks, with the
    rank that has most exposed communication. A rank communicates from the start of the last rank of a collective.
    """
    traced = open_traced(path)
    run, total = run_tasks(traced), traced.result.time_ps
    ranks: list[tuple[Any, ...]] = []
    streams: list[tuple[Any, ...]] = []
    parts: list[Array] = []
    for tasks in run:
        exposed = exposed_ps(tasks)
        ranks.append(_rank_row(tasks, exposed, total))
        streams += _streams(run, tasks, exposed, total)
        columns = (
            np.full(len(exposed), tasks.rank),
            tasks.call,
            tasks.name,
            tasks.stream,
        )
        table = np.stack([*columns, tasks.end_ps - tasks.moves_ps, exposed])
        parts.append(table[:, tasks.communicates])
    rows: list[tuple[Any, ...]] = []
    if ranks:
        means = [
            round(float(np.mean([row[i] for row in ranks]))) for i in range(3, 8)
        ]
        worst = max(ranks, key=lambda row: (row[7], -int(row[1])))
        rows.append(("all", "ranks", len(ranks), *means, int(worst[1])))
    rows += [*ranks, *streams]
    if parts:
        rank, *keys, talk, bare = np.concatenate(parts, axis=1)
        names = [
            f"{call} {name}"
            for call, name in enumerate(traced.inputs.texts("calls/operation"))
        ]
        levels = (
            ("collective", names),
            ("name", run.names),
            ("dimension", run.streams),
        )
        for (level, words), key in zip(levels, keys, strict=True):
            rows += _rows_by_key(
                level, words, np.stack([key, rank, talk, bare])[:, key >= 0]
            )
    return ColumnTable.of(
        OverlapRowJson.__annotations__, rows, traced.facts, _notes(rows, total)
    )


def _rank_row(tasks: RankTasks, exposed: Array, total: int) -> tuple[Any, ...]:
    computing, talking = tasks.computing(), tasks.talking()
    both = computing.shared_ps(talking)
    neither = total - computing.length_ps - talking.length_ps + both
    return (
        "rank", str(tasks.rank), 1, computing.length_ps, talking.length_ps, both, neither,
        int(exposed.sum()), tasks.rank,
    )  # fmt: skip


def _streams(
    run: RunTasks, tasks: RankTasks, exposed: Array, total: int
) -> Iterable[tuple[Any, ...]]:
    """Yield a row for each stream of a rank; `both` is its time beside the other kind on its rank."""
    for stream in sorted(
        np.unique(tasks.stream).tolist(), key=run.streams.__getitem__
    ):
        mine = tasks.stream == stream
        computing, talking = tasks.computing(mine), tasks.talking(mine)
        both = tasks.talking().shared_ps(computing) + tasks.computing().shared_ps(
            talking
        )
        busy = Union.of(computing.spans, talking.spans)
        yield (
            "stream", f"{tasks.rank} {run.streams[stream]}", 1, computing.length_ps,
            talking.length_ps, both, total - busy.length_ps, int(exposed[mine].sum()), tasks.rank,
        )  # fmt: skip


def _rows_by_key(
    level: str, names: Sequence[str], tasks: Array
) -> list[tuple[Any, ...]]:
    """Return a row for each key of communication, most exposed first.

    `tasks` has a row each of keys, ranks, times and exposed times [ps].
    """
    num_rows = int(tasks[1].max(initial=0)) + 1
    pairs, of_pair = np.unique(tasks[0] * num_rows + tasks[1], return_inverse=True)
    times = np.zeros((2, len(pairs)), np.int64)
    for total, values in zip(times, tasks[2:], strict=True):
        np.add.at(total, of_pair, values)
    rows = []
    keys, first = np.unique(pairs // num_rows, return_index=True)
    for key, low, high in zip(
        keys.tolist(), first, [*first[1:], len(pairs)], strict=True
    ):
        count, worst = (
            int(high - low),
            pairs[low + np.argmax(times[1, low:high])] % num_rows,
        )
        talk, bare = times[:, low:high].sum(axis=1).tolist()
        both = (talk - bare) // count
        row = (
            level,
            names[key],
            count,
            0,
            talk // count,
            both,
            0,
            bare // count,
            int(worst),
        )
        rows.append(row)
    return sorted(rows, key=lambda row: (-row[7], row[1]))


def _notes(rows: list[tuple[Any, ...]], total: int) -> list[str]:
    if not rows or not total:
        return []
    _, _, count, compute, talk, both, _, bare, worst = rows[0]
    notes = [
        f"of {format_time(total)}, a rank computes {compute / total:.1%}, communicates {talk / total:.1%},"
        f" both at once {both / total:.1%}; {bare / total:.1%} is exposed communication"
        f" (mean of {count} ranks; most on rank {worst})"
    ]
    named = [row for row in rows if row[0] == "name" and row[7] > 0]
    if named:
        notes.append(
            f"most exposed: {named[0][1]}, {format_time(named[0][7])} per rank"
        )
    return notes
