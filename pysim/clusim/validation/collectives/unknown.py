"""Unknown launches of measurements: a prediction for every launch that a row may have had.

**Launch** If nothing is known, a job has one process that drives all GPUs of its machine by one thread (``-g``) or by a
thread for each (``-t``), or one process per GPU; its iterations may be a CUDA graph. All of them share the kernel.
**Not modelled** Hosts, adapters and drivers that were not said either.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from clusim.nccl.calls.launch import Host, Launch
from clusim.nccltests.kernel import PerfKernel
from clusim.validation.collectives.measurements import CurveGroup, Row


@dataclass(frozen=True, slots=True)
class TimeSpan:
    """The shortest and the longest prediction for what a row does not say [us], and what that is."""

    low_us: float
    high_us: float
    why: str

    def wider(self, times_us: Iterable[float], why: str) -> TimeSpan:
        """Return it with more times, for another reason."""
        times = [self.low_us, self.high_us, *times_us]
        return TimeSpan(min(times), max(times), f"{self.why} and {why}" if self.why else why)


def span_json(found: TimeSpan | None) -> dict[str, Any]:
    """Return the columns of a span; they are empty where all is known."""
    if found is None:
        return {"predicted_low_us": None, "predicted_high_us": None, "unknown": None}
    low, high = round(found.low_us, 3), round(found.high_us, 3)
    return {"predicted_low_us": low, "predicted_high_us": high, "unknown": found.why}


def launches(group: CurveGroup) -> list[Launch]:
    """Return how measurements may have been launched: one way if it is known, the likeliest first if not."""
    if group.launch_known:
        return [group.launch]
    graph, has = group.cuda_graph, group.per_node
    found = [Launch(has, graph), Launch(1, graph, threads=has), Launch(1, graph), Launch(1, True)]
    return list(dict.fromkeys([group.launch, *found]))


def times_us(row: Row, host: Host, operation: str, kernel: PerfKernel) -> list[float]:
    """Return what would be printed for a kernel, by every launch that the row may have had [us]."""
    known = host, operation, kernel.time_ps, kernel.channels
    ways = launches(row.group)
    return [replace(row.harness, launch=way).time_ps(*known) / 1e6 for way in ways]


def launch_span(row: Row, host: Host, operation: str, kernel: PerfKernel) -> TimeSpan | None:
    """Return the span of a row's prediction over launches; None if its launch is known."""
    if row.group.launch_known:
        return None
    times = times_us(row, host, operation, kernel)
    return TimeSpan(min(times), max(times), "launch")
