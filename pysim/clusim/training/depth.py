"""Schedule of training steps, and deep models extrapolated from two runs with fewer layers.

In the middle of a model every layer has the same surroundings: the gather of the next one, the reduction of the
previous one. So each further layer adds the same time, once there are enough layers to fill the overlap: the step is
linear in the number of layers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import astuple, replace
from itertools import accumulate, pairwise

from clusim.base.errors import InputError
from clusim.collectives import ScheduleBuilder
from clusim.lowering import plan_change
from clusim.nccl.env_notes import chips_of, notes_on_chips
from clusim.schedule.ir import Schedule
from clusim.simulation.laws import Linear
from clusim.topology.model import Fabric
from clusim.training.breakdown import Breakdown
from clusim.training.result import TrainingResult
from clusim.training.saved_step import SavedStep
from clusim.training.switches import Sharing
from clusim.workload.host import HostThreads
from clusim.workload.memory import Memory
from clusim.workload.models import Transformer
from clusim.workload.parallel.blocks import BlockEmitter
from clusim.workload.parallel.checkpoints import checkpoint_of
from clusim.workload.parallel.fold import Folder
from clusim.workload.parallel.pipeline import StepWriter
from clusim.workload.parallel.plan import ParallelPlan
from clusim.workload.parallel.volumes import Volume
from clusim.workload.spec import Workload
from clusim.workload.workload_file import complain


def written(
    plan: ParallelPlan, folder: Folder | None, steps: int, *, saved: bool = False
) -> tuple[StepWriter, Schedule]:
    """Return the schedule of `steps` steps, as planned on the plan's fabric, and its writer.

    With `saved` the last step has the workload's checkpoint.
    """
    builder = ScheduleBuilder(
        plan.fabric, f"{plan.workload.name}: {plan.model.name}"
    )
    host = plan.host()
    threads = HostThreads(host, builder) if host is not None else None
    writer = StepWriter(BlockEmitter(plan, builder, folder=folder, host=threads))
    writer.write(steps, saved=saved)
    return writer, builder.build()


def plan_notes(plan: ParallelPlan, whole: Fabric) -> list[str]:
    """Return the notes on a plan's collectives; its fabric excludes parts down at time 0.

    Parameters
    ----------
    whole : Fabric
        The same fabric with all its parts.
    """
    nccl = plan.workload.collectives == "nccl" and plan.mesh.size > 1
    lines = notes_on_chips(chips_of(whole)) if nccl else []
    if plan.fabric is not whole:
        healthy = written(replace(plan, fabric=whole), None, 1)[1]
        lines.append(plan_change(healthy.calls, written(plan, None, 1)[1].calls))
    return lines


def memory_notes(
    plan: ParallelPlan, memory: list[Memory], strict: bool
) -> list[str]:
    """Return the notes on insufficient memory; with `strict` it is an error."""
    worst = max(range(len(memory)), key=lambda stage: memory[stage].total)
    item = memory[worst]
    if not item.missing:
        return []
    text = (
        f"memory: stage {worst} needs {item.total / 2**30:.1f} GiB, {plan.chip.name} has"
        f" {item.capacity / 2**30:.1f} GiB: {item.missing / 2**30:.1f} GiB too little"
    )
    if strict:
        where = "parallel" if plan.workload.parallel.model_fields_set else "model"
        message = f"{text}; cut the model further, or compute activations again"
        raise complain(plan.workload, (where,), message)
    return [text]


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
    if plan.mesh.pipeline > 1 or (
        isinstance(model, Transformer) and model.dense_layers
    ):
        raise complain(workload, ("depth",), "needs like layers, and no pipeline")
    one, two = (run(_cut(workload, count)) for count in (few, more))
    law = Linear((few, more), layers)
    step_ps = law.each(one.step_ps, two.step_ps)
    ranks = []
    for a, b in zip(one.ranks, two.ranks, strict=True):
        parts = [max(0, part) for part in law.each(astuple(a)[1:], astuple(b)[1:])]
        compute = min(parts[0], step_ps[-1])
        until = [0, *accumulate(parts[6:])]
        exposed = min(until[-1], step_ps[-1] - compute)
        until = [exposed * each // max(1, until[-1]) for each in until]
        host = min(parts[5], step_ps[-1] - compute - exposed)
        idle = step_ps[-1] - compute - exposed - host
        times = compute, exposed, 0, idle, parts[4], host
        ranks.append(
            Breakdown(a.rank, *times, *(to - since for since, to in pairwise(until)))
        )
    traffic = {}
    for dim, moved in two.traffic.items():
        fewer = one.traffic[dim].calls, one.traffic[dim].sent_bytes
        calls, sent_bytes = law.each(fewer, (moved.calls, moved.sent_bytes))
        traffic[dim] = Volume(calls, sent_bytes)
    saved, checkpoint = None, checkpoint_of(plan)
    if one.saved is not None and two.saved is not None and checkpoint is not None:
        (stall_ps,) = law.each([one.saved.stall_ps], [two.saved.stall_ps])
        saved = SavedStep(
            checkpoint, max(0, stall_ps), two.saved.every_steps, step_ps[-1]
        )
    return replace(
        two,
        plan=plan,
        step_ps=step_ps,
        ranks=ranks,
        judged=None,
        traffic=traffic,
        saved=saved,
        executed_flops=law.each([one.executed_flops], [two.executed_flops])[0],
        sharing=Sharing(*law.each(astuple(one.sharing), astuple(two.sharing))),
        notes=[
            f"simulated with {few} and with {more} of {layers} layers, and extrapolated; wires, tasks and"
            f" fingerprint: {more} layers"
        ],
        wall_s=one.wall_s + two.wall_s,
    )


def _cut(workload: Workload, layers: int) -> Workload:
    model = workload.model.model_copy(update={"layers": layers})
    if workload.model.huggingface is not None:
        raise InputError(
            "depth: not supported with a Hugging Face configuration; set the model by name"
        )
    return workload.model_copy(update={"model": model, "depth": None})
