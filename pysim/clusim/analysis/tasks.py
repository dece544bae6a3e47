"""Tasks of a run by rank, as columns: kind, collective, times.

Replicated blocks replace their pauses.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from clusim.analysis.critical import Traced
from clusim.base.arrays import Array
from clusim.base.errors import TraceError
from clusim.results.intervals import Union
from clusim.results.replicated import KINDS, NO_BLOCKS, is_moving
from clusim.results.result import Result

Columns = Mapping[str, Array | list[str]]

KERNEL = KINDS.index("kernel")


@dataclass(frozen=True, slots=True)
class RankTasks:
    """Tasks of a rank that started, one element each.

    Attributes
    ----------
    communicates : ndarray of bool
        True for programs, and for pauses that represent moving data.
    number : ndarray
        Number of the task in the schedule; tasks of replicated blocks are numbered after them.
    pause : ndarray
        Number of the pause of its block, or of the task itself.
    call : ndarray
        Collective call, or -1; calls of replicated blocks are numbered after the calls of the schedule.
    kind, stream, name : ndarray
        Rows of `clusim.results.replicated.KINDS`, `RunTasks.streams` and `RunTasks.names`.
    start_ps, moves_ps, end_ps : ndarray
        Times [ps]; data of a collective move from the start of its last rank; an unfinished task has the end of the
        run.
    ended : ndarray of bool
        True if the task ended.
    """

    rank: int
    communicates: Array
    number: Array
    pause: Array
    call: Array
    kind: Array
    stream: Array
    name: Array
    start_ps: Array
    moves_ps: Array
    end_ps: Array
    ended: Array

    @property
    def computes(self) -> Array:
        """Mask of kernels."""
        return np.asarray(self.kind == KERNEL)

    def computing(self, mine: Any = True) -> Union:
        """Return when kernels run, of all tasks or of a mask."""
        chosen = self.computes & mine
        return Union(self.start_ps[chosen], self.end_ps[chosen])

    def talking(self, mine: Any = True) -> Union:
        """Return when data move, of all tasks or of a mask."""
        chosen = self.communicates & mine
        return Union(self.moves_ps[chosen], self.end_ps[chosen])


class RunTasks:
    """Tasks of a run, assembled for one rank at a time.

    Attributes
    ----------
    ranks : list of int
        Ranks that have tasks.
    streams, names : list of str
        Distinct streams and names.
    calls : int
        Collectives of the schedule; collectives of replicated blocks are numbered from there.
    """

    def __init__(self, result: Result, schedule: Columns) -> None:
        tasks, blocks = result.tasks, result.tasks.blocks or NO_BLOCKS
        numbers = {kind: number for number, kind in enumerate(KINDS)}
        kind = np.array([numbers[str(k)] for k in schedule["tasks/kind"]], np.int64)
        call = np.asarray(schedule["tasks/call"], np.int64)
        self.calls = int(call.max(initial=-1)) + 1
        streams = [str(name) for name in schedule["tasks/stream"]]
        self.streams, (stream, stream_of_blocks) = _number_texts(
            streams, blocks.streams
        )
        self.names, (name, name_of_blocks) = _number_texts(tasks.names, blocks.names)
        start, begun = tasks.start_ps, tasks.start_ps[blocks.pause]
        self._columns = [
            np.append(*columns)
            for columns in (
                (np.arange(len(kind)), blocks.pause),
                (call, blocks.call),
                (kind, blocks.kind),
                (stream, stream_of_blocks[blocks.stream]),
                (name, name_of_blocks[blocks.name]),
                (start, begun + blocks.start),
                (self._starts_of_calls(call, start), begun + blocks.moves),
                (
                    np.where(tasks.end_ps < 0, result.time_ps, tasks.end_ps),
                    np.minimum(begun + blocks.end, result.time_ps),
                ),
                (tasks.end_ps >= 0, tasks.end_ps[blocks.pause] >= 0),
            )
        ]
        self._rank = np.append(
            np.asarray(schedule["tasks/rank"], np.int64), blocks.rank
        )
        self._written = np.ones(len(self._rank), bool)
        self._written[blocks.pause] = False
        order = np.flatnonzero(self._written & (np.append(start, begun) >= 0))
        self._order = order[np.argsort(self._rank[order], kind="stable")]
        self.ranks = np.unique(self._rank).tolist()
        self._first = np.searchsorted(
            self._rank[self._order], np.arange(max(self.ranks, default=0) + 2)
        )

    def _starts_of_calls(self, call: Array, start: Array) -> Array:
        """Return for every task when its data begin to move [ps]."""
        last = np.full(self.calls, -1, np.int64)
        within = call >= 0
        np.maximum.at(last, call[within], start[within])
        return np.where(within, last[call] if self.calls else start, start)

    def __iter__(self) -> Iterator[RankTasks]:
        """Yield the tasks of every rank."""
        return map(self.of, self.ranks)

    def lanes(self) -> list[tuple[int, int]]:
        """Return the rank and the stream of every lane on which something runs, in their order."""
        count = max(1, len(self.streams))
        lanes = self._rank[self._written] * count + self._columns[3][self._written]
        return [divmod(key, count) for key in np.unique(lanes).tolist()]

    def of(self, rank: int) -> RankTasks:
        """Return the tasks of a rank by start."""
        rows = self._order[self._first[rank] : self._first[rank + 1]]
        rows = rows[np.argsort(self._columns[5][rows], kind="stable")]
        pause, call, kind, stream, name, start, moves, end, ended = (
            column[rows] for column in self._columns
        )
        moving = is_moving(kind, stream, self.streams)
        times = np.minimum(start, end), np.minimum(moves, end), end, ended
        return RankTasks(rank, moving, rows, pause, call, kind, stream, name, *times)


def _number_texts(*texts: Sequence[str]) -> tuple[list[str], list[Array]]:
    """Return distinct texts, and for each of some columns of texts their numbers."""
    numbers = {
        text: number
        for number, text in enumerate(
            dict.fromkeys(t for column in texts for t in column)
        )
    }
    return list(numbers), [
        np.array([numbers[text] for text in column], np.int64) for column in texts
    ]


def run_tasks(traced: Traced) -> RunTasks:
    """Return the tasks of a trace; raises `TraceError` if it is one of synthetic traffic."""
    if not traced.result.tasks.names:
        raise TraceError(
            f"{traced.path}: no tasks; it is a trace of synthetic traffic"
        )
    return RunTasks(traced.result, traced.inputs.schedule)
