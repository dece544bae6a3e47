"""Schedules of training steps, and notes on their plans."""

from __future__ import annotations

from dataclasses import replace

from clusim.collectives.builder import ScheduleBuilder
from clusim.lowering import plan_change
from clusim.nccl.env_notes import chips_of, notes_on_chips
from clusim.schedule.ir import Schedule
from clusim.topology.model import Fabric
from clusim.training.extrapolated import LONGEST_PS, MOST_EPOCHS, in_intervals
from clusim.workload.host import HostThreads
from clusim.workload.memory import Memory
from clusim.workload.parallel.blocks import BlockEmitter
from clusim.workload.parallel.fold import Folder
from clusim.workload.parallel.pipeline import StepWriter
from clusim.workload.parallel.plan import ParallelPlan
from clusim.workload.workload_file import complain


def write_steps(
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


def relaxed(fabric: Fabric, plan: ParallelPlan, steps: int) -> Fabric:
    """Return the fabric with memory-sharing intervals that suit a plan's kernels."""
    stage = [layer for chunk in plan.stages[0] for layer in chunk]
    once = {id(layer): layer for layer in stage}
    times = {
        key: sum(plan.chip.time_ps(k) for part in ("forward", "input", "weight") for k in layer.kernels(part))
        for key, layer in once.items()
    }  # fmt: skip
    busy_ps = (
        sum(times[id(layer)] for layer in stage)
        * plan.microbatches
        * plan.mesh.size
        * steps
    )
    longest = max(times.values(), default=0)
    quantum = min(LONGEST_PS, busy_ps // MOST_EPOCHS, longest // 100)
    return in_intervals(fabric, quantum)


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
        healthy = write_steps(replace(plan, fabric=whole), None, 1)[1]
        lines.append(plan_change(healthy.calls, write_steps(plan, None, 1)[1].calls))
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
