"""What every rank did in a window of time: compute, exposed communication, bubble, idle.

A rank *computes* while a kernel of its runs. Communication is *exposed* while data of the rank move, that is from the
moment at which all ranks of a collective or message are there, and no kernel of the rank runs. It *waits for its
host* while neither is so, and what comes next lacks nothing but having been issued. What is left is the *bubble* of
the pipeline until the last pass of any stage is done, and *idle* otherwise: waiting for others.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clusim.schedule.ir import ABSENT, Schedule
from clusim.workload.parallel.fold import Folded, FoldedBlock
from clusim.workload.parallel.issue import STREAM

__all__ = ["NOTHING", "PARTS", "Breakdown", "Spans", "breakdown", "spans_of"]

Array = NDArray[Any]

PARTS = {
    "compute": "compute",
    "exposed": "exposed communication",
    "host": "waiting for the host",
    "bubble": "bubble",
    "idle": "idle",
}
"""What a step divides into: its name, as in `Breakdown.compute_ps`, and words for it."""

MOVING = (" pace", " to host", " from host")
"""Ends of the names of streams whose pauses stand for data that move."""


@dataclass(frozen=True, slots=True)
class Breakdown:
    """How a rank spent a step [ps]; `communication_ps` also counts what kernels hide, `host_ps` waits for the host."""

    rank: int
    compute_ps: int
    exposed_ps: int
    bubble_ps: int
    idle_ps: int
    communication_ps: int
    host_ps: int = 0

    @property
    def total_ps(self) -> int:
        """The whole step [ps]."""
        return self.compute_ps + self.exposed_ps + self.bubble_ps + self.idle_ps + self.host_ps


@dataclass(frozen=True, slots=True)
class Spans:
    """Intervals of a rank [ps], each an array of (start, end); in `issuing` only the host is waited for."""

    compute: Array
    moving: Array
    active: Array
    folded: list[tuple[int, int, Folded]]
    issuing: Array = field(default_factory=lambda: np.zeros((0, 2), np.int64))


_NONE = np.zeros((0, 2), np.int64)
NOTHING = Spans(_NONE, _NONE, _NONE, [])
"""The intervals of a rank without tasks of its own."""


def merge(spans: Array) -> Array:
    """Return the union of intervals as disjoint ones in order."""
    if not len(spans):
        return np.zeros((0, 2), np.int64)
    spans = spans[np.argsort(spans[:, 0], kind="stable")]
    reach = np.maximum.accumulate(spans[:, 1])
    first = np.concatenate(([True], spans[1:, 0] > reach[:-1]))
    starts = spans[first, 0]
    ends = reach[np.concatenate((np.flatnonzero(first)[1:] - 1, [len(spans) - 1]))]
    return np.stack([starts, ends], axis=1)


def length(spans: Array) -> int:
    """Return the length of disjoint intervals."""
    return int((spans[:, 1] - spans[:, 0]).sum()) if len(spans) else 0


def clip(spans: Array, low: int, high: int) -> Array:
    """Return the parts of intervals inside a window."""
    cut = np.clip(spans, low, high)
    return cut[cut[:, 1] > cut[:, 0]]


def covered(spans: Array, others: Array) -> int:
    """Return how much of the union of `spans` is also in `others`."""
    both = length(merge(np.concatenate((spans, others)))) if len(spans) or len(others) else 0
    return length(merge(spans)) + length(merge(others)) - both


def spans_of(
    schedule: Schedule, start_ps: Array, end_ps: Array, folded: Iterable[FoldedBlock] = ()
) -> dict[int, Spans]:
    """Return the intervals of every rank; `folded` are the blocks that pauses stand for."""
    tasks, starts, ends = schedule.tasks, start_ps.tolist(), end_ps.tolist()
    moving: dict[int, int] = {}
    for index, task in enumerate(tasks):
        if task.kind == "program" and task.call != ABSENT:
            moving[task.call] = max(moving.get(task.call, 0), starts[index])
    hosts = {index for index, task in enumerate(tasks) if task.stream == STREAM}
    rows: dict[int, tuple[list[Any], list[Any], list[Any], list[Any], list[Any]]] = {}
    for block in folded:
        for rank, index in block.tasks.items():
            own = rows.setdefault(rank, ([], [], [], [], []))
            if block.message:
                own[1].append((starts[index], ends[index]))
            else:
                own[3].append((starts[index], ends[index], block.found))
    for index, task in enumerate(tasks):
        own = rows.setdefault(task.rank, ([], [], [], [], []))
        low, high = starts[index], ends[index]
        if index in hosts:
            continue
        if hosts:
            issued = max((ends[d] for d in task.deps if d in hosts), default=0)
            ready = max((ends[d] for d in task.deps if d not in hosts), default=0)
            if issued > ready:
                own[4].append((ready, issued))
        if task.kind == "kernel":
            own[0].append((low, high))
        elif task.kind == "program":
            moves = max(low, moving.get(task.call, low))
            own[1].append((min(moves, high), high))
            own[2].append((low, high))
        elif task.stream.endswith(MOVING):
            own[1].append((low, high))
            own[2].append((low, high))
    return {
        rank: Spans(_pairs(own[0]), _pairs(own[1]), _pairs(own[2]), own[3], _pairs(own[4]))
        for rank, own in rows.items()
    }


def _pairs(rows: list[Any]) -> Array:
    return np.array(rows, np.int64).reshape(-1, 2)


def breakdown(
    spans: Mapping[int, Spans], ranks: Sequence[int], low: int, high: int, pipeline_end: int = 0
) -> list[Breakdown]:
    """Return how ranks spent the window; what is left over before `pipeline_end` is the bubble."""
    found = []
    for rank in ranks:
        own = spans.get(rank, NOTHING)
        compute, moving = merge(clip(own.compute, low, high)), merge(clip(own.moving, low, high))
        blocks = [(a, b, f) for a, b, f in own.folded if a < high and b > low]
        pauses = np.array([(a, b) for a, b, _ in blocks], np.int64).reshape(-1, 2)
        compute_ps = length(compute)
        exposed_ps = length(moving) - covered(moving, compute)
        communication_ps = length(moving)
        for a, b, block in blocks:
            # A block that the window cuts counts by its part inside.
            part, whole = min(b, high) - max(a, low), max(1, b - a)
            compute_ps += block.compute_ps[rank] * part // whole
            exposed_ps += block.exposed_ps[rank] * part // whole
            communication_ps += block.communication_ps[rank] * part // whole
        if blocks:
            exposed_ps -= covered(moving, merge(clip(pauses, low, high)))
        busy = merge(np.concatenate((compute, moving, clip(pauses, low, high))))
        waits = merge(clip(own.issuing, low, high))
        host_ps = length(waits) - covered(waits, busy)
        left = max(0, high - low - compute_ps - exposed_ps - host_ps)
        tail = max(0, high - max(low, pipeline_end)) if pipeline_end else left
        if pipeline_end:
            after = [
                length(merge(clip(part, max(low, pipeline_end), high)))
                for part in (own.compute, own.moving, own.issuing)
            ]
            tail = max(0, tail - sum(after))
        idle = min(left, tail)
        parts = (compute_ps, exposed_ps, left - idle, idle, communication_ps, host_ps)
        found.append(Breakdown(rank, *parts))
    return found
