"""Writes steps as `clusim.workload.parallel` does, for one rank of every stage, into a `Clock`.

What ranks do by themselves takes the sum of their kernels. What they do together is a part that the engine simulated:
alone, or beside kernels with the memory traffic that those of the stage have. Blocks of a stage that were done before,
with nothing beside them, take as long again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from clusim.training.breakdown import breakdown
from clusim.training.estimating.clock import Clock, RankRows
from clusim.training.estimating.parts import StepPart, StepParts, Write
from clusim.workload.kernels import Kernel
from clusim.workload.layers import Comm, Step
from clusim.workload.parallel.emitter import Emitter, Exchange, Tails, dim_of
from clusim.workload.parallel.fold import Folded
from clusim.workload.parallel.issue import HostThreads
from clusim.workload.parallel.plan import TrainingPlan
from clusim.workload.parallel.volumes import Volume

__all__ = ["StepEstimator"]


class StepEstimator(Emitter):
    """Adds the steps of a plan to a clock."""

    def __init__(self, plan: TrainingPlan, clock: Clock, parts: StepParts) -> None:
        host = plan.host()
        super().__init__(plan, clock, host=HostThreads(host, clock) if host is not None else None)
        self.clock, self.parts = clock, parts
        self.shown = {plan.mesh.stage(s)[0]: s for s in range(plan.mesh.pipeline)}
        self._blocks: dict[Any, tuple[Folded, dict[str, Volume]]] = {}
        self._stepped: set[int] = set()
        self._busy = [_traffic_Bps(plan, stage) for stage in range(plan.mesh.pipeline)]

    def ranks(self, stage: int) -> list[int]:
        """Return the rank that stands for a stage."""
        return list(self.plan.mesh.stage(stage)[:1])

    def coupled(self, stage: int) -> list[tuple[int, ...]]:
        """Return the ranks that communicate with that one."""
        return self.plan.mesh.coupled(stage)[:1]

    def folds(self, *, beside: bool = False) -> bool:
        """Return that equal blocks are told apart."""
        return True

    def kernels(self, ranks: Sequence[int], kernels: Sequence[Kernel], name: str) -> None:
        """Add kernels; what comes behind an optimiser has nothing beside it until then."""
        if kernels:
            self._stepped.difference_update(ranks)
        super().kernels(ranks, kernels, name)

    def optimizer(self, ranks: Iterable[int], elements: int, name: str = "optimizer") -> None:
        """Add a step of the optimiser."""
        own = tuple(ranks)
        super().optimizer(own, elements, name)
        self._stepped.update(own)

    def block(self, stage: int, steps: Sequence[Step], key: Any, name: str) -> None:
        """Do the steps of a block, or what it took before."""
        rank, own = self.plan.mesh.stage(stage)[0], (stage, key)
        begin = self.clock.ready(rank, self.tail.get(rank, ()))
        if self.host is not None or self.clock.disturbed(rank, begin):
            self.run(stage, steps, name)
            return
        if own not in self._blocks:
            self._blocks[own] = self._first(stage, steps, name, begin)
            return
        found, moved = self._blocks[own]
        self.tail[rank] = (self.clock.again(rank, found, name, begin),)
        self._count(moved)
        self.flops += found.flops

    def _first(
        self, stage: int, steps: Sequence[Step], name: str, begin: int
    ) -> tuple[Folded, dict[str, Volume]]:
        """Do a block for the first time and return what it is."""
        rank, clock, before = self.ranks(stage)[0], self.clock, self.traffic
        row = clock.row(rank)
        sizes = len(row.compute), len(row.moving)
        sums = clock.kernel_ps, clock.alone_ps, self.flops
        self.traffic = {}
        self.run(stage, steps, name)
        moved, self.traffic = self.traffic, before
        self._count(moved)
        end = max(clock.when(self.tail[rank]), begin)
        part = RankRows(row.compute[sizes[0] :], row.moving[sizes[1] :])
        own = breakdown({rank: part.spans()}, [rank], begin, end)[0]
        took = (clock.kernel_ps - sums[0], clock.alone_ps - sums[1], 0, 0)
        times = ({rank: end - begin}, {rank: own.compute_ps}, {rank: own.exposed_ps})
        moving = {rank: own.communication_ps}
        return Folded(*times, moving, {}, self.flops - sums[2], {}, took), moved

    def _count(self, moved: dict[str, Volume]) -> None:
        for dim, volume in moved.items():
            self.traffic.setdefault(dim, Volume()).add(volume)

    def _communicate(self, stage: int, step: Comm) -> None:
        """Let the ranks of a stage that communicate with its rank do so."""
        ranks = self.coupled(stage)[0]
        groups = [group for group in self.groups(step.dim, stage) if set(group) <= set(ranks)]
        if not groups:
            return
        what = replace(step, name="", key="", part="forward", core=False)

        def write(writer: Emitter, there: Mapping[int, int]) -> Tails:
            writer.run(stage, [what], "part")
            return writer.tail

        beside = self._busy[stage] if step.key else None
        part = self.parts.find(what, ranks, write, beside)
        self._move(part, len(self.plan.mesh.coupled(stage)))
        rank = self.ranks(stage)[0]
        done = self.clock.move([rank], step.dim, part.took, self.tail)
        if step.key:
            self._open[stage, step.key] = done
        else:
            self.join(done)

    def _move(self, part: StepPart, times: int) -> None:
        """Count what a part moves, done by so many sets of ranks."""
        for dim, (calls, sent) in part.moved.items():
            self.traffic.setdefault(dim, Volume()).add(Volume(calls, sent), times)

    def collectives(
        self,
        exchange: Exchange,
        groups: Sequence[tuple[int, ...]],
        stream: str = "",
        after: Tails | None = None,
    ) -> Tails:
        """Add a collective of each of some groups, side by side."""

        def write(writer: Emitter, there: Mapping[int, int]) -> Tails:
            own = [tuple(there[rank] for rank in group) for group in groups]
            return writer.collectives(exchange, own, stream)

        return self._together(exchange, list(groups), stream or dim_of(exchange.dim), after, write)

    def written_messages(
        self, exchange: Exchange, pairs: Sequence[tuple[int, int]], waits: Tails, stream: str
    ) -> Tails:
        """Add messages of the same size side by side."""

        def write(writer: Emitter, there: Mapping[int, int]) -> Tails:
            own = [(there[one], there[two]) for one, two in pairs]
            nothing: Tails = {rank: () for pair in own for rank in pair}
            return writer.written_messages(exchange, own, nothing, stream)

        return self._together(exchange, list(pairs), stream, waits, write)

    def _together(
        self,
        exchange: Exchange,
        groups: Sequence[tuple[int, ...]],
        stream: str,
        after: Tails | None,
        write: Write,
    ) -> Tails:
        """Do what groups do side by side, of whose ranks some stand for their stages."""
        ranks = tuple(rank for group in groups for rank in group)
        shown = [rank for rank in ranks if rank in self.shown]
        if not shown:
            return {}
        sends = exchange.operation == "send"
        busy = None
        if not sends and not self._stepped.intersection(shown):
            busy = self._busy[self.shown[shown[0]]]
        said = exchange.dim, exchange.operation, exchange.bytes, exchange.algorithm, exchange.dtype
        what = (tuple(map(len, groups)), *said, exchange.channels, exchange.protocol)
        part = self.parts.find(what, ranks, write, busy)
        stage = self.shown[shown[0]]
        self._move(part, len(self.plan.mesh.coupled(stage)) if sends else 1)
        waits = {rank: (after or self.tail).get(rank, ()) for rank in shown}
        self._enqueue(exchange, waits)
        return self.clock.move(shown, stream, part.took, waits)


def _traffic_Bps(plan: TrainingPlan, stage: int) -> float:
    """Return the memory traffic of the kernels of a stage's passes, while they run [bytes/s]."""
    kernels = {
        (id(layer), part): layer.kernels(part)
        for chunk in plan.stages[stage]
        for layer in chunk
        for part in ("input", "weight")
    }
    own = [kernel for found in kernels.values() for kernel in found]
    time_ps = sum(plan.chip.time_ps(kernel) for kernel in own)
    return sum(kernel.bytes for kernel in own) * 1e12 / max(1, time_ps)
