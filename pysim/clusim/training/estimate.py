"""Estimates of training steps: the plan's order of passes, with times of simulated parts.

The writer emits steps as `clusim.workload.parallel` does, for one rank of every stage, into a `Clock`. Work of a rank
lasts as long as the sum of its kernels. Joint work is a part simulated by the engine, either in isolation or beside
kernels with the stage's memory traffic. Repeated blocks without concurrent communication have the same time again.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, Unpack

import numpy as np

from clusim.base.files import guard_inputs
from clusim.base.kept import SampleCache
from clusim.base.limits import pause_collector
from clusim.jobs.times import Times
from clusim.lowering.grain import COARSE, STEP, share_granularity
from clusim.results.diagnosis import ProvableVerdict
from clusim.results.intervals import Union
from clusim.results.replicated import RankPattern, dimension_unions
from clusim.simulation.anchors import MOST_TOGETHER
from clusim.topology import Fabric
from clusim.topology.check_flow import never_tapers
from clusim.training.api import EstimateOptions, train_request
from clusim.training.clock import Clock, RankRows, Repeated
from clusim.training.depth import memory_notes, plan_notes
from clusim.training.expected import expected_text
from clusim.training.extrapolated import JointWork, Write
from clusim.training.parts import StepPart, StepParts, kernel_traffic_Bps
from clusim.training.planned import CountedParts, PlannedWork
from clusim.training.request import SURE, WANTED_ERROR, TrainRequest
from clusim.training.result import StepResult
from clusim.training.run import finest, trained
from clusim.training.steady import reported_steps, reported_window, simulated_steps, steady_window
from clusim.training.step_diagnosis import Culprits, StepSpans, heavy_stage, step_verdict
from clusim.training.switches import Sharing
from clusim.training.uncomposed import (
    WHOLE_NOTE,
    StepEstimate,
    overlap_notes,
    provable_estimate,
    uneven,
    whole,
)
from clusim.workload import Workload
from clusim.workload.host import HostThreads
from clusim.workload.kernels import Kernel
from clusim.workload.layers import Comm, Step
from clusim.workload.parallel.emitter import Block, Emitter, Exchange, Tails, dim_of
from clusim.workload.parallel.pipeline import StepWriter
from clusim.workload.parallel.plan import ParallelPlan, make_plan
from clusim.workload.parallel.volumes import Volume
from clusim.workload.pipeline_schedules import Action


class _Done(NamedTuple):
    """Work and traffic of a stage in one or several blocks."""

    took: Repeated
    moved: dict[str, Volume]


class _Joint(NamedTuple):
    """Groups that communicate at a time: representative ranks, number of equal sets of groups that these represent.

    `origin` is as in `clusim.training.extrapolated.JointWork`.
    """

    groups: list[tuple[int, ...]]
    shown: list[int]
    times: int = 1
    origin: str = ""


class _Known(NamedTuple):
    """A message requested before: its part, the representative ranks, its repetitions."""

    part: StepPart
    shown: list[int]
    times: int


class StepEstimator(Emitter):
    """Emitter that adds the steps of a plan to a clock."""

    def __init__(self, plan: ParallelPlan, clock: Clock, parts: StepParts) -> None:
        host = plan.host()
        super().__init__(plan, clock, host=HostThreads(host, clock) if host is not None else None)
        self.clock, self.parts = clock, parts
        self.shown = {plan.mesh.stage(s)[0]: s for s in range(plan.mesh.pipeline)}
        self._blocks: dict[Any, _Done] = {}
        self._kept: list[Sequence[Block]] = []
        self._known: dict[Any, _Known] = {}
        self._moved: Counter[tuple[StepPart, int]] = Counter()
        self._joints: dict[tuple[tuple[int, ...], ...], _Joint] = {}
        self._own = [[rank] for rank in self.shown]
        self._stepped: set[int] = set()
        self._busy = [kernel_traffic_Bps(plan, stage) for stage in range(plan.mesh.pipeline)]

    def ranks(self, stage: int) -> list[int]:
        """Return the representative rank of a stage."""
        return self._own[stage]

    def coupled_ranks(self, stage: int) -> list[tuple[int, ...]]:
        """Return the ranks that communicate with the representative rank."""
        return self.plan.mesh.coupled_ranks(stage)[:1]

    def folds(self, *, in_parallel: bool = False) -> bool:
        """Return True: equal blocks are identified."""
        return True

    def kernels(self, ranks: Sequence[int], kernels: Sequence[Kernel], name: str) -> None:
        """Add kernels.

        After an optimiser step, communication has no concurrent kernels until the next ones.
        """
        if kernels:
            self._stepped.difference_update(ranks)
        super().kernels(ranks, kernels, name)

    def optimizer(self, ranks: Iterable[int], elements: int, name: str = "optimizer") -> None:
        """Add a step of the optimiser."""
        members = tuple(ranks)
        super().optimizer(members, elements, name)
        self._stepped.update(members)

    def blocks(
        self, stage: int, blocks: Sequence[Block], prefix: Sequence[Step], name: str
    ) -> None:
        """Add the blocks of a pass, in one piece if all were added before."""
        key_of_pass = stage, len(prefix), id(blocks)
        if key_of_pass in self._blocks and self.host is None:
            rank = self._own[stage][0]
            begin = self.clock.ready(rank, self.tail.get(rank, ()))
            if not self.clock.disturbed(rank, begin):
                self._again(stage, key_of_pass, name, begin)
                return
        super().blocks(stage, blocks, prefix, name)
        sizes = [len(prefix), *[0] * (len(blocks) - 1)]
        keys = [
            (stage, (kind, size, ids)) for size, (_, (kind, ids)) in zip(sizes, blocks, strict=True)
        ]
        if all(key in self._blocks for key in keys):
            self._blocks[key_of_pass] = _sum([self._blocks[key] for key in keys])
            self._kept.append(blocks)

    def _again(self, stage: int, block_key: Any, name: str, begin: int) -> None:
        """Repeat one or several earlier blocks."""
        rank = self._own[stage][0]
        self.tail[rank] = (self.clock.again(rank, self._blocks[block_key].took, name, begin),)

    def block(self, stage: int, steps: Sequence[Step], key: Any, name: str) -> None:
        """Add the steps of a block, or the time of its first occurrence."""
        rank, block_key = self._own[stage][0], (stage, key)
        begin = self.clock.ready(rank, self.tail.get(rank, ()))
        if self.host is not None or self.clock.disturbed(rank, begin):
            self.run(stage, steps, name)
        elif block_key in self._blocks:
            self._again(stage, block_key, name, begin)
        else:
            self._blocks[block_key] = self._first(stage, steps, name, begin)

    def finish(self) -> None:
        """Add the traffic, operations and kernel times of repeated blocks to the sums."""
        for (stage, *_), done in self._blocks.items():
            times = len(self.clock.rows[self._own[stage][0]].again.get(done.took, ()))
            self._count(done.moved, times)
            self.flops += done.took.flops * times
            self.clock.kernel_ps += done.took.kernel_ps * times
            self.clock.alone_ps += done.took.alone_ps * times
        for (part, sets), times in self._moved.items():
            self._count(part.volumes(), sets * times)

    def _first(self, stage: int, steps: Sequence[Step], name: str, begin: int) -> _Done:
        """Add a block for the first time and return its work and traffic."""
        rank, clock, before = self.ranks(stage)[0], self.clock, self.traffic
        row = clock.rows[rank]
        sizes = len(row.compute), len(row.moving)
        sums = clock.kernel_ps, clock.alone_ps, self.flops
        self.traffic = {}
        self.run(stage, steps, name)
        moved, self.traffic = self.traffic, before
        self._count(moved)
        end = max(clock.when(self.tail[rank]), begin)
        part = RankRows(row.compute[sizes[0] :], row.moving[sizes[1] :]).spans()
        spans = (
            Union.of(part.compute).spans - begin,
            dimension_unions(part.moving - np.array((begin, begin, 0))),
        )
        pattern = RankPattern(*spans, end - begin)
        kernel_ps, alone_ps = clock.kernel_ps - sums[0], clock.alone_ps - sums[1]
        return _Done(Repeated(pattern, kernel_ps, alone_ps, self.flops - sums[2]), moved)

    def _count(self, moved: dict[str, Volume], times: int = 1) -> None:
        for dim, volume in moved.items():
            self.traffic.setdefault(dim, Volume()).add(volume, times)

    def _communicate(self, stage: int, step: Comm) -> None:
        """Add the communication of a stage's representative rank with its peers."""
        ranks = self.coupled_ranks(stage)[0]
        groups = [group for group in self.groups(step.dim, stage) if set(group) <= set(ranks)]
        if not groups:
            return
        unnamed = replace(step, name="", key="", part="forward")

        def write(writer: Emitter, there: Mapping[int, int]) -> Tails:
            writer.run(stage, [unnamed], "part")
            return writer.tail

        beside = self._busy[stage] if step.key else None
        part = self.parts.find(unnamed, JointWork(ranks, write), beside)
        self._count(part.volumes(), len(self.plan.mesh.coupled_ranks(stage)))
        rank = self.ranks(stage)[0]
        done = self.clock.move([rank], step.dim, part.took, self.tail)
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
        """Add concurrent collectives, one per group."""
        key = tuple(groups)
        if key not in self._joints:
            self._joints[key] = self._joint(groups)
        joint = self._joints[key]

        def write(writer: Emitter, there: Mapping[int, int]) -> Tails:
            groups_there = [tuple(there[rank] for rank in group) for group in joint.groups]
            return writer.collectives(exchange, groups_there, stream)

        return self._together(exchange, joint, stream or dim_of(exchange.dim), after, write)

    def _joint(self, groups: Sequence[tuple[int, ...]]) -> _Joint:
        """Return the groups to simulate: those on the nodes of representative ranks.

        Groups of other nodes share no wires inside nodes with these, and are equal to them. The network that both use
        does not taper.
        """
        zones, shown = self._zones, self._shown(groups)
        here = {zones[rank] for rank in shown}
        places = [{zones[rank] for rank in group} for group in groups]
        while here and any(here < place | here for place in places if place & here):
            here = here.union(*(place for place in places if place & here))
        near = [group for group, place in zip(groups, places, strict=True) if place & here]
        times = len(groups) // max(1, len(near))
        inside = all(len(place) == 1 for place in places)
        large = sum(map(len, groups)) > MOST_TOGETHER and never_tapers(self.plan.fabric)
        if not near or times < 2 or len(groups) % len(near) or not (inside or large):
            return _Joint(list(groups), shown)
        return _Joint(near, shown, times, "" if inside else f"one of {times} equal sets of nodes")

    def _shown(self, groups: Iterable[tuple[int, ...]]) -> list[int]:
        """Return the representative ranks in groups."""
        return [rank for group in groups for rank in group if rank in self.shown]

    def written_messages(
        self, exchange: Exchange, pairs: Sequence[tuple[int, int]], waits: Tails, stream: str
    ) -> Tails:
        """Add concurrent messages of the same size."""
        shown = self._shown(pairs)
        times = len(self.plan.mesh.coupled_ranks(self.shown[shown[0]])) if shown else 1

        def write(writer: Emitter, there: Mapping[int, int]) -> Tails:
            pairs_there = [(there[one], there[two]) for one, two in pairs]
            nothing: Tails = {rank: () for pair in pairs_there for rank in pair}
            return writer.written_messages(exchange, pairs_there, nothing, stream)

        return self._together(exchange, _Joint(list(pairs), shown, times), stream, waits, write)

    def _together(
        self, exchange: Exchange, joint: _Joint, stream: str, after: Tails | None, write: Write
    ) -> Tails:
        """Add concurrent communication of groups that contain representative ranks."""
        groups, shown, times, _ = joint
        ranks = tuple(rank for group in groups for rank in group)
        if not shown:
            return {}
        sends = exchange.operation == "send"
        busy = None
        if not sends and not self._stepped.intersection(shown):
            busy = self._busy[self.shown[shown[0]]]
        said = exchange.dim, exchange.operation, exchange.bytes, exchange.algorithm, exchange.dtype
        key = (tuple(map(len, groups)), *said, exchange.channels, exchange.protocol)
        part = self.parts.find(key, JointWork(ranks, write, joint.origin), busy)
        if sends:
            self._known[stream, exchange.bytes, groups[0]] = _Known(part, shown, times)
        self._moved[part, times] += 1
        waits = {rank: (after or self.tail).get(rank, ()) for rank in shown}
        self._enqueue(exchange, waits)
        return self.clock.move(shown, stream, part.took, waits)

    def between(
        self,
        pairs: Sequence[tuple[int, int]],
        size_bytes: int,
        action: Action,
        stream: str,
        *,
        both: bool,
    ) -> Tails:
        """Add messages between stages, reusing equal earlier ones."""
        known = self._known.get((stream, size_bytes, pairs[0]))
        if known is None or self.host is not None:
            return super().between(pairs, size_bytes, action, stream, both=both)
        src, dst = known.shown
        waits = {src: self.tail.get(src, ())}
        waits[dst] = self.tail.get(dst, ()) if both else waits[src]
        self._moved[known.part, known.times] += 1
        return self.clock.move(known.shown, stream, known.part.took, waits)


def _sum(blocks: Sequence[_Done]) -> _Done:
    """Return consecutive blocks of a rank as one."""
    moved: dict[str, Volume] = {}
    for done in blocks:
        for dim, volume in done.moved.items():
            moved.setdefault(dim, Volume()).add(volume)
    blocks_took, compute, moving, end_ps = [done.took for done in blocks], [], [], 0
    for took in blocks_took:
        compute.append(took.pattern.compute + end_ps)
        moving.append(took.pattern.moving + np.array((end_ps, end_ps, 0)))
        end_ps += took.pattern.end_ps
    spans = Union.of(*compute).spans, dimension_unions(np.concatenate(moving))
    pattern = RankPattern(*spans, end_ps)
    kernel_ps = sum(took.kernel_ps for took in blocks_took)
    alone_ps = sum(took.alone_ps for took in blocks_took)
    return _Done(Repeated(pattern, kernel_ps, alone_ps, sum(t.flops for t in blocks_took)), moved)


def estimated(
    request: TrainRequest, kept: SampleCache | None = None, *, confirm: bool | None = None
) -> StepEstimate:
    """Estimate training steps, as a run of the same request would simulate them.

    Parameters
    ----------
    kept : SampleCache or None
        Cache of parts; None is the user's folder.
    confirm : bool or None
        Whether `diagnose` estimates all changes (True) or no change (False); None: those that are cheap.

    Where ranks of a stage differ (faults, stragglers, experts that are not evenly used, parameter servers), or the
    parts need as many packets as the step, the step is one part, which the engine simulates in full.
    """
    # Passes are many small objects without reference cycles.
    with pause_collector():
        return _estimated(request, kept or SampleCache(), confirm)


def _estimated(request: TrainRequest, kept: SampleCache, confirm: bool | None) -> StepEstimate:
    began = time.perf_counter()
    plan = make_plan(request.workload, request.setup.known)
    memory = [plan.memory(stage) for stage in range(plan.mesh.pipeline)]
    notes = memory_notes(plan, memory, request.strict_memory)
    differ = uneven(request, plan)
    work = PlannedWork(0) if differ else _planned(request, plan, kept)
    if differ or work.whole:
        result = whole(request, plan, kept, confirm=confirm)
    else:
        fast = replace(request, granularity=COARSE) if request.granularity == STEP else request
        times = Times(share_granularity(fast.granularity, 2 * work.runs), kept)
        parts = StepParts(request.setup, plan, times, seed=request.seed)
        result = _bounded(fast, parts)
        fine = fast is request or finest(result.grain_error)
        if not fine and ((bound := result.grain_bound) is None or bound > SURE * WANTED_ERROR):
            times = Times(share_granularity(request.granularity, 2 * work.runs), kept)
            again = StepParts(
                request.setup, plan, times, simulated=parts.simulated, seed=request.seed
            )
            result = _bounded(request, again)
        run = partial(_estimated, kept=kept, confirm=False)
        result = replace(result, judged=provable_estimate((request, result), run, confirm))
    if work.whole:
        notes.append(WHOLE_NOTE)
    notes += plan_notes(plan, request.setup.fabric)
    if plan.workload.checkpoint is not None:
        notes.append("the estimate excludes checkpoints; simulate the step instead")
    notes += result.notes
    return replace(result, memory=memory, notes=notes, wall_s=time.perf_counter() - began)


def stepped(request: TrainRequest) -> StepResult:
    """Return the result of a request, estimated or simulated, without changes."""
    return estimated(request) if request.estimate else trained(request)


def estimate(
    workload: str | Path | Workload,
    fabric: str | Path | Fabric | None = None,
    **options: Unpack[EstimateOptions],
) -> StepEstimate:
    """Estimate training steps, as ``clusim train --estimate`` does.

    Parameters
    ----------
    workload, fabric
        As for `clusim.train`.
    **options
        See `clusim.training.api.EstimateOptions`.

    Returns
    -------
    StepEstimate
        `step_time_s` [s], `mfu`, `mean("exposed")` [s] and the rest of a simulated step's results, without wires.

    Raises
    ------
    InputError
        An invalid name, size or option, or with `strict_memory` too little memory.
    """
    with guard_inputs():
        confirm = options.pop("confirm", None)
        return estimated(train_request(workload, fabric, estimate=True, **options), confirm=confirm)


def _bounded(request: TrainRequest, parts: StepParts) -> StepEstimate:
    """Compose a step; again at the error limit of extrapolated parts, if any.

    A step is a longest path, so that it loses no more where they are shorter.
    """
    result = _made(request, parts.plan, parts)
    if not parts.followed:
        return result
    longer = _made(request, parts.plan, replace(parts, longer=True, bounds=[], _known={}))
    off_ps = longer.step_ps[-1] - result.step_ps[-1]
    return replace(result, followed=parts.followed, followed_ps=off_ps)


def _planned(request: TrainRequest, plan: ParallelPlan, kept: SampleCache) -> PlannedWork:
    """Return the work of parts without a cache; two microbatches per stage have all of them."""
    few = 2 * plan.mesh.pipeline * plan.workload.pipeline.pieces
    times = simulated_steps(plan, request.steps)
    if plan.microbatches % few == 0:
        times *= plan.microbatches // few
        plan = replace(plan, microbatches=few)
    parts = CountedParts(request.setup, plan, Times(kept=kept))
    emitter = StepEstimator(plan, Clock(plan.fabric, plan.workload.name), parts)
    StepWriter(emitter).write(1)
    emitter.finish()
    return parts.planned(request.granularity, emitter.traffic, times)


def _made(request: TrainRequest, plan: ParallelPlan, parts: StepParts) -> StepEstimate:
    """Compose a step from parts at the granularity of the request."""
    clock = Clock(plan.fabric, plan.workload.name)
    emitter = StepEstimator(plan, clock, parts)
    writer = StepWriter(emitter)
    writer.write(simulated_steps(plan, request.steps))
    emitter.finish()
    ends = [max(clock.when(tasks) for tasks in step.values()) for step in writer.steps]
    steady = steady_window(plan, writer.steps, clock.when)
    low, high = reported_window(ends, steady)
    passed = max((end for end in clock.passes if end <= high), default=high)
    spans = {rank: clock.rows[rank].spans() for rank in emitter.shown}
    last = StepSpans(spans, list(emitter.shown), low, passed, high, plan.mesh.pipeline > 1, steady)
    rows = last.whole
    of_stage = dict(zip(emitter.shown.values(), rows, strict=True))
    ranks = {
        rank: replace(tasks, rank=rank)
        for stage, tasks in of_stage.items()
        for rank in plan.mesh.stage(stage)
    }
    each = plan.mesh.size // plan.mesh.pipeline
    exact = None not in parts.bounds
    every = [ranks[rank] for rank in sorted(ranks)]
    culprits = Culprits(bubble=heavy_stage(every, plan.mesh))
    error = expected_text(plan.chip.name, plan.workload.host.framework)
    return StepEstimate(
        plan=plan,
        step_ps=reported_steps(ends, steady),
        ranks=every,
        judged=ProvableVerdict(step_verdict(last.by_phase, error, culprits)),
        memory=[],
        notes=overlap_notes(spans.values(), low, high),
        traffic=emitter.traffic,
        executed_flops=emitter.flops * each // len(ends),
        wall_s=0.0,
        sharing=Sharing(clock.kernel_ps * each, clock.alone_ps * each),
        grain_error=max(filter(None, parts.bounds), default=0.0) if exact else None,
        parts=parts.different,
        simulated=len(parts.simulated),
        spans=sum(len(row.compute) + len(row.moving) for row in clock.rows.values()),
    )
