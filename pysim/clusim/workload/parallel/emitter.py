"""Writer of layer steps: kernels on the compute stream, one collective stream per dimension.

All ranks of a pipeline stage execute the same steps in parallel. Consecutive kernels become one task
that lasts the sum of their times; the engine lengthens it when communication occupies SMs or memory
bandwidth.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Any

from clusim.workload.host import Issue
from clusim.workload.kernels import Kernel
from clusim.workload.layers import Beside, Comm, Layer, Step, backward_steps
from clusim.workload.parallel.exchanges import (
    CHOSEN,
    Exchange,
    ExchangeWriter,
    Tails,
    dim_of,
)
from clusim.workload.parallel.fold import Folder
from clusim.workload.parallel.volumes import (
    legs_of,
)
from clusim.workload.pipeline_schedules import Action

Block = tuple[list[Step], tuple[str, tuple[int, ...]]]
"""Consecutive steps, and the key that distinguishes them from those of other blocks."""


@dataclass
class Emitter(ExchangeWriter):
    """Writer of the steps of a plan into a schedule.

    Attributes
    ----------
    flops : int
        Operations of all kernels, recomputation included.
    only : frozenset of int or None
        Ranks to write; groups of other ranks are omitted. None writes all.
    """

    folder: Folder | None = None
    only: frozenset[int] | None = None
    flops: int = 0
    _open: dict[tuple[int, str], Tails] = field(default_factory=dict)
    _groups: dict[tuple[str, int], list[tuple[int, ...]]] = field(
        default_factory=dict
    )
    _backward: dict[int, list[Step]] = field(default_factory=dict)
    _times: dict[Kernel, int] = field(default_factory=dict)
    _launched: dict[int, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Read the stragglers and the load of experts."""
        super().__post_init__()
        workload = self.plan.workload
        self._random = random.Random(workload.stragglers.seed)
        self._slow = {
            int(rank): factor for rank, factor in workload.stragglers.ranks.items()
        }
        self._jitter = workload.stragglers.jitter
        self._loads = self._load_of_ranks()

    @property
    def uniform(self) -> bool:
        """True if the same kernels always last equally long on all ranks."""
        return not self._slow and not self._jitter and len(set(self.loads)) <= 1

    def groups(self, dim: str, stage: int) -> list[tuple[int, ...]]:
        """Return the groups of a dimension in a stage, without groups of one."""
        key = (dim, stage)
        if key not in self._groups:
            result = [
                group
                for group in self.plan.mesh.groups(dim, stage)
                if len(group) > 1
            ]
            if self.only is not None:
                result = [group for group in result if set(group) <= self.only]
            self._groups[key] = result
        return self._groups[key]

    def ranks(self, stage: int) -> list[int]:
        """Return the ranks of a stage that are written."""
        return [
            r
            for r in self.plan.mesh.stage(stage)
            if self.only is None or r in self.only
        ]

    def coupled_ranks(self, stage: int) -> list[tuple[int, ...]]:
        """Return the sets of ranks of a stage that communicate within a microbatch."""
        return self.plan.mesh.coupled_ranks(stage)

    def backward(self, layer: Layer) -> list[Step]:
        """Return the backward steps of a layer, recomputation included."""
        if id(layer) not in self._backward:
            self._backward[id(layer)] = backward_steps(layer)
        return self._backward[id(layer)]

    def run(self, stage: int, steps: Iterable[Step], name: str) -> None:
        """Add `steps` on all ranks of a stage; communication still open at the end is waited for."""
        ranks, pending = self.ranks(stage), []
        for step in steps:
            if isinstance(step, Kernel):
                pending.append(step)
                continue
            self.kernels(ranks, pending, name)
            pending = []
            if isinstance(step, Comm):
                self._communicate(stage, step)
            elif isinstance(step, Beside):
                self._interleave(stage, step, name)
            else:
                self.join(self._open.pop((stage, step.key), {}))
        self.kernels(ranks, pending, name)

    def _interleave(self, stage: int, both: Beside, name: str) -> None:
        """Interleave two rows of steps at each communication; each row waits only for itself."""
        before = dict(self.tail)
        tails = [dict(before), dict(before)]
        rows = [_turns(both.one), _turns(both.two)]
        for turn in zip_longest(*rows, fillvalue=()):
            for index, steps in enumerate(turn):
                self.tail = tails[index]
                self.run(stage, steps, name)
        self.tail = {
            rank: tuple(
                dict.fromkeys((*tails[0].get(rank, ()), *tails[1].get(rank, ())))
            )
            for rank in tails[0] | tails[1]
        }

    def kernels(
        self, ranks: Sequence[int], kernels: Sequence[Kernel], name: str
    ) -> None:
        """Add one task with these kernels to every rank."""
        if not kernels:
            return
        flops = sum(kernel.flops for kernel in kernels)
        plain, loaded = (
            sum(self._time(k) for k in kernels if k.expert == expert)
            for expert in (False, True)
        )
        hbm = sum(map(self.plan.chip.moved_bytes, kernels))
        issue = self.host.host.kernels(kernels) if self.host is not None else None
        for rank in ranks:
            load = self._loads.get(rank, 1.0) if loaded else 1.0
            time_ps = (plain + loaded * load) * self._slow.get(rank, 1.0)
            if self._jitter:
                time_ps *= max(0.1, self._random.gauss(1.0, self._jitter))
            host = self._issue(rank, issue, name)
            task = self.builder.kernel(
                rank,
                compute_ps=max(1, round(time_ps)),
                hbm_bytes=hbm,
                name=name,
                after=self.tail.get(rank, ()),
            )
            self._behind(rank, task, host, issue)
            self.flops += flops

    def _issue(self, rank: int, issue: Issue | None, name: str) -> tuple[int, ...]:
        """Add the host work for a run of kernels; for a pass launched at once, only for the first."""
        if self.host is None or issue is None:
            return ()
        if self.host.host.framework.whole:
            if self._launched.get(rank) == name:
                return ()
            self._launched[rank] = name
        return (self.host.issue(rank, issue, name),)

    def _behind(
        self, rank: int, task: int, host: tuple[int, ...], issue: Issue | None
    ) -> None:
        """Make the next kernels wait for a task of the GPU, and for the host that issued it."""
        if self.host is not None and issue is not None and host:
            self.host.record_launches(rank, task, issue.launches)
        self.tail[rank] = (task, *host)

    def busy(self, ranks: Iterable[int], time_ps: int, name: str) -> None:
        """Add host work other than issuing kernels, before the hosts continue."""
        if self.host is None or not time_ps:
            return
        for rank in ranks:
            task = self.host.issue(rank, Issue(time_ps, 0), name)
            self.tail[rank] = (*self.tail.get(rank, ()), task)

    def synchronize(self, ranks: Iterable[int], name: str = "") -> None:
        """Make hosts wait until their GPUs are idle; a `name` marks that time."""
        if self.host is None:
            return
        for rank in ranks:
            if name:
                after = self.tail.get(rank, ())
                self.tail[rank] = (self.builder.marker(rank, name, after=after),)
            self.host.wait(rank, self.tail.get(rank, ()))

    def _time(self, kernel: Kernel) -> int:
        if kernel not in self._times:
            self._times[kernel] = self.plan.chip.time_ps(kernel)
        return self._times[kernel]

    def _load_of_ranks(self) -> dict[int, float]:
        mesh = self.plan.mesh
        if all(load == 1 for load in self.loads):
            return {}
        groups = [
            group
            for stage in range(mesh.pipeline)
            for group in mesh.groups("expert", stage)
        ]
        return {
            rank: load
            for group in groups
            for rank, load in zip(group, self.loads, strict=True)
        }

    def _communicate(self, stage: int, step: Comm) -> None:
        done: Tails = {}
        for group in self.groups(step.dim, stage):
            paced = self._pace(group, step)
            for leg in legs_of(step, group, self._zones):
                exchange = Exchange(
                    step.dim,
                    step.operation,
                    leg.bytes,
                    step.name,
                    algorithm=self._copy_algorithm(step, leg.ranks),
                    channels=leg.channels,
                    protocol=leg.protocol,
                )
                for rank, tasks in self.collective(
                    exchange, leg.ranks, leg.stream
                ).items():
                    done[rank] = (*done.get(rank, ()), *tasks, *paced.pop(rank, ()))
        if step.key:
            self._open[stage, step.key] = done
        else:
            self.join(done)

    def _copy_algorithm(self, step: Comm, ranks: Sequence[int]) -> str | None:
        """Return the algorithm of copy engines for their messages in a node without settings of the workload."""
        options = self._options(dim_of(step.dim), step.operation, step.bytes)
        inside = len({self._zones[rank] for rank in ranks}) == 1
        return (
            "copy-engines"
            if step.copies and inside and not CHOSEN & {*options}
            else None
        )

    def _pace(self, group: Sequence[int], step: Comm) -> Tails:
        """Add delays of the minimum CTA time of a communication, parallel to its messages."""
        result: Tails = {}
        for rank in group if step.least_ps else ():
            task = self.builder.delay(
                rank,
                step.least_ps,
                stream=f"{step.dim} pace",
                name=step.name,
                after=self.tail.get(rank, ()),
            )
            result[rank] = (task,)
        return result

    def between(
        self,
        pairs: Sequence[tuple[int, int]],
        size_bytes: int,
        action: Action,
        stream: str,
        *,
        both: bool,
    ) -> Tails:
        """Add parallel messages between stages, each after the work of its sender, or of `both`."""
        waits: Tails = {}
        for src, dst in pairs:
            waits[src] = self.tail.get(src, ())
            waits[dst] = self.tail.get(dst, ()) if both else waits[src]
        exchange = Exchange("pipeline", "send", size_bytes, str(action))
        # A sender that does not wait continues while its data are in buffers: a pause of fixed length cannot model
        # it.
        write = self.written_messages if both else self.messages
        return write(exchange, pairs, waits, stream)

    def folds(self, *, in_parallel: bool = False) -> bool:
        """True if equal blocks are replicated, with `in_parallel` also those parallel to reductions."""
        return False

    def blocks(
        self, stage: int, blocks: Sequence[Block], prefix: Sequence[Step], name: str
    ) -> None:
        """Add the blocks of a pass, the first of them after `prefix`."""
        if not self.folds():
            self.run(
                stage,
                [*prefix, *(step for steps, _ in blocks for step in steps)],
                name,
            )
            return
        for steps, (kind, ids) in blocks:
            with_prefix = [*prefix, *steps] if prefix else steps
            self.block(stage, with_prefix, (kind, len(prefix), ids), name)
            prefix = []

    def block(self, stage: int, steps: Sequence[Step], key: Any, name: str) -> None:
        """Add the steps of a block; blocks with the same `key` are equal."""
        self.run(stage, steps, name)

    def optimizer(
        self, ranks: Iterable[int], elements: int, name: str = "optimizer"
    ) -> None:
        """Add an optimiser step over this number of parameters."""
        if elements > 0:
            self.kernels(tuple(ranks), [self.plan.optimizer.kernel(elements)], name)


def _turns(steps: Iterable[Step]) -> list[list[Step]]:
    """Split steps after every communication that the next step waits for."""
    result: list[list[Step]] = [[]]
    for step in steps:
        result[-1].append(step)
        if isinstance(step, Comm) and not step.key:
            result.append([])
    return result
