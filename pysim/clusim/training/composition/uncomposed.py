"""Steps with differing ranks: each is one part, shared with no other step."""

from __future__ import annotations

from dataclasses import astuple, replace
from typing import Any

from clusim.base.executors.workers import file_digest
from clusim.results.diagnosis import Verdict
from clusim.training.breakdown import Breakdown
from clusim.training.composition.parts import Kept, machine_of
from clusim.training.composition.stepestimate import StepEstimate
from clusim.training.overlap_cost import Sharing
from clusim.training.request import TrainRequest
from clusim.training.result import StepResult
from clusim.training.run import trained
from clusim.workload.parallel.plan import ParallelPlan
from clusim.workload.parallel.volumes import Volume


def whole(request: TrainRequest, plan: ParallelPlan, kept: Kept) -> StepEstimate:
    """Return the engine's result for the steps of a request, simulated unless it is cached."""
    own = request.setup
    where = machine_of(own), own.nodes, str(own.faults)
    how = request.steps, request.folding, request.granularity, request.seed
    work = request.workload
    read = [file_digest(path) for path in (work.model.huggingface, work.hardware.kernels) if path]
    question = (*where, work.model_dump_json(exclude={"name", "description"}), read, *how)
    answer = kept.get(question)
    simulated = answer is None
    if answer is None:
        answer = _written(trained(replace(request, estimate=False)))
        kept.put(question, answer)
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
        judged=Verdict.from_json(answer["verdict"], "verdict"),
        whole=True,
        parts=1,
        simulated=int(simulated),
    )


def _written(found: StepResult) -> dict[str, Any]:
    """Return a result in its cached form."""
    return {
        "step_ps": found.step_ps,
        "ranks": [astuple(row) for row in found.ranks],
        "traffic": {name: (own.calls, own.sent_bytes) for name, own in found.traffic.items()},
        "executed_flops": found.executed_flops,
        "sharing": astuple(found.sharing),
        "worker_ps": found.worker_ps,
        "grain_error": found.grain_error,
        "verdict": found.verdict.to_json(),
    }
