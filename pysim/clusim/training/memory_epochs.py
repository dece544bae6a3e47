"""How often a GPU's memory is shared out anew between kernels and communication, in long runs.

The engine does it every 2 us of every GPU on which a kernel runs. A training step has seconds of kernels on
tens or thousands of GPUs, whose layers take milliseconds: there it is done less often.
"""

from __future__ import annotations

from dataclasses import replace

from clusim.topology.model import Fabric
from clusim.workload.parallel.plan import ParallelPlan

MOST_EPOCHS = 1 << 17
"""Times that memory is shared out in a run, all GPUs together, until the intervals are as long as they may be."""

LONGEST_PS = 50_000_000
"""Longest interval [ps]: layers of the models this is for take a hundred times as long."""


def relaxed(fabric: Fabric, plan: ParallelPlan, steps: int) -> Fabric:
    """Return the fabric with intervals that suit the kernels of a plan."""
    stage = [layer for chunk in plan.stages[0] for layer in chunk]
    once = {id(layer): layer for layer in stage}
    times = {
        key: sum(plan.chip.time_ps(k) for part in ("forward", "input", "weight") for k in layer.kernels(part))
        for key, layer in once.items()
    }  # fmt: skip
    busy_ps = sum(times[id(layer)] for layer in stage) * plan.microbatches * plan.mesh.size * steps
    longest = max(times.values(), default=0)
    quantum = min(LONGEST_PS, busy_ps // MOST_EPOCHS, longest // 100)
    nodes = tuple(
        replace(node, endpoint=replace(node.endpoint, mem_quantum_ps=quantum))
        if node.endpoint is not None and node.endpoint.mem_quantum_ps < quantum
        else node
        for node in fabric.nodes
    )
    return fabric if nodes == fabric.nodes else replace(fabric, nodes=nodes)
