"""Writer of replicated blocks: equal blocks of work are simulated once, pauses replace the others.

A *block* is the work of a stage between two messages for one microbatch, or the messages of equal size
that the ranks of a stage send in parallel. If no other work is issued at the same time, it can be
simulated once and replaced by a pause of the same length: `Folder` does this and counts the blocks.
Ranks of a block that end at the same time wait for the same pause, so a replicated block costs one task
per distinct end time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from clusim.collectives.builder import ScheduleBuilder
from clusim.results.replicated import SUFFIX
from clusim.workload.host import Issue
from clusim.workload.kernels import Kernel
from clusim.workload.layers import Beside, Comm, Step
from clusim.workload.parallel.emitter import Emitter
from clusim.workload.parallel.exchanges import Exchange, Tails, dim_of
from clusim.workload.parallel.fold import Alone, Folded, FoldedBlock
from clusim.workload.parallel.volumes import Volume


@dataclass
class BlockEmitter(Emitter):
    """Writer of the steps of a plan, with equal blocks replicated if `folder` allows it."""

    def folds(self, *, in_parallel: bool = False) -> bool:
        """True if equal blocks are replicated: kernels must always last equally long on all ranks."""
        folder = self.folder
        return (
            folder is not None
            and self.uniform
            and (folder.reductions or not in_parallel)
        )

    def block(self, stage: int, steps: Sequence[Step], key: Any, name: str) -> None:
        """Add the steps of a block, replicated if possible."""
        folder = self.folder
        if folder is None or not self.uniform:
            super().block(stage, steps, key, name)
            return
        talks = any(isinstance(step, Comm | Beside) for step in steps)
        for ranks in self.plan.mesh.coupled_ranks(stage):
            if not folder.replicates_next():
                self._run_on(stage, ranks, steps, name)
            elif talks:
                result = folder.find(
                    key, ranks, partial(self._alone, stage, ranks, steps)
                )
                self._fold(ranks, result, name, self._issue_of(steps))
            else:
                self._fold_kernels(
                    ranks, [k for k in steps if isinstance(k, Kernel)], name
                )

    def _alone(
        self, stage: int, ranks: Sequence[int], steps: Sequence[Step]
    ) -> Alone:
        """Write steps on some ranks of a stage as a separate schedule."""
        builder = ScheduleBuilder(self.plan.fabric, "block")
        writer = Emitter(self.plan, builder, only=frozenset(ranks), nccl=self.nccl)
        writer.run(stage, steps, "block")
        return Alone(builder.build(), writer.tail, writer.traffic, writer.flops)

    def _run_on(
        self, stage: int, ranks: Sequence[int], steps: Sequence[Step], name: str
    ) -> None:
        """Add steps on some ranks of a stage only."""
        only, groups = self.only, self._groups
        self.only, self._groups = frozenset(ranks), {}
        self.run(stage, steps, name)
        self.only, self._groups = only, groups

    def _issue_of(self, steps: Sequence[Step]) -> Issue | None:
        return self.host.host.steps(steps) if self.host is not None else None

    def _fold(
        self, ranks: tuple[int, ...], block: Folded, name: str, issue: Issue | None
    ) -> None:
        """Add a block that communicates: its ranks start together."""
        assert self.folder is not None
        waits = {rank: self.tail.get(rank, ()) for rank in ranks}
        tasks: dict[int, int] = {}
        for group, end_ps in self._alike(ranks, block.end_ps, issue):
            task = self._pause(group, end_ps, name, (_all(waits), issue))
            tasks |= dict.fromkeys(group, task)
        self._count_replicated(FoldedBlock(tasks, waits, block, self.folder.last))

    def _count_replicated(self, block: FoldedBlock) -> None:
        """Count a block that pauses replace."""
        assert self.folder is not None
        self.folder.blocks.append(block)
        for dim, moved in block.found.traffic.items():
            self.traffic.setdefault(dim, Volume()).add(moved)
        self.flops += block.found.flops

    def _alike(
        self, ranks: Sequence[int], values: Mapping[int, Any], issue: Issue | None
    ) -> list[tuple[tuple[int, ...], Any]]:
        """Return the ranks that can share a pause, with their common value."""
        if issue is not None:
            return [((rank,), values[rank]) for rank in ranks]
        one = values[ranks[0]]
        if all(values[rank] == one for rank in ranks):
            return [(tuple(ranks), one)]
        result: dict[Any, list[int]] = {}
        for rank in ranks:
            result.setdefault(values[rank], []).append(rank)
        return [(tuple(group), value) for value, group in result.items()]

    def _fold_kernels(
        self, ranks: tuple[int, ...], kernels: Sequence[Kernel], name: str
    ) -> None:
        """Add a block of kernels only; every rank starts independently."""
        assert self.folder is not None
        if not kernels:
            return
        time_ps = max(1, round(sum(self._time(kernel) for kernel in kernels)))
        flops = sum(kernel.flops for kernel in kernels)
        waits = {rank: self.tail.get(rank, ()) for rank in ranks}
        issue = self._issue_of(kernels)
        tasks: dict[int, int] = {}
        for group, after in self._alike(ranks, waits, issue):
            tasks |= dict.fromkeys(
                group, self._pause(group, time_ps, name, (after, issue))
            )
        moved = sum(map(self.plan.chip.moved_bytes, kernels))
        result = self.folder.kernels(ranks, (time_ps, moved, flops))
        self._count_replicated(
            FoldedBlock(tasks, waits, result, self.folder.last, coupled=False)
        )

    def messages(
        self,
        exchange: Exchange,
        pairs: Sequence[tuple[int, int]],
        waits: Tails,
        stream: str,
    ) -> Tails:
        """Add parallel messages of equal size, one per pair of ranks, replicated if requested."""
        folder = self.folder
        if folder is None or not (
            self.uniform and folder.messages and folder.replicates_next()
        ):
            return super().messages(exchange, pairs, waits, stream)

        def write(writer: Emitter) -> Tails:
            nothing: Tails = {rank: () for pair in pairs for rank in pair}
            return writer.messages(exchange, pairs, nothing, stream)

        ranks = (*(src for src, _ in pairs), *(dst for _, dst in pairs))
        return self._fold_beside(
            exchange, stream, {rank: waits[rank] for rank in ranks}, write
        )

    def collectives(
        self,
        exchange: Exchange,
        groups: Sequence[tuple[int, ...]],
        stream: str = "",
        after: Tails | None = None,
    ) -> Tails:
        """Add one collective for each group, in parallel, replicated if requested."""
        folder = self.folder
        if folder is None or not (
            groups and self.folds(in_parallel=True) and folder.replicates_next()
        ):
            return super().collectives(exchange, groups, stream, after)

        def write(writer: Emitter) -> Tails:
            return writer.collectives(exchange, groups, stream)

        ranks = [rank for group in groups for rank in group]
        waits = {
            rank: (after or {}).get(rank, self.tail.get(rank, ())) for rank in ranks
        }
        return self._fold_beside(
            exchange, stream or dim_of(exchange.dim), waits, write
        )

    def _fold_beside(
        self,
        exchange: Exchange,
        stream: str,
        waits: Tails,
        write: Callable[[Emitter], Tails],
    ) -> Tails:
        """Add the exchange that `write` writes, replicated; the next kernels do not wait for it."""
        assert self.folder is not None
        ranks = tuple(waits)
        self._enqueue(exchange, waits)

        def alone() -> Alone:
            builder = ScheduleBuilder(self.plan.fabric, exchange.operation)
            writer = Emitter(self.plan, builder, nccl=self.nccl)
            tail = write(writer)
            return Alone(builder.build(), tail, writer.traffic, 0)

        own_key = exchange.dim, exchange.operation, exchange.bytes
        key = (*own_key, exchange.algorithm, exchange.dtype, exchange.channels)
        result = self.folder.find(key, ranks, alone)
        tasks: dict[int, int] = {}
        for group, end_ps in self._alike(ranks, result.end_ps, None):
            task = self.builder.delay(
                group[0],
                end_ps,
                stream=stream,
                name=f"{exchange.name}{SUFFIX}",
                after=_all(waits),
            )
            tasks |= dict.fromkeys(group, task)
        self._count_replicated(
            FoldedBlock(tasks, waits, result, self.folder.last, message=True)
        )
        return {rank: (task,) for rank, task in tasks.items()}

    def _pause(
        self,
        ranks: Sequence[int],
        time_ps: int,
        name: str,
        start: tuple[tuple[int, ...], Issue | None],
    ) -> int:
        """Add the pause of a block at these ranks; `start` holds dependencies and host work."""
        after, issue = start
        host = self._issue(ranks[0], issue, name)
        task = self.builder.delay(
            ranks[0], time_ps, name=f"{name}{SUFFIX}", after=after
        )
        for rank in ranks:
            self._behind(rank, task, host, issue)
        return task

    def optimizer(
        self, ranks: Iterable[int], elements: int, name: str = "optimizer"
    ) -> None:
        """Add an optimiser step over this number of parameters."""
        if (
            elements > 0
            and self.folds()
            and self.folder is not None
            and self.folder.replicates_next()
        ):
            kernel, members = self.plan.optimizer.kernel(elements), tuple(ranks)
            self._fold_kernels(members, [kernel], name)
        else:
            super().optimizer(ranks, elements, name)


def _all(waits: Tails) -> tuple[int, ...]:
    """Return all tasks that some ranks wait for."""
    return tuple(sorted({task for tasks in waits.values() for task in tasks}))
