"""Timeline: tasks on lanes, one per stream of a rank, and the time of ranks by use."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from clusim.analysis.tasks import RunTasks
from clusim.base.arrays import Array
from clusim.results.intervals import Union
from clusim.results.result import Result

Schedule = Mapping[str, Array | list[str]]
"""Columns of a schedule, as a trace has them."""

KINDS = ("compute", "communication", "pause", "marker")
"""Kinds of tasks in pictures, in the order of `clusim.results.replicated.KINDS`."""


@dataclass(frozen=True, slots=True)
class LaneTasks:
    """Tasks that started, by start.

    Attributes
    ----------
    lane, kind, name : ndarray, shape (tasks,)
        Rows of `Lanes.ranks`, of `KINDS` and of `Lanes.names`.
    start_ps, moves_ps, end_ps : ndarray, shape (tasks,)
        Times [ps]; data of a communication move once its last rank has arrived; an unfinished task ends at
        the end of the run.
    """

    lane: Array
    kind: Array
    name: Array
    start_ps: Array
    moves_ps: Array
    end_ps: Array


@dataclass(frozen=True, slots=True)
class Lanes:
    """Timeline of a run, with replicated blocks in place of their pauses.

    Attributes
    ----------
    ranks, streams : list
        Rank and stream of every lane.
    names : list of str
        Distinct names of tasks.
    tasks : iterable of LaneTasks
        Tasks of every rank, assembled on demand.
    """

    ranks: list[int]
    streams: list[str]
    names: list[str]
    tasks: Iterable[LaneTasks]


@dataclass(frozen=True, slots=True)
class Bars:
    """Bars of a timeline: tasks, or groups of `count` tasks too short to be visible."""

    lane: Array
    kind: Array
    name: Array
    start_ps: Array
    end_ps: Array
    count: Array


@dataclass(frozen=True, slots=True)
class Shares:
    """Time of ranks by use [ps], shape (ranks,): the four parts add up to the run."""

    ranks: list[int]
    compute: Array
    both: Array
    exposed: Array
    idle: Array


def lanes_of(result: Result, schedule: Schedule) -> Lanes:
    """Return the lanes of a run; empty if its trace does not record the place of tasks."""
    if "tasks/rank" not in schedule or not len(result.tasks.names):
        return Lanes([], [], [], ())
    run = RunTasks(result, schedule)
    lanes = run.lanes()
    streams = [run.streams[stream] for _, stream in lanes]
    return Lanes(
        [rank for rank, _ in lanes], streams, run.names, _TasksOfLanes(run, lanes)
    )


class _TasksOfLanes:
    """The tasks of a run by rank, on its lanes."""

    def __init__(self, run: RunTasks, lanes: Sequence[tuple[int, int]]) -> None:
        self._run = run
        self._key = np.array(
            [rank * len(run.streams) + stream for rank, stream in lanes], np.int64
        )

    def __iter__(self) -> Iterator[LaneTasks]:
        for tasks in self._run:
            key = tasks.rank * len(self._run.streams) + tasks.stream
            kind = np.where(
                tasks.communicates, KINDS.index("communication"), tasks.kind
            )
            lane = np.searchsorted(self._key, key)
            times = tasks.start_ps, tasks.moves_ps, tasks.end_ps
            yield LaneTasks(lane, kind, tasks.name, *times)


def window(lanes: Lanes, from_ps: int, until_ps: int, columns: int) -> Bars:
    """Return the visible bars between two times [ps] at `columns` columns.

    Each lane has at most a few bars per column.
    """
    bars = [
        _visible_bars(tasks, from_ps, until_ps, columns) for tasks in lanes.tasks
    ]
    nothing = [np.zeros(0, np.int64)] * 6
    return Bars(*map(np.concatenate, zip(nothing, *bars, strict=True)))


def _visible_bars(
    lanes: LaneTasks, from_ps: int, until_ps: int, columns: int
) -> list[Array]:
    """Return the columns of the bars of some tasks."""
    visible = np.flatnonzero((lanes.start_ps < until_ps) & (lanes.end_ps >= from_ps))
    start, end = lanes.start_ps[visible], lanes.end_ps[visible]
    pixel_ps = max(1.0, (until_ps - from_ps) / columns)
    # A lane's bars of one kind that end in the column they start in become one bar.
    column = ((start - from_ps) // pixel_ps).astype(np.int64)
    short = (end - start) < pixel_ps
    key = np.where(
        short,
        (lanes.lane[visible] * 4 + lanes.kind[visible]) * (columns + 2) + column + 1,
        -1,
    )
    order = np.lexsort((start, key))
    fresh = np.ones(len(order), bool)
    sorted_key = key[order]
    fresh[1:] = (sorted_key[1:] != sorted_key[:-1]) | (sorted_key[1:] < 0)
    first = np.flatnonzero(fresh)
    if not len(first):
        return [np.zeros(0, np.int64)] * 6
    head = visible[order[first]]
    return [
        lanes.lane[head],
        lanes.kind[head],
        lanes.name[head],
        np.minimum.reduceat(start[order], first),
        np.maximum.reduceat(end[order], first),
        np.diff(np.append(first, len(order))),
    ]


def shares_of(lanes: Lanes, time_ps: int) -> Shares:
    """Return the time of every rank by use; empty without compute or communication streams."""
    ranks, rows = [], []
    for tasks in lanes.tasks:
        if not len(tasks.lane):
            continue
        ranks.append(lanes.ranks[int(tasks.lane[0])])
        computes, talks = (
            tasks.kind == KINDS.index(kind) for kind in ("compute", "communication")
        )
        computing = Union(tasks.start_ps[computes], tasks.end_ps[computes])
        talking = Union(tasks.moves_ps[talks], tasks.end_ps[talks])
        overlap = computing.shared_ps(talking)
        rows.append(
            (computing.length_ps - overlap, overlap, talking.length_ps - overlap)
        )
    table = np.array(rows, np.int64).reshape(-1, 3)
    compute, both, exposed = table.T
    return Shares(ranks, compute, both, exposed, time_ps - table.sum(axis=1))
