"""Collectives and kernels issued repeatedly on two streams.

**Hardware** The blocks of kernels are assigned to SMs in the order of their launches. A collective that is issued
while a large kernel has blocks waiting gets its SMs only when the last of these has started; a kernel issued while a
collective runs gets the remaining SMs at once. So a stream of collectives beside a stream of matrix products
completes about one collective per product. **Model** A collective starts at the end of the kernel during which it was
ready; then it holds its SMs and uses memory beside the next kernel. Which kernel that is depends on all earlier
times, so the schedule is simulated until every collective waits for the right one. **Not modelled** The last wave of
tiles, in which some SMs are free already; blocks that share an SM.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from clusim.base.errors import InputError
from clusim.collectives import ScheduleBuilder
from clusim.simulation.api import result_of
from clusim.simulation.job import RunOptions
from clusim.simulation.request import ScheduleRequest
from clusim.simulation.setup import Setup
from clusim.topology.model import Fabric

Waits = dict[int, int]
"""Kernel that each collective waits for, both by number."""


@dataclass(frozen=True, slots=True)
class Contention:
    """Mean times of one collective and of one kernel, in isolation and concurrently [ps]."""

    collective_alone_ps: float
    kernel_alone_ps: float
    collective_ps: float
    kernel_ps: float

    @property
    def collective_slowdown(self) -> float:
        """Relative increase of a collective's time."""
        return self.collective_ps / self.collective_alone_ps

    @property
    def kernel_slowdown(self) -> float:
        """Relative increase of a kernel's time."""
        return self.kernel_ps / self.kernel_alone_ps


@dataclass(frozen=True, slots=True)
class Streams:
    """Consecutive collectives beside consecutive kernels.

    Attributes
    ----------
    size_bytes : int
        Size of a collective [bytes].
    kernel_ps, hbm_bytes : int
        Time of a kernel in isolation [ps] and its memory traffic [bytes].
    collectives, kernels : int
        Number of each.
    """

    operation: str
    size_bytes: int
    kernel_ps: int
    hbm_bytes: int = 0
    collectives: int = 20
    kernels: int = 8
    algorithm: str | None = None


def contention(
    fabric: Fabric,
    streams: Streams,
    *,
    ranks: Sequence[int] | None = None,
    granularity: str | int = "auto",
) -> Contention:
    """Return the times of two streams on every rank."""
    collectives, kernels = streams.collectives, streams.kernels
    if collectives < 1 or kernels < 1 or streams.kernel_ps < 1:
        raise InputError(
            "contention: needs at least one collective and one kernel of 1 ps or more"
        )
    setup = Setup(fabric)
    own = tuple(range(fabric.num_ranks) if ranks is None else ranks)

    def run(
        comms: int, works: int, waits: Waits
    ) -> tuple[list[int], list[tuple[int, int]]]:
        """Return the ends of all collectives, and the spans of all kernels."""
        builder = ScheduleBuilder(fabric, "contention")
        work = [
            [
                builder.kernel(
                    r, compute_ps=streams.kernel_ps, hbm_bytes=streams.hbm_bytes
                )
                for r in own
            ]
            for _ in range(works)
        ]
        comm = [
            builder.collective(
                streams.operation, streams.size_bytes, algorithm=streams.algorithm, ranks=own,
                after={rank: (work[waits[number]][place],) for place, rank in enumerate(own)}
                if number in waits else None,
            )
            for number in range(comms)
        ]  # fmt: skip
        asked = ScheduleRequest(setup, builder.build(), granularity=granularity)
        result = result_of(asked, RunOptions(bins=2))
        start, end = result.tasks.start_ps, result.tasks.end_ps
        spans = [
            (int(min(start[t] for t in row)), int(max(end[t] for t in row)))
            for row in work
        ]
        return [int(max(end[t] for t in row)) for row in comm], spans

    ends, _ = run(collectives, 0, {})
    _, spans = run(0, kernels, {})
    alone = ends[-1] / collectives, spans[-1][1] / kernels
    # The first collective and kernel are issued together, and the collective gets its SMs.
    waits: Waits = {}
    for number in range(collectives):
        ends, spans = run(collectives, kernels, waits)
        ready = ends[number - 1] if number else 0
        beside = [k for k, (low, high) in enumerate(spans) if low < ready < high]
        if beside:
            waits[number] = beside[0]
        elif number and ready >= spans[-1][1]:
            break
    ends, spans = run(collectives, kernels, waits)
    return Contention(*alone, ends[-1] / collectives, spans[-1][1] / kernels)
