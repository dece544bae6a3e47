"""Training steps as a job of one rank of every stage.

Operations are kernels, host work, collectives and messages, and *blocks*: kernels and inner calls of a pass that a rank
repeats. A block is one operation. Times are determined later, by `clusim.training.step_calls`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from typing import Any, NamedTuple

from clusim.collectives.builder import ScheduleBuilder
from clusim.jobs.model import DelayWork, KernelWork
from clusim.schedule.ir import Task, TaskKind
from clusim.simulation.anchors import MOST_TOGETHER
from clusim.topology import Fabric
from clusim.topology.check_flow import never_tapers
from clusim.training.extrapolated import JointWork
from clusim.training.parts import kernel_traffic_Bps, rounded
from clusim.workload.host import HostThreads
from clusim.workload.layers import Comm, Step
from clusim.workload.parallel.emitter import Block, Emitter
from clusim.workload.parallel.exchanges import Exchange, Tails, dim_of
from clusim.workload.parallel.plan import ParallelPlan
from clusim.workload.pipeline_schedules import Action


@dataclass(frozen=True, eq=False)
class StepCall:
    """Communication of several ranks at a time, compared by identity.

    Attributes
    ----------
    shown : tuple of int
        Representative ranks in it.
    key : tuple
        Complete description except for the location: sizes of groups, and an exchange or step.
    ranks : tuple of int
        Ranks that take part.
    write : callable
        Emits an exchange or step on ranks renumbered by a mapping.
    traffic_Bps : float or None
        Memory traffic of the concurrent kernels [bytes/s]; None is without kernels.
    sets, origin
        Number of equal sets of ranks that it represents, and a note on them as in
        `clusim.training.extrapolated.JointWork`.
    """

    shown: tuple[int, ...]
    key: tuple[tuple[int, ...], Exchange | Comm]
    ranks: tuple[int, ...]
    write: Callable[[Any, Emitter, Mapping[int, int]], Tails]
    traffic_Bps: float | None = None
    sets: int = 1
    origin: str = ""

    @property
    def sent_bytes(self) -> int:
        """Bytes that its ranks send, at most [bytes]."""
        return 2 * self.key[1].bytes * len(self.ranks)

    @property
    def work(self) -> JointWork:
        """Its communication."""
        return JointWork(self.ranks, partial(self.write, self.key[1]), self.origin)

    def resize(self) -> StepCall:
        """Return the call with the next power of two of its bytes."""
        sizes, step = self.key
        size_bytes = 1 << max(0, step.bytes - 1).bit_length()
        across = getattr(step, "across", 0) * size_bytes // max(1, step.bytes)
        changes: dict[str, Any] = {"bytes": size_bytes} | (
            {"across": across} if across else {}
        )
        return replace(self, key=(sizes, replace(step, **changes)))


class StepWork(NamedTuple):
    """Tasks of a job, and the work of each."""

    tasks: list[Task]
    works: list[Any]

    def uses(self) -> Counter[Any]:
        """Return the number of tasks of each work, those of blocks included."""
        result: Counter[Any] = Counter()
        for work, count in Counter(self.works).items():
            inner = work.inner.uses() if isinstance(work, StepBlock) else {work: 1}
            for use, times in inner.items():
                result[use] += count * times
        return result


@dataclass(frozen=True, eq=False)
class StepBlock:
    """Work of a rank between two times at which it only computes, compared by identity."""

    inner: StepWork
    flops: int


class StepJob(ScheduleBuilder):
    """Schedule builder with calls and blocks as programs; `steps` are its tasks."""

    def __init__(self, fabric: Fabric, name: str) -> None:
        super().__init__(fabric, name)
        self.steps = StepWork(self._tasks, [])
        self._entries = 0
        self._optimizer_tasks: set[int] = set()

    def mark_optimizer(self, rank: int) -> None:
        """Note that the last kernel of a rank is the optimizer's."""
        self._optimizer_tasks.update(self._last.get((rank, "compute"), ()))

    def has_stepped(self, rank: int) -> bool:
        """Return True if the last kernel of a rank is the optimizer's."""
        return not self._optimizer_tasks.isdisjoint(
            self._last.get((rank, "compute"), ())
        )

    def _append(self, task: Task) -> int:
        kernel = task.kind == "kernel"
        self.steps.works.append(
            KernelWork(task.compute_ps) if kernel else DelayWork(task.delay_ps)
        )
        return super()._append(task)

    def enter(
        self,
        ranks: Iterable[int],
        stream: str,
        work: StepCall | StepBlock,
        after: Mapping[int, Iterable[int]],
        name: str = "",
    ) -> Tails:
        """Append a call or block; return its task of each rank."""
        kind: TaskKind = "delay" if name else "program"
        result: Tails = {}
        for rank in ranks:
            deps = self._waits(rank, stream, after.get(rank, ()))
            self.steps.works.append(work)
            task = Task(kind, rank, stream, name, deps, call=self._entries)
            result[rank] = (super()._append(task),)
        self._entries += 1
        return result


class JointGroups(NamedTuple):
    """Groups that communicate at a time: representative ranks, number of equal sets of groups that these represent.

    `origin` is as in `clusim.training.extrapolated.JointWork`.
    """

    groups: list[tuple[int, ...]]
    shown: list[int]
    times: int = 1
    origin: str = ""


class JobEmitter(Emitter):
    """Emitter that appends the steps of a plan to a job."""

    builder: StepJob

    def __init__(self, plan: ParallelPlan) -> None:
        host, builder = plan.host(), StepJob(plan.fabric, plan.workload.name)
        threads = HostThreads(host, builder) if host is not None else None
        super().__init__(plan, builder, host=threads)
        self.shown = {plan.mesh.stage(s)[0]: s for s in range(plan.mesh.pipeline)}
        self._own = [[rank] for rank in self.shown]
        self._blocks: dict[Any, StepBlock] = {}
        self._calls: dict[Any, StepCall] = {}
        self._messages: dict[Any, StepCall] = {}
        self._joints: dict[tuple[tuple[int, ...], ...], JointGroups] = {}
        self._busy = [
            kernel_traffic_Bps(plan, stage) for stage in range(plan.mesh.pipeline)
        ]

    def ranks(self, stage: int) -> list[int]:
        """Return the representative rank of a stage."""
        return self._own[stage]

    def coupled_ranks(self, stage: int) -> list[tuple[int, ...]]:
        """Return the ranks that communicate with the representative rank."""
        return self.plan.mesh.coupled_ranks(stage)[:1]

    def folds(self, *, in_parallel: bool = False) -> bool:
        """Return True: equal blocks are identified."""
        return True

    def blocks(
        self, stage: int, blocks: Sequence[Block], prefix: Sequence[Step], name: str
    ) -> None:
        """Append the blocks of a pass as one; with host threads, which issue them one by one, separately."""
        if self.host is not None:
            super().blocks(stage, blocks, prefix, name)
            return
        steps = chain(prefix, *(part for part, _ in blocks))
        self.block(stage, steps, (len(prefix), id(blocks)), name)

    def block(self, stage: int, steps: Iterable[Step], key: Any, name: str) -> None:
        """Append a block as one operation; with host threads, its steps."""
        if self.host is not None:
            self.run(stage, steps, name)
            return
        if (stage, key) not in self._blocks:
            self._blocks[stage, key] = self._written_block(stage, steps, name)
        block, ranks = self._blocks[stage, key], self.ranks(stage)
        self.flops += block.flops
        self.tail |= self.builder.enter(ranks, "compute", block, self.tail, name)

    def _written_block(
        self, stage: int, steps: Iterable[Step], name: str
    ) -> StepBlock:
        """Return steps as a block, written into a separate job."""
        inner = copy(self)
        inner.builder, inner.tail, inner.flops = (
            StepJob(self.plan.fabric, name),
            {},
            0,
        )
        inner.run(stage, steps, name)
        return StepBlock(inner.builder.steps, inner.flops)

    def optimizer(
        self, ranks: Iterable[int], elements: int, name: str = "optimizer"
    ) -> None:
        """Append a step of the optimizer."""
        members = tuple(ranks)
        super().optimizer(members, elements, name)
        for rank in members:
            self.builder.mark_optimizer(rank)

    def _find(self, call: StepCall) -> StepCall:
        """Return the first call that is equal."""
        return self._calls.setdefault(
            (call.key, call.ranks, rounded(call.traffic_Bps)), call
        )

    def _communicate(self, stage: int, step: Comm) -> None:
        """Append the communication of a stage's representative rank with its peers."""
        ranks = self.coupled_ranks(stage)[0]
        if not self.groups(step.dim, stage):
            return
        unnamed = replace(step, name="", key="", part="forward")

        def write(sized: Comm, writer: Emitter, there: Mapping[int, int]) -> Tails:
            writer.run(stage, [sized], "part")
            return writer.tail

        traffic = self._busy[stage] if step.key else None
        sets = len(self.plan.mesh.coupled_ranks(stage))
        shown = tuple(self._own[stage])
        call = self._find(
            StepCall(shown, ((), unnamed), ranks, write, traffic, sets)
        )
        done = self.builder.enter(call.shown, step.dim, call, self.tail)
        if step.key:
            self._open[stage, step.key] = done
        else:
            self.join(done)

    def collectives(
        self,
        exchange: Exchange,
        groups: Sequence[tuple[int, ...]],
        stream: str = "",
        after: Tails | None = None,
    ) -> Tails:
        """Append concurrent collectives, one per group."""
        key = tuple(groups)
        if key not in self._joints:
            self._joints[key] = self._joint(groups)
        joint = self._joints[key]

        def write(
            sized: Exchange, writer: Emitter, there: Mapping[int, int]
        ) -> Tails:
            groups_there = [
                tuple(there[rank] for rank in group if rank in there)
                for group in joint.groups
            ]
            return writer.collectives(
                sized, [group for group in groups_there if len(group) > 1], stream
            )

        return self._together(
            exchange, joint, stream or dim_of(exchange.dim), after, write
        )

    def _joint(self, groups: Sequence[tuple[int, ...]]) -> JointGroups:
        """Return the groups to simulate: those on the nodes of representative ranks.

        Groups of other nodes share no wires inside nodes with these, and are equal to them. The network that both use
        does not taper.
        """
        zones, representatives = self._zones, self._shown(groups)
        zones_here = {zones[rank] for rank in representatives}
        places = [{zones[rank] for rank in group} for group in groups]
        while zones_here and any(
            zones_here < place | zones_here for place in places if place & zones_here
        ):
            zones_here = zones_here.union(
                *(place for place in places if place & zones_here)
            )
        nearest = [
            group
            for group, place in zip(groups, places, strict=True)
            if place & zones_here
        ]
        times = len(groups) // max(1, len(nearest))
        inside = all(len(place) == 1 for place in places)
        large = sum(map(len, groups)) > MOST_TOGETHER and never_tapers(
            self.plan.fabric
        )
        if (
            not nearest
            or times < 2
            or len(groups) % len(nearest)
            or not (inside or large)
        ):
            return JointGroups(list(groups), representatives)
        return JointGroups(
            nearest,
            representatives,
            times,
            "" if inside else f"one of {times} equal sets of nodes",
        )

    def _shown(self, groups: Iterable[tuple[int, ...]]) -> list[int]:
        """Return the representative ranks in groups."""
        return [rank for group in groups for rank in group if rank in self.shown]

    def written_messages(
        self,
        exchange: Exchange,
        pairs: Sequence[tuple[int, int]],
        waits: Tails,
        stream: str,
    ) -> Tails:
        """Append concurrent messages of the same size."""
        representatives = self._shown(pairs)
        times = (
            len(self.plan.mesh.coupled_ranks(self.shown[representatives[0]]))
            if representatives
            else 1
        )

        def write(
            sized: Exchange, writer: Emitter, there: Mapping[int, int]
        ) -> Tails:
            pairs_there = [
                (there[one], there[two])
                for one, two in pairs
                if one in there and two in there
            ]
            after = {
                rank: writer.tail.get(rank, ())
                for pair in pairs_there
                for rank in pair
            }
            return writer.written_messages(sized, pairs_there, after, stream)

        done = self._together(
            exchange,
            JointGroups(list(pairs), representatives, times),
            stream,
            waits,
            write,
        )
        if done:
            self._messages[stream, exchange.bytes, pairs[0]] = (
                self.builder.steps.works[-1]
            )
        return done

    def between(
        self,
        pairs: Sequence[tuple[int, int]],
        size_bytes: int,
        action: Action,
        stream: str,
        *,
        both: bool,
    ) -> Tails:
        """Append messages between stages, again if equal messages were appended before."""
        message = self._messages.get((stream, size_bytes, pairs[0]))
        if message is None or self.host is not None:
            return super().between(pairs, size_bytes, action, stream, both=both)
        src, dst = message.shown
        waits = {src: self.tail.get(src, ())}
        waits[dst] = self.tail.get(dst, ()) if both else waits[src]
        return self.builder.enter(message.shown, stream, message, waits)

    def _together(
        self,
        exchange: Exchange,
        joint: JointGroups,
        stream: str,
        after: Tails | None,
        write: Callable[[Any, Emitter, Mapping[int, int]], Tails],
    ) -> Tails:
        """Append concurrent communication of groups that contain representative ranks."""
        groups, representatives, times, origin = joint
        if not representatives:
            return {}
        ranks = tuple(rank for group in groups for rank in group)
        sends = exchange.operation == "send"
        # After an optimiser step, communication has no concurrent kernels until the next ones.
        busy = None
        if not sends and not self.builder.has_stepped(representatives[0]):
            busy = self._busy[self.shown[representatives[0]]]
        key = tuple(map(len, groups)), replace(exchange, name="")
        call = self._find(
            StepCall(tuple(representatives), key, ranks, write, busy, times, origin)
        )
        waits = {
            rank: (after or self.tail).get(rank, ()) for rank in representatives
        }
        self._enqueue(exchange, waits)
        return self.builder.enter(representatives, stream, call, waits)
