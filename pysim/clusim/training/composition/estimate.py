"""Estimates of training steps: the plan's order of passes, with every part as the engine took it before."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypedDict, Unpack

from clusim.base.files import guarded
from clusim.base.limits import uncollected
from clusim.lowering.grain import COARSE, STEP
from clusim.topology import Fabric
from clusim.training.composition.cache import Kept
from clusim.training.composition.clock import Clock
from clusim.training.composition.parts import StepParts
from clusim.training.composition.stepestimate import StepEstimate
from clusim.training.composition.uncomposed import whole
from clusim.training.composition.writer import StepEstimator
from clusim.training.expected import expected_text
from clusim.training.inputs import inputs
from clusim.training.overlap_cost import Sharing
from clusim.training.phases import StepSpans, step_phases
from clusim.training.planned import memory_notes, plan_notes
from clusim.training.request import WANTED_ERROR, TrainRequest
from clusim.training.result import StepResult
from clusim.training.run import trained
from clusim.training.step_diagnosis import Culprits, step_verdict
from clusim.training.stragglers import heavy_stage
from clusim.workload import Workload
from clusim.workload.parallel.pipeline import StepWriter
from clusim.workload.parallel.plan import ParallelPlan, make_plan


class EstimateOptions(TypedDict, total=False):
    """What `estimate` can be told besides, as `clusim.training.api.TrainOptions` has it."""

    nodes: int | None
    steps: int
    strict_memory: bool
    granularity: str | int
    seed: int
    faults: Sequence[Any]


def estimated(request: TrainRequest, kept: Kept | None = None) -> StepEstimate:
    """Estimate training steps, as a run of the same request would simulate them.

    Parameters
    ----------
    kept : Kept or None
        Where parts are; None is the user's folder.

    Returns
    -------
    StepEstimate
        Where ranks of a stage differ (faults, stragglers, experts that are not evenly used, parameter servers), the
        step is one part, which the engine simulates whole.
    """
    # Passes are many small objects without circles.
    with uncollected():
        return _estimated(request, kept or Kept())


def _estimated(request: TrainRequest, kept: Kept) -> StepEstimate:
    began = time.perf_counter()
    plan = make_plan(request.workload, request.setup.known)
    memory = [plan.memory(stage) for stage in range(plan.mesh.pipeline)]
    notes = memory_notes(plan, memory, request.strict_memory)
    if any(_uneven(request, plan)):
        found = whole(request, plan, kept)
    elif request.granularity == STEP:
        found = _bounded(replace(request, granularity=COARSE), plan, kept)
        if found.grain_bound is None or found.grain_bound > WANTED_ERROR:
            found = _bounded(request, plan, kept)
    else:
        found = _bounded(request, plan, kept)
    notes += plan_notes(plan, request.setup.fabric)
    if plan.workload.checkpoint is not None:
        notes.append("an estimate has no step with a checkpoint; simulate it")
    return replace(found, memory=memory, notes=notes, wall_s=time.perf_counter() - began)


def stepped(request: TrainRequest) -> StepResult:
    """Answer a request: by an estimate if it asks for one, else by simulation."""
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
        As of `clusim.train`.
    **options
        See `EstimateOptions`.

    Returns
    -------
    StepEstimate
        `step_time_s` [s], `mfu`, `mean("exposed")` [s] and the rest of what a simulated step has, but no wires.

    Raises
    ------
    InputError
        A name, size or option that has no meaning here, or with `strict_memory` too little memory.
    """
    given: dict[str, Any] = dict(options)
    with guarded():
        asked = inputs(workload, fabric, given.pop("nodes", None), given.pop("faults", ()))
        return estimated(TrainRequest(*asked, estimate=True, **given))


def _uneven(request: TrainRequest, plan: ParallelPlan) -> Iterator[bool]:
    """Say for all that makes ranks of a stage differ whether it is there."""
    own = plan.workload
    yield bool(request.setup.broken.faults or plan.servers)
    yield bool(own.stragglers.ranks or own.stragglers.jitter or own.experts.skew)
    yield plan.crew.stages < plan.mesh.pipeline


def _bounded(request: TrainRequest, plan: ParallelPlan, kept: Kept) -> StepEstimate:
    """Put a step together; with parts that were followed once more, with these as much longer as they may be off.

    A step is a longest path, so that it loses no more where they are shorter.
    """
    parts = StepParts(request.setup, plan, request.granularity, kept)
    found = _made(request, plan, parts)
    if not parts.followed:
        return found
    longer = _made(request, plan, replace(parts, longer=True, bounds=[], _known={}))
    return replace(
        found, followed=parts.followed, followed_ps=longer.step_ps[-1] - found.step_ps[-1]
    )


def _made(request: TrainRequest, plan: ParallelPlan, parts: StepParts) -> StepEstimate:
    """Put a step together of parts at the granularity of the request."""
    clock = Clock(plan.fabric, plan.workload.name)
    emitter = StepEstimator(plan, clock, parts)
    writer = StepWriter(emitter)
    writer.write(request.steps)
    emitter.finish()
    ends = [max(clock.when(own) for own in step.values()) for step in writer.steps]
    low, high = (ends[-2] if len(ends) > 1 else 0), ends[-1]
    passed = max((end for end in clock.passes if end <= high), default=high)
    spans = {rank: clock.rows[rank].spans() for rank in emitter.shown}
    last = StepSpans(spans, list(emitter.shown), low, passed, high, plan.mesh.pipeline > 1)
    rows = last.whole
    of_stage = dict(zip(emitter.shown.values(), rows, strict=True))
    ranks = {
        rank: replace(own, rank=rank)
        for stage, own in of_stage.items()
        for rank in plan.mesh.stage(stage)
    }
    each = plan.mesh.size // plan.mesh.pipeline
    known = [bound for bound in parts.bounds if bound is not None]
    exact = len(known) == len(parts.bounds)
    every = [ranks[rank] for rank in sorted(ranks)]
    culprits = Culprits(bubble=heavy_stage(every, plan.mesh))
    error = expected_text(plan.chip.name, plan.workload.host.framework)
    return StepEstimate(
        plan=plan,
        step_ps=[b - a for a, b in zip([0, *ends], ends, strict=False)],
        ranks=every,
        judged=step_verdict(every, high - low, error, culprits, step_phases(last, culprits)),
        memory=[],
        traffic=emitter.traffic,
        executed_flops=emitter.flops * each // len(ends),
        wall_s=0.0,
        sharing=Sharing(clock.kernel_ps * each, clock.alone_ps * each),
        grain_error=max(known, default=0.0) if exact else None,
        parts=parts.different,
        simulated=parts.simulated,
    )
