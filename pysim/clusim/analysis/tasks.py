"""Tasks of a run by rank, as columns: kind, collective, times.

Replicated blocks replace their pauses.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clusim.analysis.critical import Traced
from clusim.base.errors import TraceError
from clusim.results.replicated import KINDS, MOVING, OWN_NAME, SUFFIX
from clusim.results.result import Result

Array = NDArray[Any]

Columns = Mapping[str, Array | list[str]]

KERNEL, PROGRAM, DELAY = (KINDS.index(kind) for kind in ("kernel", "program", "delay"))


@dataclass(frozen=True, slots=True)
class RankTasks:
    """Tasks of a rank that started, one element each.

    Attributes
    ----------
    communicates : ndarray of bool
        True for programs, and for pauses that represent moving data.
    number : ndarray
        Number of the task in the schedule; in a replicated block the number of its pause.
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


class RunTasks:
    """Tasks of a run, assembled for one rank at a time.

    Parameters
    ----------
    by_place : bool
        True to number the collectives of replicated blocks separately for every place; otherwise places share them.

    Attributes
    ----------
    ranks : list of int
        Ranks that have tasks.
    streams, names : list of str
        Distinct streams and names.
    calls : int
        Collectives of the schedule; collectives of replicated blocks are numbered from there.
    """

    def __init__(self, result: Result, schedule: Columns, *, by_place: bool = False) -> None:
        tasks = result.tasks
        self._tasks, self._folded, self._end_ps = tasks, tasks.folded, result.time_ps
        self._rank = np.asarray(schedule["tasks/rank"], np.int64)
        self._call = np.asarray(schedule["tasks/call"], np.int64)
        self.calls = len(schedule["calls/operation"])
        known = {kind: number for number, kind in enumerate(KINDS)}
        self._kind = np.array([known[str(k)] for k in schedule["tasks/kind"]], np.int64)
        folded, self._by_place = self._folded, by_place
        self.streams, (self._stream, self._own_stream) = _numbered(
            [str(name) for name in schedule["tasks/stream"]], folded.stream if folded else []
        )
        plain = [name.removesuffix(SUFFIX) for name in tasks.names] if folded else tasks.names
        self.names, (self._name, self._own_name) = _numbered(plain, folded.name if folded else [])
        self._paces = np.array([name.endswith(MOVING) for name in self.streams], bool)
        self._moves = self._starts_of_calls()
        self._written = np.ones(len(self._rank), bool)
        if folded is not None:
            self._written[folded.pauses_task] = False
        order = np.flatnonzero(self._written & (tasks.start_ps >= 0))
        self._order = order[np.argsort(self._rank[order], kind="stable")]
        simulated = set(np.unique(self._rank).tolist())
        self.ranks = sorted(simulated | set(folded.of_rank if folded is not None else ()))
        self._first = np.searchsorted(
            self._rank[self._order], np.arange(max(self.ranks, default=0) + 2)
        )

    def _starts_of_calls(self) -> Array:
        """Return for every task when its data begin to move [ps]."""
        start = self._tasks.start_ps
        last = np.full(self.calls, -1, np.int64)
        within = self._call >= 0
        np.maximum.at(last, self._call[within], start[within])
        return np.where(within, last[self._call] if self.calls else start, start)

    def __iter__(self) -> Iterator[RankTasks]:
        """Yield the tasks of every rank."""
        return map(self.of, self.ranks)

    def lanes(self) -> list[tuple[int, int]]:
        """Return the rank and the stream of every lane on which something runs, in their order."""
        many = max(1, len(self.streams))
        result = set(
            np.unique(self._rank[self._written] * many + self._stream[self._written]).tolist()
        )
        for rank, places in self._folded.of_rank.items() if self._folded is not None else ():
            assert self._folded is not None
            for block in places:
                streams = self._own_stream[self._folded.tasks_stream[self._folded.rows(*block)]]
                result |= {rank * many + stream for stream in streams.tolist()}
        return [divmod(key, many) for key in sorted(result)]

    def of(self, rank: int) -> RankTasks:
        """Return the tasks of a rank by start."""
        rows = self._order[self._first[rank] : self._first[rank + 1]]
        start, end = self._tasks.start_ps[rows], self._tasks.end_ps[rows]
        ended = end >= 0
        end = np.where(ended, end, self._end_ps)
        columns = [
            [rows, self._call[rows], self._kind[rows], self._stream[rows], self._name[rows]],
            [start, np.minimum(self._moves[rows], end), end, ended],
        ]
        parts = [[*columns[0], *columns[1]], *self._of_blocks(rank)]
        result = [np.concatenate(column) for column in zip(*parts, strict=True)]
        order = np.argsort(result[5], kind="stable")
        result = [column[order] for column in result]
        kind, stream = result[2], result[3]
        moving = (kind == PROGRAM) | ((kind == DELAY) & self._paces[stream])
        return RankTasks(rank, moving, *result)

    def _of_blocks(self, rank: int) -> Iterator[list[Array]]:
        """Yield the columns of the tasks of a rank in blocks, grouped by place."""
        folded = self._folded
        for place, slot in folded.of_rank.get(rank, ()) if folded is not None else ():
            assert folded is not None
            pauses = folded.by_place[place][:, slot]
            pauses = pauses[self._tasks.start_ps[pauses] >= 0]
            rows = folded.rows(place, slot)
            at = self._tasks.start_ps[pauses][:, None]
            done = np.repeat(self._tasks.end_ps[pauses] >= 0, len(rows))
            own_call = folded.tasks_call[rows]
            off, row = folded.parts_calls_off, int(folded.places_part[place])
            if self._by_place:
                off, row = folded.place_calls_off, place
            first = self.calls + int(off[row])
            call = np.where(own_call < 0, -1, own_call + first)
            name = folded.tasks_name[rows]
            called = np.append(self._own_name, 0)[name]
            names = np.where(name == OWN_NAME, self._name[pauses][:, None], called)
            times = [
                np.minimum(at + column[rows], self._end_ps).ravel()
                for column in (folded.tasks_start, folded.tasks_moves, folded.tasks_end)
            ]
            each = len(pauses)
            yield [
                np.repeat(pauses, len(rows)),
                np.tile(call, each),
                np.tile(folded.tasks_kind[rows], each),
                np.tile(self._own_stream[folded.tasks_stream[rows]], each),
                names.ravel(),
                *times,
                done,
            ]


def _numbered(*texts: Sequence[str]) -> tuple[list[str], list[Array]]:
    """Return distinct texts, and for each of some columns of texts their numbers."""
    known = {
        text: number
        for number, text in enumerate(dict.fromkeys(t for column in texts for t in column))
    }
    return list(known), [np.array([known[text] for text in column], np.int64) for column in texts]


def run_tasks(traced: Traced) -> RunTasks:
    """Return the tasks of a trace; raises `TraceError` if it is one of synthetic traffic."""
    if not traced.result.tasks.names:
        raise TraceError(f"{traced.path}: no tasks; it is a trace of synthetic traffic")
    return RunTasks(traced.result, traced.inputs.schedule)
