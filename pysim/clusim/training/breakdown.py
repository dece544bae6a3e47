"""Time breakdown of every rank in a window: compute, exposed communication, bubble, idle.

A rank *computes* while one of its kernels runs. Communication is *exposed* while data of the rank move, that is from
the time at which all ranks of a collective or message are ready, and no kernel of the rank runs. It *waits for its
host* while it does not compute or communicate, and the next task only waits to be issued. The remaining time is the
pipeline *bubble* until the last pass of any stage is done, and *idle* (waiting for other ranks) after it. Exposed
communication is attributed to a *dimension* of parallelism; if several move data at a time, to the first to begin.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from clusim.base.arrays import Array
from clusim.base.json_schema import JsonObject
from clusim.lowering.grain import step_error
from clusim.results.causes import divide_time
from clusim.results.intervals import Union, first_come
from clusim.results.replicated import DIMENSIONS, MOVING, RankPattern, dimension_of
from clusim.results.result import Result
from clusim.schedule.ir import ABSENT, Schedule
from clusim.workload.host import HOST_STREAM
from clusim.workload.parallel.fold import FoldedBlock, repetitions

PARTS = {
    "compute": "compute",
    "exposed": "exposed communication",
    "host": "waiting for the host",
    "bubble": "bubble",
    "idle": "idle",
}
"""Parts of a step: name, as in `Breakdown.compute_ps`, and label."""


@dataclass(frozen=True, slots=True)
class Breakdown(JsonObject):
    """Time of a rank in the last step; the parts add up to the step.

    `communication_ps` includes hidden communication, `host_ps` is host wait. The exposed communication of all
    dimensions adds up to `exposed_ps`.

    Attributes
    ----------
    exposed_by_dimension_s : dict
        Exposed communication by dimension of parallelism, and ``host`` for copies to and from it, without zeros [s].
    """

    KEYS = (
        "rank",
        "compute_s",
        "exposed_comm_s=exposed_ps",
        "exposed_by_dimension_s",
        "host_wait_s=host_ps",
        "bubble_s",
        "idle_s",
    )

    rank: int
    compute_ps: int
    exposed_ps: int
    bubble_ps: int
    idle_ps: int
    communication_ps: int
    host_ps: int = 0
    exposed_data_ps: int = 0
    exposed_tensor_ps: int = 0
    exposed_pipeline_ps: int = 0
    exposed_context_ps: int = 0
    exposed_expert_ps: int = 0
    exposed_norm_ps: int = 0
    exposed_embedding_ps: int = 0
    exposed_host_ps: int = 0

    @property
    def exposed_by_dimension_ps(self) -> dict[str, int]:
        """Exposed communication by dimension, without zeros [ps]."""
        times = {dim: getattr(self, f"exposed_{dim}_ps") for dim in DIMENSIONS}
        return {dim: time_ps for dim, time_ps in times.items() if time_ps}

    @property
    def total_ps(self) -> int:
        """The complete step [ps]."""
        return (
            self.compute_ps
            + self.exposed_ps
            + self.bubble_ps
            + self.idle_ps
            + self.host_ps
        )

    def of_one_step(self, step_ps: int) -> Breakdown:
        """Return the breakdown of several steps as the breakdown of one, in the same proportions."""
        leaves = [f"{part}_ps" for part in PARTS if part != "exposed"]
        leaves += [f"exposed_{dim}_ps" for dim in DIMENSIONS]
        parts = divide_time({name: getattr(self, name) for name in leaves}, step_ps)
        exposed_ps = sum(
            ps for name, ps in parts.items() if name.startswith("exposed_")
        )
        moved_ps = self.communication_ps * step_ps // max(1, self.total_ps)
        every = {name: parts.get(name, 0) for name in leaves}
        return Breakdown(
            self.rank, exposed_ps=exposed_ps, communication_ps=moved_ps, **every
        )


@dataclass(frozen=True, slots=True)
class Spans:
    """Intervals of a rank [ps], each an array of (start, end); `issuing` is host wait.

    `moving` also has the number of the dimension in `DIMENSIONS`. `folded` are patterns that it did, each with when.
    """

    compute: Array
    moving: Array
    active: Array
    folded: Sequence[tuple[Array, RankPattern]]
    issuing: Array = field(default_factory=lambda: np.zeros((0, 2), np.int64))


_NONE = np.zeros((0, 2), np.int64)
NOTHING = Spans(_NONE, np.zeros((0, 3), np.int64), _NONE, [])
"""The intervals of a rank without tasks."""


def spans_of(
    schedule: Schedule,
    start_ps: Array,
    end_ps: Array,
    blocks: Iterable[FoldedBlock] = (),
) -> dict[int, Spans]:
    """Return the intervals of every rank; `blocks` are the replicated blocks, run as pauses."""
    tasks, starts, ends = schedule.tasks, start_ps.tolist(), end_ps.tolist()
    moving = starts_of_calls(schedule, start_ps)
    hosts = {index for index, task in enumerate(tasks) if task.stream == HOST_STREAM}
    folded = repetitions(blocks, start_ps)
    rows: dict[int, tuple[list[Any], ...]] = {
        rank: ([], [], [], []) for rank in folded
    }
    for index, task in enumerate(tasks):
        columns = rows.setdefault(task.rank, ([], [], [], []))
        low, high = starts[index], ends[index]
        if index in hosts:
            continue
        if hosts:
            issued = max((ends[d] for d in task.deps if d in hosts), default=0)
            ready = max((ends[d] for d in task.deps if d not in hosts), default=0)
            if issued > ready:
                columns[3].append((ready, issued))
        if task.kind == "kernel":
            columns[0].append((low, high))
        elif task.kind == "program":
            moves = max(low, moving.get(task.call, low))
            columns[1].append((min(moves, high), high, dimension_of(task.stream)))
            columns[2].append((low, high))
        elif task.stream.endswith(MOVING):
            columns[1].append((low, high, dimension_of(task.stream)))
            columns[2].append((low, high))
    return {
        rank: Spans(
            _pairs(columns[0]),
            _pairs(columns[1], 3),
            _pairs(columns[2]),
            folded.get(rank, []),
            _pairs(columns[3]),
        )
        for rank, columns in rows.items()
    }


def starts_of_calls(schedule: Schedule, start_ps: Array) -> dict[int, int]:
    """Return the start of data movement of each collective: the start of its last rank [ps]."""
    result: dict[int, int] = {}
    for task, start in zip(schedule.tasks, start_ps.tolist(), strict=True):
        if task.kind == "program" and task.call != ABSENT:
            result[task.call] = max(result.get(task.call, 0), start)
    return result


def _pairs(rows: list[Any], width: int = 2) -> Array:
    return np.array(rows, np.int64).reshape(-1, width)


def grain_error(result: Result) -> float | None:
    """Return the error limit of exposed communication for a run's bursts; None is unknown."""
    return step_error(result.provenance.granularity, result.provenance.burst_packets)


def error_of(
    grain_error: float | None, rows: Sequence[Breakdown], step_ps: int
) -> float | None:
    """Return the error limit of a step against exact packets, from its exposed communication."""
    if grain_error is None:
        return None
    return grain_error * float(np.mean([row.exposed_ps for row in rows])) / step_ps


def breakdown(
    spans: Mapping[int, Spans],
    ranks: Sequence[int],
    windows: Sequence[tuple[int, int]],
    pipeline_end: int = 0,
) -> list[list[Breakdown]]:
    """Return the breakdown of ranks in each window.

    The rest before `pipeline_end` is the bubble.
    """
    low, high = np.array(windows, np.int64).reshape(-1, 2).T
    rows = [
        _parts(spans.get(rank, NOTHING), low, high, pipeline_end).tolist()
        for rank in ranks
    ]
    return [
        [
            Breakdown(rank, *windows_of_rank[index])
            for rank, windows_of_rank in zip(ranks, rows, strict=True)
        ]
        for index in range(len(windows))
    ]


def _parts(spans: Spans, low: Array, high: Array, pipeline_end: int) -> Array:
    """Return the breakdown of a rank's windows [ps].

    One row per window, columns in the order of `Breakdown`.
    """
    computes, moves, pauses = unfolded(spans)
    compute, moving, waits = (
        Union.of(computes),
        Union.of(moves[:, :2]),
        Union.of(spans.issuing),
    )
    compute_ps, communication_ps = (
        compute.within(low, high),
        moving.within(low, high),
    )
    dimension_ps = _exposed_by_dimension(compute, moves, low, high)
    exposed_ps = dimension_ps.sum(axis=1)
    host_ps = np.zeros_like(low)
    if len(spans.issuing):
        busy = Union.of(compute.spans, moving.spans, pauses)
        host_ps = Union.of(busy.spans, waits.spans).within(low, high) - busy.within(
            low, high
        )
    remaining = np.maximum(0, high - low - compute_ps - exposed_ps - host_ps)
    idle = remaining
    if pipeline_end:
        after = np.maximum(low, pipeline_end)
        end = np.maximum(after, high)
        done = sum(union.within(after, end) for union in (compute, moving, waits))
        idle = np.minimum(remaining, np.maximum(0, end - after - done))
    times = compute_ps, exposed_ps, remaining - idle, idle, communication_ps, host_ps
    return np.column_stack([*times, dimension_ps])


def _exposed_by_dimension(
    compute: Union, moves: Array, low: Array, high: Array
) -> Array:
    """Return the exposed communication of windows by dimension [ps], shape (windows, dimensions)."""
    begin, end = first_come(moves[:, 0], moves[:, 1])
    result = np.zeros((len(low), len(DIMENSIONS)), np.int64)
    for row, window in zip(result, zip(low, high, strict=True), strict=True):
        start, stop = np.clip(begin, *window), np.clip(end, *window)
        np.add.at(row, moves[:, 2], stop - start - compute.within(start, stop))
    return result


def unfolded(spans: Spans) -> tuple[Array, Array, Array]:
    """Return a rank's compute, data movement and replicated blocks as intervals.

    Compute and data movement include the replicated blocks; data movement has the dimension as third column.
    """
    compute, moving = [spans.compute], [spans.moving]
    for starts, pattern in spans.folded:
        at = starts[:, None, None]
        compute.append((at + pattern.compute).reshape(-1, 2))
        moving.append((at * (1, 1, 0) + pattern.moving).reshape(-1, 3))
    return np.concatenate(compute), np.concatenate(moving), blocks_of(spans)


def blocks_of(spans: Spans) -> Array:
    """Return the intervals of a rank's replicated blocks."""
    ends = [
        np.stack([starts, starts + pattern.end_ps], axis=1)
        for starts, pattern in spans.folded
    ]
    return np.concatenate([_NONE, *ends])
