"""Estimates of training steps: a job of the plan's passes, played with times of simulated parts.

The job has one rank of every stage (`clusim.training.step_job`). Work of a rank lasts as long as the sum of its
kernels; a call is a part simulated by the engine, either in isolation or beside kernels with the stage's memory
traffic. Calls and blocks that overlap progress at the rates of `clusim.training.step_calls`.
"""

from __future__ import annotations

import time
from dataclasses import replace
from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import Any, NamedTuple, Unpack

from clusim.base.files import guard_inputs
from clusim.base.kept import SampleCache
from clusim.base.limits import pause_collector
from clusim.jobs.times import Times
from clusim.lowering.grain import COARSE, STEP, rule_of, share_granularity
from clusim.results.diagnosis import ProvableVerdict
from clusim.topology import Fabric
from clusim.training.api import EstimateOptions, train_request
from clusim.training.expected import expected_text
from clusim.training.parts import StepParts, rounded
from clusim.training.played import PlayedTiming, PlayedWork
from clusim.training.request import SURE, WANTED_ERROR, TrainRequest
from clusim.training.result import StepResult
from clusim.training.run import MOST_RANKS, finest, trained
from clusim.training.schedules import memory_notes, plan_notes
from clusim.training.steady import simulated_steps
from clusim.training.step_calls import StepTimer
from clusim.training.step_diagnosis import Culprits, heavy_stage, step_verdict
from clusim.training.step_job import JobEmitter, StepCall, StepWork
from clusim.training.switches import Sharing
from clusim.training.uncomposed import (
    WHOLE_NOTE,
    StepEstimate,
    provable_estimate,
    uneven,
    whole,
)
from clusim.workload import Workload
from clusim.workload.parallel.pipeline import StepWriter
from clusim.workload.parallel.plan import ParallelPlan, make_plan
from clusim.workload.parallel.volumes import Volume

RUNS_OF_CALL = 2
"""Runs of a call in an estimate that share the burst-hops of one; beside kernels there are twice as many."""


LEAST_HOPS = 2
"""Wires of a packet between two GPUs, at least."""


def estimated(
    request: TrainRequest,
    kept: SampleCache | None = None,
    *,
    confirm: bool | None = None,
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


def _estimated(
    request: TrainRequest, kept: SampleCache, confirm: bool | None
) -> StepEstimate:
    began = time.perf_counter()
    plan = make_plan(request.workload, request.setup.known)
    memory = [plan.memory(stage) for stage in range(plan.mesh.pipeline)]
    notes = memory_notes(plan, memory, request.strict_memory)
    steps, runs = None, 0
    coarse = COARSE if request.granularity == STEP else request.granularity
    if not uneven(request, plan):
        steps = JobSteps.of(request, plan)
        runs = steps.runs(
            StepParts(request.setup, plan, Times(kept=kept)), str(coarse)
        )
    if steps is None or (not runs and steps.is_of_single_uses):
        result = whole(request, plan, kept, confirm=confirm)
    else:
        simulated: set[Any] = set()
        for granularity in dict.fromkeys((coarse, request.granularity)):
            times = Times(share_granularity(granularity, runs), kept)
            parts = StepParts(
                request.setup, plan, times, simulated=simulated, seed=request.seed
            )
            result = _bounded(steps, parts)
            bound = result.grain_bound
            if finest(result.grain_error) or (
                bound is not None and bound <= SURE * WANTED_ERROR
            ):
                break
        run = partial(_estimated, kept=kept, confirm=False)
        result = replace(
            result, judged=provable_estimate((request, result), run, confirm)
        )
    if result.whole and steps is not None:
        notes.append(WHOLE_NOTE)
    notes += plan_notes(plan, request.setup.fabric)
    if plan.workload.checkpoint is not None:
        notes.append("the estimate excludes checkpoints; simulate the step instead")
    notes += result.notes
    return replace(
        result, memory=memory, notes=notes, wall_s=time.perf_counter() - began
    )


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
        return estimated(
            train_request(workload, fabric, estimate=True, **options),
            confirm=confirm,
        )


def _bounded(steps: JobSteps, parts: StepParts) -> StepEstimate:
    """Play steps; again at the error limit of extrapolated parts, if any.

    A step is a longest path, so that it loses no more where they are shorter.
    """
    result = _played(steps, parts)
    if not parts.followed:
        return result
    longer = _played(steps, replace(parts, longer=True, bounds=[], _known={}))
    off_ps = longer.step_ps[-1] - result.step_ps[-1]
    return replace(result, followed=parts.followed, followed_ps=off_ps)


class JobSteps(NamedTuple):
    """Steps as a job: its writer, its tasks, and the uses of its calls."""

    writer: StepWriter
    work: StepWork
    uses: dict[StepCall, int]

    @classmethod
    def of(cls, request: TrainRequest, plan: ParallelPlan) -> JobSteps:
        """Return the steps of a request."""
        emitter = JobEmitter(plan)
        writer = StepWriter(emitter)
        writer.write(simulated_steps(plan, request.steps))
        work = emitter.builder.steps
        uses = work.uses().items()
        calls = {
            call: count // len(call.shown)
            for call, count in uses
            if isinstance(call, StepCall)
        }
        return cls(writer, work, calls)

    @property
    def is_of_single_uses(self) -> bool:
        """True if every call has one use."""
        return bool(self.uses) and max(self.uses.values()) == 1

    def runs(self, parts: StepParts, granularity: str) -> int:
        """Return the number of runs that share the burst-hops of one; 0 if the step is in exact packets.

        Each call counts as `RUNS_OF_CALL`, and beside kernels twice.
        """
        plan, rule = parts.plan, rule_of(granularity)
        payload_bytes = min(
            size
            for form in plan.fabric.formats.values()
            for size in form.payload_bytes.values()
        )
        packets = (
            sum(call.sent_bytes * count for call, count in self.uses.items())
            // payload_bytes
        )
        if (
            rule is not None
            and plan.mesh.size <= MOST_RANKS
            and LEAST_HOPS * packets <= rule.exact_hops
        ):
            return 0
        runs = {
            (repr(parts.content(call.key, call.ranks)), traffic)
            for call in self.uses
            for traffic in (None, rounded(call.traffic_Bps))
        }
        return RUNS_OF_CALL * len(runs)

    def traffic(self, timer: StepTimer) -> dict[str, Volume]:
        """Return the traffic by dimension."""
        result: dict[str, Volume] = {}
        for call, times in self.uses.items():
            for dim, moved in timer.part(call).moved.items():
                result.setdefault(dim, Volume()).add(
                    Volume(*moved), times * call.sets
                )
        return result


def _played(steps: JobSteps, parts: StepParts) -> StepEstimate:
    """Play steps with parts."""
    plan, timer = parts.plan, StepTimer(parts)
    mesh, stages = plan.mesh, range(plan.mesh.pipeline)
    run = PlayedTiming(
        plan=plan,
        writer=steps.writer,
        schedule=steps.work,
        result=PlayedWork.of(steps.work, timer),
        timer=timer,
        shown=tuple(mesh.stage(stage)[0] for stage in stages),
    )
    rows = [
        replace(row, rank=rank)
        for stage, row in zip(stages, run.rows, strict=True)
        for rank in mesh.stage(stage)
    ]
    every = sorted(rows, key=attrgetter("rank"))
    each, sums = mesh.size // mesh.pipeline, run.sharing
    culprits = Culprits(bubble=heavy_stage(every, mesh))
    error = expected_text(plan.chip.name, plan.workload.host.framework)
    exact = None not in parts.bounds
    return StepEstimate(
        plan=plan,
        step_ps=run.steps_ps,
        ranks=every,
        judged=ProvableVerdict(step_verdict(run.step.by_phase, error, culprits)),
        memory=[],
        traffic=steps.traffic(timer),
        executed_flops=steps.writer.emitter.flops * each // len(run.ends),
        wall_s=0.0,
        sharing=Sharing(sums.kernel_ps * each, sums.alone_ps * each),
        grain_error=max(filter(None, parts.bounds), default=0.0) if exact else None,
        parts=parts.different,
        simulated=len(parts.simulated),
        spans=len(steps.work.tasks),
    )
