"""The timeline: tasks on lanes, one lane for each stream of a rank, and how ranks spent their time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clusim.analysis.intervals import Union
from clusim.result import Result

__all__ = ["KINDS", "Bars", "Lanes", "Schedule", "Shares", "lanes_of", "shares_of", "window"]

Array = NDArray[Any]

Schedule = Mapping[str, Array | list[str]]
"""Columns of a schedule, as a trace has them."""

KINDS = ("compute", "communication", "pause", "marker")
"""Kinds of tasks as pictures tell them apart."""

_KIND_OF = {"kernel": 0, "program": 1, "delay": 2, "marker": 3}


@dataclass(frozen=True, slots=True)
class Lanes:
    """Tasks that started, by start.

    Attributes
    ----------
    ranks, streams : list
        Rank and stream of every lane.
    names : list of str
        Distinct names of tasks.
    lane, kind, name, call : ndarray, shape (tasks,)
        Indices; `call` is the collective it belongs to, or -1.
    start_ps, end_ps : ndarray, shape (tasks,)
        Times [ps]; of a task that had not ended, the end of the run.
    """

    ranks: list[int]
    streams: list[str]
    names: list[str]
    lane: Array
    kind: Array
    name: Array
    call: Array
    start_ps: Array
    end_ps: Array


@dataclass(frozen=True, slots=True)
class Bars:
    """What a timeline draws: tasks, or runs of tasks too short to be seen alone (`count` of them)."""

    lane: Array
    kind: Array
    name: Array
    start_ps: Array
    end_ps: Array
    count: Array


@dataclass(frozen=True, slots=True)
class Shares:
    """How ranks spent the run [ps], shape (ranks,): the four parts add up to it."""

    ranks: list[int]
    compute: Array
    both: Array
    exposed: Array
    idle: Array


def lanes_of(result: Result, schedule: Schedule) -> Lanes:
    """Return the lanes of a run; none if its trace does not say where tasks ran."""
    if "tasks/rank" not in schedule or not len(result.tasks.names):
        nothing = np.zeros(0, np.int64)
        return Lanes([], [], [], *[nothing] * 6)
    rank, stream = np.asarray(schedule["tasks/rank"], np.int64), list(schedule["tasks/stream"])
    streams = list(dict.fromkeys(stream))
    place = {name: i for i, name in enumerate(streams)}
    key = rank * len(streams) + np.array([place[name] for name in stream], np.int64)
    used, lane = np.unique(key, return_inverse=True)
    names = list(dict.fromkeys(result.tasks.names))
    number = {name: i for i, name in enumerate(names)}
    start, end = result.tasks.start_ps, result.tasks.end_ps
    order = np.flatnonzero(start >= 0)
    order = order[np.argsort(start[order], kind="stable")]
    kind = np.array([_KIND_OF.get(str(k), 2) for k in schedule["tasks/kind"]], np.int64)
    name = np.array([number[n] for n in result.tasks.names], np.int64)
    return Lanes(
        [int(k) // len(streams) for k in used],
        [streams[int(k) % len(streams)] for k in used],
        names,
        lane[order],
        kind[order],
        name[order],
        np.asarray(schedule["tasks/call"], np.int64)[order],
        start[order],
        np.where(end[order] < 0, result.time_ps, end[order]),
    )


def window(lanes: Lanes, from_ps: int, until_ps: int, columns: int) -> Bars:
    """Return what can be seen between two times [ps] at `columns` columns: at most a few bars for each and lane."""
    seen = np.flatnonzero((lanes.start_ps < until_ps) & (lanes.end_ps >= from_ps))
    start, end = lanes.start_ps[seen], lanes.end_ps[seen]
    pixel_ps = max(1.0, (until_ps - from_ps) / columns)
    # A lane's bars of one kind that end in the column they start in become one bar.
    column = ((start - from_ps) // pixel_ps).astype(np.int64)
    short = (end - start) < pixel_ps
    key = np.where(
        short, (lanes.lane[seen] * 4 + lanes.kind[seen]) * (columns + 2) + column + 1, -1
    )
    order = np.lexsort((start, key))
    fresh = np.ones(len(order), bool)
    sorted_key = key[order]
    fresh[1:] = (sorted_key[1:] != sorted_key[:-1]) | (sorted_key[1:] < 0)
    first = np.flatnonzero(fresh)
    if not len(first):
        nothing = np.zeros(0, np.int64)
        return Bars(*[nothing] * 6)
    head = seen[order[first]]
    return Bars(
        lanes.lane[head],
        lanes.kind[head],
        lanes.name[head],
        np.minimum.reduceat(start[order], first),
        np.maximum.reduceat(end[order], first),
        np.diff(np.append(first, len(order))),
    )


def shares_of(lanes: Lanes, time_ps: int) -> Shares:
    """Return how every rank spent the run; nothing if nothing ran on a compute or communication stream."""
    ranks = sorted(set(lanes.ranks))
    rank_of = np.array(lanes.ranks, np.int64)[lanes.lane] if len(lanes.lane) else lanes.lane
    rows = []
    for rank in ranks:
        mine = rank_of == rank
        computing, talking = (_of_kind(lanes, mine, kind) for kind in (0, 1))
        overlap = int(computing.within(talking.start_ps, talking.end_ps).sum())
        rows.append((computing.length_ps - overlap, overlap, talking.length_ps - overlap))
    table = np.array(rows, np.int64).reshape(-1, 3)
    compute, both, exposed = table.T
    return Shares(ranks, compute, both, exposed, time_ps - table.sum(axis=1))


def _of_kind(lanes: Lanes, mine: Array, kind: int) -> Union:
    """Return when tasks of a kind ran."""
    wanted = mine & (lanes.kind == kind)
    return Union(lanes.start_ps[wanted], lanes.end_ps[wanted])
