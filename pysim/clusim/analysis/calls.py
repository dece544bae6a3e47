"""Collectives of a run: time, bandwidth, and the bound of the busiest wire."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from clusim.analysis.critical import Traced, open_traced
from clusim.analysis.overlap import exposed_ps
from clusim.analysis.tablejson import CollectiveRowJson
from clusim.analysis.tasks import RankTasks, RunTasks, run_tasks
from clusim.base.arrays import Array
from clusim.base.tables import ColumnTable
from clusim.base.terms.operations import bus_factor
from clusim.base.units import format_time
from clusim.engine.abi import NEVER
from clusim.results.bins import Usage


def collectives(path: str | Path) -> ColumnTable:
    """Return a row for each collective call, in the order of start.

    The time is from the start of the first rank to the end of the last; `skew_ps` is the delay of the last rank's
    start. Bandwidths use the time from that last start: early ranks only wait. `limit` is the busiest wire in that
    time (including traffic of other calls), `limit_busy` its utilisation, and `bound_GBps` the bus bandwidth if it
    were never idle; all bandwidths are 0 for a call that did not end. `exposed_ps` is the mean over the ranks.

    Calls of replicated blocks, each as long as the simulated call, are one row with the number of `times`. Start and
    end are taken from the first, and their wires are not distinguished.
    """
    traced = open_traced(path)
    result, run = traced.result, run_tasks(traced)
    usage = Usage(result.bins, traced.network.image["endpoints"]["mem_cost16"])
    used = np.flatnonzero(result.wires.counters["packets"] > 0)
    calls = list(_collectives_of(traced))
    first_starts = _Seen(run, len(calls))
    rows: list[tuple[Any, ...]] = []
    for call in np.flatnonzero(first_starts.count).tolist():
        call_info = calls[call]
        start, end, late = (
            int(times[call])
            for times in (first_starts.start, first_starts.end, first_starts.late)
        )
        time, skew = end - start, late - start
        joint_ps = time - skew
        done = bool(first_starts.count[call] % call_info.tasks == 0) and bool(
            first_starts.ended[call]
        )
        algbw = call_info.bytes * 1000 / joint_ps if joint_ps and done else 0.0
        busbw = algbw * bus_factor(call_info.operation, call_info.ranks)
        limit, busy = "", 0.0
        if len(used) and joint_ps and call < run.calls:
            uses = usage.of("wire", used, start + skew, end)
            limit, busy = (
                result.wires.names[int(used[np.argmax(uses)])],
                float(uses.max()),
            )
        rows.append(
            (
                call,
                call_info.operation,
                call_info.algorithm,
                call_info.protocol,
                call_info.dtype,
                call_info.bytes,
                call_info.ranks,
                call_info.channels,
                run.streams[int(first_starts.stream[call])],
                int(first_starts.count[call]) // call_info.tasks or 1,
                start,
                end,
                time,
                skew,
                algbw,
                busbw,
                limit,
                busy,
                busbw / busy if busy else 0.0,
                round(float(first_starts.exposed[call] / first_starts.count[call])),
            )
        )
    rows.sort(key=lambda row: (row[10], row[0]))
    times = sum(row[9] for row in rows)
    facts = traced.facts | {"collectives": times}
    return ColumnTable.of(
        CollectiveRowJson.__annotations__, rows, facts, _notes(rows)
    )


class _Asked(NamedTuple):
    """Requested collective, and its number of tasks."""

    operation: str
    algorithm: str
    protocol: str
    dtype: str
    bytes: int
    channels: int
    ranks: int
    tasks: int


def _collectives_of(traced: Traced) -> Iterator[_Asked]:
    """Yield the collectives of the schedule."""
    inputs = traced.inputs
    texts = [inputs.texts(f"calls/{name}") for name in _Asked._fields[:4]]
    numbers = [
        inputs.numbers(f"calls/{name}").tolist() for name in ("bytes", "channels")
    ]
    ranks, called = (
        np.diff(inputs.numbers("calls/ranks_off")),
        inputs.numbers("tasks/call"),
    )
    tasks = np.bincount(called[called >= 0], minlength=len(ranks))
    # Those of replicated blocks have a task per rank.
    tasks = np.where(tasks == 0, ranks, tasks)
    yield from map(_Asked, *texts, *numbers, ranks.tolist(), tasks.tolist())


class _Seen:
    """Times of the tasks of every collective; for a repeated block, of its first occurrence."""

    def __init__(self, run: RunTasks, calls: int) -> None:
        self.count, self.exposed, self.stream = (
            np.zeros(calls, np.int64) for _ in "ces"
        )
        self.ended = np.ones(calls, bool)
        self.start = np.full(calls, NEVER)
        self.late, self.end = (
            np.full(calls, -1, np.int64),
            np.full(calls, -1, np.int64),
        )
        for tasks in run:
            in_call = np.flatnonzero(tasks.call >= 0)
            call = tasks.call[in_call]
            np.add.at(self.count, call, 1)
            np.add.at(self.exposed, call, exposed_ps(tasks)[in_call])
            self.ended[call[~tasks.ended[in_call]]] = False
            # By start, so that the first repetition of a block precedes the others.
            different, index, back = np.unique(
                call, return_index=True, return_inverse=True
            )
            same = tasks.pause[in_call] == tasks.pause[in_call][index][back]
            self._first(tasks, in_call[same | (call < run.calls)], run.calls)
            self.stream[different] = tasks.stream[in_call[index]]

    def _first(self, tasks: RankTasks, rows: Array, written: int) -> None:
        """See the tasks of the first time that a rank does each collective."""
        call, start, end = tasks.call[rows], tasks.start_ps[rows], tasks.end_ps[rows]
        # Blocks found on other ranks may be earlier or later repetitions.
        repeated = (call >= written) & (self.end[call] >= 0)
        earlier = repeated & (end <= self.start[call])
        is_new = ~(repeated & (start >= self.end[call])) | earlier
        gone = call[earlier]
        self.late[gone] = self.end[gone] = -1
        self.start[gone] = NEVER
        np.minimum.at(self.start, call[is_new], start[is_new])
        np.maximum.at(self.late, call[is_new], start[is_new])
        np.maximum.at(self.end, call[is_new], end[is_new])


def _notes(rows: list[tuple[Any, ...]]) -> list[str]:
    if not rows:
        return ["no collectives in the run"]
    row = max(rows, key=lambda item: (item[12], -item[0]))
    if not row[15]:
        return [
            f"the longest is call {row[0]}, {row[1]} over {row[6]} ranks: {format_time(row[12])} so far; it did not"
            " end, or moves no data"
        ]
    text = (
        f"the longest is call {row[0]}, {row[1]} over {row[6]} ranks: {format_time(row[12])}, {row[15]:.2f} GB/s of bus"
        " bandwidth"
    )
    return [
        f"{text}, {row[17]:.1%} of the limit of its busiest wire {row[16]}"
        if row[16]
        else text
    ]
