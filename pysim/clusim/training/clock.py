"""Schedule builder that computes the end of each task at once, from simulated parts.

**Model** Tasks of a rank and stream run in order, and wait for their dependencies, as in the engine. A kernel
concurrent with communication progresses at the reduced rate that the engine found for this communication.
**Not modelled** Slow-down of communication by other communication.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from clusim.collectives import ScheduleBuilder
from clusim.results.replicated import MOVING, RankPattern, dimension_of
from clusim.schedule.ir import Task
from clusim.topology.model import Fabric
from clusim.training.breakdown import Spans
from clusim.workload.host import HOST_STREAM


class PhaseTime(NamedTuple):
    """Simulated part: its time [ps], and the relative rate of concurrent kernels."""

    time_ps: int
    share: float = 1.0


@dataclass(frozen=True, eq=False)
class Repeated:
    """Repeated work of a rank: kernel time with and without communication [ps], operations."""

    pattern: RankPattern
    kernel_ps: int
    alone_ps: int
    flops: int


Pairs = list[tuple[int, int]]


@dataclass
class RankRows:
    """Work of a rank as intervals [ps], `moving` with a dimension; `again` contains the starts of repetitions."""

    compute: Pairs = field(default_factory=list)
    moving: list[tuple[int, int, int]] = field(default_factory=list)
    issuing: Pairs = field(default_factory=list)
    again: dict[Repeated, list[int]] = field(default_factory=dict)

    def spans(self) -> Spans:
        """Return the intervals for a breakdown."""
        compute, moving, issuing = (
            np.array(rows, np.int64).reshape(-1, width)
            for rows, width in ((self.compute, 2), (self.moving, 3), (self.issuing, 2))
        )
        again = [(np.array(starts, np.int64), done.pattern) for done, starts in self.again.items()]
        return Spans(compute, moving, moving, again, issuing)


class Clock(ScheduleBuilder):
    """Schedule builder that keeps the end times of tasks instead of the tasks.

    Attributes
    ----------
    end : list of int
        End of each task [ps].
    passes : list of int
        End of each pass of a microbatch [ps].
    kernel_ps, alone_ps : int
        Time of all kernels except the repetitions of `again`, with and without slow-down by communication [ps].
    """

    def __init__(self, fabric: Fabric, name: str) -> None:
        super().__init__(fabric, name)
        self.end: list[int] = []
        self.passes: list[int] = []
        self.rows: dict[int, RankRows] = defaultdict(RankRows)
        self.kernel_ps = self.alone_ps = 0
        self._hosts: set[int] = set()
        self._beside: dict[int, list[tuple[int, int, float]]] = {}
        self._until: dict[int, int] = {}

    def when(self, tasks: Iterable[int]) -> int:
        """Return the end of the last of some tasks [ps]."""
        latest = 0
        for task in tasks:
            if self.end[task] > latest:
                latest = self.end[task]
        return latest

    def ready(self, rank: int, after: Iterable[int]) -> int:
        """Return the earliest start of a rank's kernel after some tasks [ps]."""
        return self.when((*self._last.get((rank, "compute"), ()), *after))

    def disturbed(self, rank: int, at_ps: int) -> bool:
        """Return True if communication slows kernels of a rank at `at_ps` or later."""
        return self._until.get(rank, 0) > at_ps

    def _append(self, task: Task) -> int:
        """Add a task with complete dependencies, and compute its end."""
        start, index, rows = self.when(task.deps), len(self.end), self.rows[task.rank]
        end = start + task.delay_ps
        if task.stream == HOST_STREAM:
            self._hosts.add(index)
        elif self._hosts:
            self._issued(task.deps, rows)
        if task.kind == "kernel":
            end = self._slowed(task.rank, start, task.compute_ps)
            rows.compute.append((start, end))
            self.kernel_ps += end - start
            self.alone_ps += task.compute_ps
        elif task.stream.endswith(MOVING):
            rows.moving.append((start, end, dimension_of(task.stream)))
        if task.kind in ("kernel", "delay"):
            self._passed(task.name, end)
        self._last[task.rank, task.stream] = (index,)
        self.end.append(end)
        return index

    def _passed(self, name: str, end: int) -> None:
        if name[:1] in "FBW":
            self.passes.append(end)

    def _issued(self, deps: Iterable[int], rows: RankRows) -> None:
        """Record the interval in which a task with these dependencies waited only for its host."""
        issued = self.when(d for d in deps if d in self._hosts)
        ready = self.when(d for d in deps if d not in self._hosts)
        if issued > ready:
            rows.issuing.append((ready, issued))

    def _slowed(self, rank: int, start: int, work_ps: int) -> int:
        """Return the end of a kernel that lasts `work_ps` if undisturbed."""
        concurrent = [span for span in self._beside.get(rank, ()) if span[1] > start]
        if not concurrent:
            return start + work_ps
        # Kernels of a rank run in order: intervals before this start affect no later kernel.
        self._beside[rank] = concurrent
        at, left = start, float(work_ps)
        for edge in sorted(
            {edge for low, high, _ in concurrent for edge in (low, high) if edge > start}
        ):
            share = 1.0
            for low, high, part in concurrent:
                if low <= at < high:
                    share *= part
            if left <= (edge - at) * share:
                return at + round(left / share)
            at, left = edge, left - (edge - at) * share
        return at + round(left)

    def move(
        self,
        ranks: Sequence[int],
        stream: str,
        took: PhaseTime,
        after: Mapping[int, tuple[int, ...]],
    ) -> dict[int, tuple[int, ...]]:
        """Add joint communication of ranks on a stream; return the task of each."""
        start, ends, dimension = 0, self.end, dimension_of(stream)
        for rank in ranks:
            for tasks in (self._last.get((rank, stream), ()), after.get(rank, ())):
                for task in tasks:
                    if ends[task] > start:
                        start = ends[task]
        end = start + took.time_ps
        result: dict[int, tuple[int, ...]] = {}
        for rank in ranks:
            index, rows = len(ends), self.rows[rank]
            if self._hosts:
                self._issued(self._waits(rank, stream, after.get(rank, ())), rows)
            rows.moving.append((start, end, dimension))
            if took.share < 1:
                self._beside.setdefault(rank, []).append((start, end, took.share))
                self._until[rank] = max(end, self._until.get(rank, 0))
            ends.append(end)
            self._last[rank, stream] = (index,)
            result[rank] = (index,)
        return result

    def again(self, rank: int, done: Repeated, name: str, start: int) -> int:
        """Repeat earlier work of a rank at a time at which it is `ready`."""
        end, index = start + done.pattern.end_ps, len(self.end)
        self.rows[rank].again.setdefault(done, []).append(start)
        self._passed(name, end)
        self.end.append(end)
        self._last[rank, "compute"] = (index,)
        return index
