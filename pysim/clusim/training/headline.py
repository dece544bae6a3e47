"""Figures of a training step to read first: time, throughput, utilisation, memory."""

from __future__ import annotations

from clusim.base.units import format_time
from clusim.workload.memory import Memory
from clusim.workload.parallel.plan import ParallelPlan


def headline_rows(
    plan: ParallelPlan, step_ps: int, memory: list[Memory]
) -> list[tuple[str, str]]:
    """Return labels and values of a step; `memory` contains an entry per stage."""
    pace = 1e12 / max(1, step_ps)
    mfu = plan.model_flops * pace / (plan.chip.peak_flops * plan.mesh.size)
    rows = [
        ("step", format_time(step_ps)),
        ("throughput", f"{plan.samples * pace:,.1f} {plan.model.unit}/s"),
        ("MFU", f"{mfu:.1%} of the peak"),
    ]
    if memory:
        fullest = max(memory, key=lambda item: item.total)
        rows.append(
            (
                "memory",
                f"{fullest.total / 2**30:.2f} GiB{room(fullest)} on the fullest GPU",
            )
        )
    return rows


def room(item: Memory) -> str:
    """Return the text on free or missing memory of the chip."""
    if not item.capacity:
        return " of an unknown size"
    free_GiB = abs(item.capacity - item.total) / 2**30
    return f" of {item.capacity / 2**30:.0f}, {free_GiB:.1f} {'missing' if item.missing else 'free'}"
