"""Deep models, extrapolated linearly from two runs with fewer equal layers.

In the middle of a model every layer has the same surroundings: the gather of the next one, the reduction of the
previous one. So each further layer adds the same time, once there are enough layers to fill the overlap.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import astuple, replace

from clusim.base.errors import InputError
from clusim.training.breakdown import Breakdown
from clusim.training.overlap_cost import Sharing
from clusim.training.result import TrainingResult
from clusim.training.saved import SavedStep
from clusim.workload.models import Transformer
from clusim.workload.parallel.checkpoints import checkpoint_of
from clusim.workload.parallel.plan import ParallelPlan
from clusim.workload.parallel.volumes import Volume
from clusim.workload.spec import Workload, complain


def by_depth(
    workload: Workload, plan: ParallelPlan, run: Callable[[Workload], TrainingResult]
) -> TrainingResult:
    """Return the result of a workload from two runs with the layer counts of its `depth`."""
    assert workload.depth is not None
    model = plan.model
    layers = model.layers if isinstance(model, Transformer) else 0
    few, more = workload.depth
    if not few < more < layers:
        message = f"[{few}, {more}]: must be two growing numbers below the {layers} layers of {model.name}"
        raise complain(workload, ("depth",), message)
    if plan.mesh.pipeline > 1 or (isinstance(model, Transformer) and model.dense_layers):
        raise complain(workload, ("depth",), "needs like layers, and no pipeline")
    one, two = (run(_cut(workload, count)) for count in (few, more))

    def line(a: int, b: int) -> int:
        return a + (b - a) * (layers - few) // (more - few)

    step_ps = [line(a, b) for a, b in zip(one.step_ps, two.step_ps, strict=True)]
    ranks = []
    for a, b in zip(one.ranks, two.ranks, strict=True):
        parts = [max(0, line(x, y)) for x, y in zip(astuple(a)[1:], astuple(b)[1:], strict=True)]
        compute, exposed = min(parts[0], step_ps[-1]), parts[1]
        exposed = min(exposed, step_ps[-1] - compute)
        host = min(parts[5], step_ps[-1] - compute - exposed)
        idle = step_ps[-1] - compute - exposed - host
        ranks.append(Breakdown(a.rank, compute, exposed, 0, idle, parts[4], host))
    traffic = {
        dim: Volume(
            line(one.traffic[dim].calls, moved.calls),
            line(one.traffic[dim].sent_bytes, moved.sent_bytes),
        )
        for dim, moved in two.traffic.items()
    }
    saved, checkpoint = None, checkpoint_of(plan)
    if one.saved is not None and two.saved is not None and checkpoint is not None:
        stall_ps = max(0, line(one.saved.stall_ps, two.saved.stall_ps))
        saved = SavedStep(checkpoint, stall_ps, two.saved.every)
    shared = zip(astuple(one.sharing), astuple(two.sharing), strict=True)
    return replace(
        two,
        plan=plan,
        step_ps=step_ps,
        ranks=ranks,
        judged=None,
        traffic=traffic,
        saved=saved,
        executed_flops=line(one.executed_flops, two.executed_flops),
        sharing=Sharing(*(line(a, b) for a, b in shared)),
        notes=[
            f"simulated with {few} and with {more} of {layers} layers, and continued on a line; wires, tasks and"
            f" fingerprint are those of {more} layers"
        ],
        wall_s=one.wall_s + two.wall_s,
    )


def _cut(workload: Workload, layers: int) -> Workload:
    model = workload.model.model_copy(update={"layers": layers})
    if workload.model.huggingface is not None:
        raise InputError("depth: not with a Hugging Face configuration; give the model by name")
    return workload.model_copy(update={"model": model, "depth": None})
