"""Overlap of compute and communication, and exposed communication."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clusim.analysis.critical import Traced, open_traced
from clusim.analysis.tablejson import OverlapRowJson
from clusim.analysis.tasks import RankTasks, RunTasks, run_tasks
from clusim.base.tables import ColumnTable
from clusim.base.units import format_time
from clusim.results.intervals import Union, first_come

Array = NDArray[Any]


def exposed_ps(tasks: RankTasks) -> Array:
    """Return the exposed communication of each task of a rank [ps]; 0 for kernels.

    Communication is exposed while data move and no kernel of the rank runs. If several tasks communicate at a time,
    the time is attributed to the one that began first, so the values add up to the time in which the rank
    communicates without computing.
    """
    result = np.zeros(len(tasks.number), np.int64)
    kernels = tasks.computes
    computing = Union(tasks.start_ps[kernels], tasks.end_ps[kernels])
    talking = np.flatnonzero(tasks.communicates)
    start, end = first_come(tasks.moves_ps[talking], tasks.end_ps[talking])
    result[talking] = (end - start) - computing.within(start, end)
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
    groups: dict[str, dict[int, _Shared]] = {"collective": {}, "name": {}, "dimension": {}}
    for tasks in run:
        exposed = exposed_ps(tasks)
        of_rank = _of_rank(tasks)
        ranks.append(_rank_row(tasks, exposed, of_rank, total))
        streams += _streams(run, tasks, exposed, of_rank)
        for level, keys in (
            ("collective", tasks.call),
            ("name", tasks.name),
            ("dimension", tasks.stream),
        ):
            _share(groups[level], tasks, exposed, keys)
    rows: list[tuple[Any, ...]] = []
    if ranks:
        means = [round(float(np.mean([row[i] for row in ranks]))) for i in range(3, 8)]
        worst = max(ranks, key=lambda row: (row[7], -int(row[1])))
        rows.append(("all", "ranks", len(ranks), *means, int(worst[1])))
    rows += ranks
    rows += [(*row[:6], total - row[6], *row[7:]) for row in streams]
    calls = _call_names(traced)
    rows += _grouped(groups["collective"], "collective", calls)
    rows += _grouped(groups["name"], "name", run.names)
    rows += _grouped(groups["dimension"], "dimension", run.streams)
    return ColumnTable.of(OverlapRowJson.__annotations__, rows, traced.facts, _notes(rows, total))


def _of_rank(tasks: RankTasks, mine: Array | None = None) -> tuple[Union, Union]:
    """Return when a rank computes and when it communicates, with some of its tasks or all."""
    result = []
    for kind, start in ((tasks.computes, tasks.start_ps), (tasks.communicates, tasks.moves_ps)):
        chosen = kind if mine is None else kind & mine
        result.append(Union(start[chosen], tasks.end_ps[chosen]))
    return result[0], result[1]


def _rank_row(
    tasks: RankTasks, exposed: Array, of_rank: tuple[Union, Union], total: int
) -> tuple[Any, ...]:
    computing, talking = of_rank
    both = int(computing.within(talking.start_ps, talking.end_ps).sum())
    neither = total - computing.length_ps - talking.length_ps + both
    return (
        "rank", str(tasks.rank), 1, computing.length_ps, talking.length_ps, both, neither,
        int(exposed.sum()), tasks.rank,
    )  # fmt: skip


def _streams(
    run: RunTasks, tasks: RankTasks, exposed: Array, of_rank: tuple[Union, Union]
) -> Iterable[tuple[Any, ...]]:
    """Yield a row for each stream of a rank, with its busy time as the seventh value.

    `both` is its time beside the other kind on its rank.
    """
    for stream in sorted(np.unique(tasks.stream).tolist(), key=run.streams.__getitem__):
        mine = tasks.stream == stream
        computing, talking = unions = _of_rank(tasks, mine)
        both = int(of_rank[1].within(computing.start_ps, computing.end_ps).sum())
        both += int(of_rank[0].within(talking.start_ps, talking.end_ps).sum())
        busy = Union(
            *(np.concatenate([getattr(u, side) for u in unions]) for side in ("start_ps", "end_ps"))
        )
        yield (
            "stream", f"{tasks.rank} {run.streams[stream]}", 1, computing.length_ps,
            talking.length_ps, both, busy.length_ps, int(exposed[mine].sum()), tasks.rank,
        )  # fmt: skip


def _call_names(traced: Traced) -> list[str]:
    """Return the names of all collectives."""
    names = traced.inputs.texts("calls/operation")
    return [f"{call} {name}" for call, name in enumerate(names)]


@dataclass(slots=True)
class _Shared:
    """Communication of one name: ranks, time and exposed time [ps], and its worst rank."""

    ranks: int = 0
    talk_ps: int = 0
    exposed_ps: int = 0
    worst: tuple[int, int] = (-1, 0)


def _share(shared: dict[int, _Shared], tasks: RankTasks, exposed: Array, keys: Array) -> None:
    """Add the communication of a rank by some key."""
    talking = np.flatnonzero(tasks.communicates & (keys >= 0))
    different, index = np.unique(keys[talking], return_inverse=True)
    talk, bare = (np.zeros(len(different), np.int64) for _ in "tb")
    np.add.at(talk, index, tasks.end_ps[talking] - tasks.moves_ps[talking])
    np.add.at(bare, index, exposed[talking])
    for key, length, shown in zip(different.tolist(), talk.tolist(), bare.tolist(), strict=True):
        entry = shared.setdefault(key, _Shared())
        entry.ranks += 1
        entry.talk_ps += length
        entry.exposed_ps += shown
        if shown > entry.worst[0]:
            entry.worst = shown, tasks.rank


def _grouped(shared: dict[int, _Shared], level: str, names: Sequence[str]) -> list[tuple[Any, ...]]:
    """Return a row for each key of communication, most exposed first."""
    rows = []
    for key, total in shared.items():
        hidden, count = total.talk_ps - total.exposed_ps, total.ranks
        times = (total.talk_ps // count, hidden // count, 0, total.exposed_ps // count)
        rows.append((level, names[key], count, 0, *times, total.worst[1]))
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
    shown = [row for row in rows if row[0] == "name" and row[7] > 0]
    if shown:
        notes.append(f"most exposed: {shown[0][1]}, {format_time(shown[0][7])} per rank")
    return notes
