"""Estimated training steps: composed of cached parts, or as one part.

A step with differing ranks is one part, which no other step shares.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import astuple, dataclass, replace
from functools import cache, partial
from typing import Any

from clusim.base.json_schema import JsonObject, Round6
from clusim.base.kept import SampleCache, file_digest
from clusim.base.terms.links import kind_of
from clusim.base.units import format_time
from clusim.lowering.grain import COARSE_HOPS
from clusim.results.diagnosis import ProvableVerdict, Verdict
from clusim.simulation.job import RunOptions
from clusim.topology.arrays import arrays_of
from clusim.training.breakdown import Breakdown
from clusim.training.remedies import CHEAP_GRANTS, CHEAP_TASKS, provable_step
from clusim.training.request import TrainRequest
from clusim.training.result import StepResult
from clusim.training.run import trained
from clusim.training.switches import Sharing
from clusim.workload.parallel.plan import ParallelPlan
from clusim.workload.parallel.volumes import Volume


@dataclass(frozen=True, slots=True)
class PartsCount(JsonObject):
    """Number of parts of the step, and number simulated for this estimate.

    Attributes
    ----------
    parts_followed : int
        Number of parts extrapolated from runs on fewer nodes.
    followed_error_s : float
        Resulting error limit of the step [s].
    """

    KEYS = (
        "parts",
        "parts_simulated",
        "parts_followed",
        "followed_error_s=followed_ps",
    )

    parts: int
    parts_simulated: int
    parts_followed: int
    followed_ps: int


@dataclass(frozen=True, kw_only=True, repr=False)
class StepEstimate(StepResult):
    """A training step composed of simulated parts.

    Attributes
    ----------
    parts, simulated : int
        Number of parts of the step, and number simulated for this estimate.
    whole : bool
        The step is one part, which the engine simulated in full.
    followed, followed_ps : int
        Number of parts extrapolated from runs on fewer nodes, and the resulting error limit of the step [ps].
    spans : int
        Number of spans of work that were composed.
    """

    KEYS = (*StepResult.KEYS, "estimate")

    parts: int
    simulated: int
    whole: bool = False
    followed: int = 0
    followed_ps: int = 0
    spans: int = 0

    @property
    def grain_bound(self) -> float | None:
        """Error limit of the step due to the bursts of its parts only; None is unknown."""
        return super().error_bound

    @property
    def error_bound(self) -> Round6 | None:
        """Error limit of the step; None if composed of parts, without their mutual slow-down."""
        return self.grain_bound if self.whole else None

    @property
    def origin(self) -> list[tuple[str, str]]:
        """Number of parts."""
        bound = self.grain_bound
        parts_text = (
            f"{self.simulated} simulated now"
            if self.simulated
            else "all simulated before"
        )
        limit = "error limit not known"
        if bound is not None:
            limit = (
                f"error limit {bound:.1%}"
                if self.whole
                else f"{limit} (of bursts only: {bound:.1%})"
            )
        rows = [("estimate", f"of {self.parts} parts, {parts_text}; {limit}")]
        if self.followed:
            off, step = format_time(self.followed_ps), format_time(self.step_ps[-1])
            rows.append(
                (
                    "followed",
                    f"{self.followed} parts from fewer nodes; error limit {off} of {step}",
                )
            )
        return rows

    @property
    def estimate(self) -> PartsCount:
        """Numbers of parts."""
        return PartsCount(
            self.parts, self.simulated, self.followed, self.followed_ps
        )


WHOLE_NOTE = "the step has each part once, in exact packets: simulated in full"
"""Note of an estimate whose parts are no less work than the step."""


def uneven(request: TrainRequest, plan: ParallelPlan) -> bool:
    """Return True if ranks of a stage differ."""
    workload = plan.workload
    return bool(
        (request.setup.broken.faults or plan.servers)
        or (
            workload.stragglers.ranks
            or workload.stragglers.jitter
            or len(set(plan.loads)) > 1
        )
        or plan.crew.stages < plan.mesh.pipeline
    )


def whole(
    request: TrainRequest,
    plan: ParallelPlan,
    kept: SampleCache,
    *,
    confirm: bool | None = None,
) -> StepEstimate:
    """Return the engine's result for the steps of a request, simulated unless it is cached.

    `confirm` is as in `clusim.simulation.job.RunOptions`.
    """
    setup = request.setup
    where = setup.identity, setup.nodes, str(setup.faults)
    how = request.steps, request.folding, request.granularity, request.seed
    work = request.workload
    read = [
        file_digest(path)
        for path in (work.model.huggingface, work.hardware.kernels)
        if path
    ]
    question = (
        *where,
        work.model_dump_json(exclude={"name", "description"}),
        read,
        *how,
    )
    answer = kept.get(question)
    simulated = answer is None
    run = cache(
        partial(
            trained, replace(request, estimate=False), RunOptions(confirm=confirm)
        )
    )
    if answer is None:
        answer = _written(run())
        kept.put(question, answer)

    def prove() -> Verdict:
        proof = kept.get((*question, confirm))
        if proof is None:
            proof = run().diagnose().to_json()
            kept.put((*question, confirm), proof)
        return Verdict.from_json(proof, "verdict")

    return StepEstimate(
        plan=plan,
        step_ps=answer["step_ps"],
        ranks=[Breakdown(*row) for row in answer["ranks"]],
        memory=[],
        traffic={name: Volume(*row) for name, row in answer["traffic"].items()},
        executed_flops=answer["executed_flops"],
        wall_s=0.0,
        sharing=Sharing(*answer["sharing"]),
        worker_ps=answer["worker_ps"],
        grain_error=answer["grain_error"],
        judged=ProvableVerdict(
            Verdict.from_json(answer["verdict"], "verdict"), prove
        ),
        whole=True,
        parts=1,
        simulated=int(simulated),
    )


def _written(result: StepResult) -> dict[str, Any]:
    """Return a result in its cached form."""
    return {
        "step_ps": result.step_ps,
        "ranks": [astuple(row) for row in result.ranks],
        "traffic": {
            name: (volume.calls, volume.sent_bytes)
            for name, volume in result.traffic.items()
        },
        "executed_flops": result.executed_flops,
        "sharing": astuple(result.sharing),
        "worker_ps": result.worker_ps,
        "grain_error": result.grain_error,
        "verdict": result.verdict.to_json(),
    }


def provable_estimate(
    estimated: tuple[TrainRequest, StepEstimate],
    run: Callable[[TrainRequest], StepResult],
    confirm: bool | None,
) -> ProvableVerdict:
    """Return the verdict on an estimated step; its proof estimates changes.

    Parameters
    ----------
    run : callable
        Estimates the steps of a request.
    confirm : bool or None
        True: of all changes; None: of those that are cheap, where the parts of each share `COARSE_HOPS`.
    """
    request, result = estimated
    links = {kind_of(name) for name in arrays_of(request.setup.fabric).wire_class}
    cheap = min(CHEAP_GRANTS // COARSE_HOPS, CHEAP_TASKS // max(1, result.spans))
    number = cheap if confirm is None else None if confirm else 0
    return provable_step(request, result, links, run, number)
