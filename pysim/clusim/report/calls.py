"""The collectives of a run, and the messages of synthetic traffic, as short tables."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clusim.report.lanes import Lanes, Schedule
from clusim.result import PS_PER_S, busbw_factor

__all__ = ["CallRow", "call_rows", "calls_of"]

Array = NDArray[Any]


@dataclass(frozen=True, slots=True)
class CallRow:
    """One collective, or several of one kind.

    Attributes
    ----------
    start_ps : int
        When the first rank of the first one started [ps].
    least_ps, mean_ps, most_ps : float
        Time from the start of a call's first rank to the end of its last [ps].
    algbw_GBps, busbw_GBps : float
        For the mean time, as nccl-tests define them [10^9 bytes/s].
    """

    operation: str
    algorithm: str
    size_bytes: int
    dtype: str
    ranks: int
    channels: int
    count: int
    start_ps: int
    least_ps: float
    mean_ps: float
    most_ps: float
    algbw_GBps: float
    busbw_GBps: float


def calls_of(lanes: Lanes) -> tuple[Array, Array, Array]:
    """Return the calls that started, and the start and end of each [ps]."""
    mine = lanes.call >= 0
    call, start, end = lanes.call[mine], lanes.start_ps[mine], lanes.end_ps[mine]
    if not len(call):
        return call, start, end
    order = np.argsort(call, kind="stable")
    first = np.flatnonzero(np.append(True, np.diff(call[order]) != 0))
    return (
        call[order][first],
        np.minimum.reduceat(start[order], first),
        np.maximum.reduceat(end[order], first),
    )


def call_rows(lanes: Lanes, schedule: Schedule, limit: int = 60) -> list[CallRow]:
    """Return a row for every collective, or for every kind of them if they are more than `limit`."""
    call, start, end = calls_of(lanes)
    kinds: dict[tuple[Any, ...], list[int]] = {}
    for place, number in enumerate(call.tolist()):
        kind = _kind(schedule, number)
        kinds.setdefault(kind if len(call) > limit else (*kind, number), []).append(place)
    rows = [_row(kind, start[places], end[places]) for kind, places in kinds.items()]
    return sorted(rows, key=lambda row: row.start_ps)[: 4 * limit]


def _kind(schedule: Schedule, call: int) -> tuple[Any, ...]:
    off = np.asarray(schedule["calls/ranks_off"])
    return (
        str(schedule["calls/operation"][call]),
        str(schedule["calls/algorithm"][call]),
        int(schedule["calls/bytes"][call]),
        str(schedule["calls/dtype"][call]),
        int(off[call + 1] - off[call]),
        int(schedule["calls/channels"][call]),
    )


def _row(kind: tuple[Any, ...], start: Array, end: Array) -> CallRow:
    took = (end - start).astype(np.float64)
    mean = float(took.mean())
    operation, algorithm, size_bytes, dtype, ranks, channels = kind[:6]
    algbw = size_bytes * PS_PER_S / mean / 1e9 if mean else 0.0
    return CallRow(
        operation=operation,
        algorithm=algorithm,
        size_bytes=size_bytes,
        dtype=dtype,
        ranks=ranks,
        channels=channels,
        count=len(took),
        start_ps=int(start.min()),
        least_ps=float(took.min()),
        mean_ps=mean,
        most_ps=float(took.max()),
        algbw_GBps=algbw,
        busbw_GBps=algbw * busbw_factor(operation, ranks),
    )
