"""Small workloads for tests, and what can be asked of the schedules they become."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import clusim
from clusim.collectives import ScheduleBuilder
from clusim.schedule import Schedule
from clusim.topology import Fabric
from clusim.workload import Emitter, StepWriter, Workload, loads_workload, make_plan
from clusim.workload.kernels import PRECISIONS
from clusim.workload.layers import Layer
from clusim.workload.parallel.plan import ParallelPlan
from clusim.workload.recomputation import Recomputer

__all__ = ["ancestors", "ideal", "recomputed", "tiny", "volume", "written"]

TINY = """
model: {base: gpt3-1.3b, layers: 4, hidden: 256, heads: 8, head_size: 32, kv_heads: 8, intermediate: 1024, vocab: 1024}
sequence: 128
batch: {global: 8, micro: 1}
collectives: clusim
"""


def tiny(text: str = "", **replace: str) -> Workload:
    """Return a transformer of four small layers; `text` is more YAML, `replace` lines by key.

    With `data` in the text the first ranks of the fabric are used, as many as it needs.
    """
    lines = [line for line in TINY.strip().splitlines() if line.partition(":")[0] not in replace]
    lines += [f"{key}: {value}" for key, value in replace.items()]
    found = loads_workload("\n".join(lines) + "\n" + text, "tiny.yaml")
    own = found.parallel
    if own.data is not None and own.ranks is None:
        own.ranks = list(range(own.tensor * own.context * own.pipeline * own.data))
    return found


def recomputed(layer: Layer, kind: str, precision: str = "bf16") -> Layer:
    """Return a layer with a kind of recomputation."""
    return Recomputer(tiny(f"recompute: {kind}"), PRECISIONS[precision]).assign([layer])[0]


def ideal(ranks: int) -> Fabric:
    """Return GPUs on one switch whose links and programs take next to no time."""
    net = clusim.FabricBuilder("ideal", channels={"default": 1})
    net.define("chips", "ideal-a100", base="a100-sxm4-80gb", architecture="host")
    net.gpu(f"gpu0..{ranks - 1}", chip="ideal-a100")
    net.switch("switch0", latency="1ps")
    net.link(
        f"gpu0..{ranks - 1}",
        "switch0",
        rate="10 TB/s",
        latency="1ps",
        format="nvlink4",
        buffer="64MiB",
    )
    return net.build()


def written(
    workload: Workload, fabric: Fabric, steps: int = 1
) -> tuple[ParallelPlan, StepWriter, Schedule]:
    """Return plan, writer and schedule of a workload, nothing folded."""
    plan = make_plan(workload, fabric)
    builder = ScheduleBuilder(fabric)
    writer = StepWriter(Emitter(plan, builder))
    writer.write(steps)
    return plan, writer, builder.build()


def volume(writer: StepWriter, dim: str) -> float:
    """Return what a GPU sends in a dimension, on average [bytes]."""
    return writer.emitter.traffic[dim].sent_bytes / writer.plan.mesh.size


def ancestors(schedule: Schedule, tasks: Iterable[int]) -> set[int]:
    """Return the tasks that must be done before `tasks` start.

    What a rank of a collective leaves may need what others bring: tasks of one call count as one.
    """
    members: dict[int, list[int]] = {}
    for index, task in enumerate(schedule.tasks):
        if task.call >= 0:
            members.setdefault(task.call, []).append(index)
    found: set[int] = set()
    waiting: list[Any] = [dep for task in tasks for dep in schedule.tasks[task].deps]
    while waiting:
        index = waiting.pop()
        if index in found:
            continue
        found.add(index)
        waiting += schedule.tasks[index].deps
        if schedule.tasks[index].call >= 0:
            waiting += members[schedule.tasks[index].call]
    return found


def megatron_activation_bytes(
    sequence: int,
    batch: int,
    hidden: int,
    heads: int,
    tensor: int = 1,
    *,
    sequence_parallel: bool = False,
    recompute: str = "none",
) -> float:
    """Return the published bytes per layer of a GPT with plain attention (arXiv 2205.05198, table 2)."""
    sbh = sequence * batch * hidden
    scores = 5 * heads * sequence / hidden
    if recompute == "full":
        return 2 * sbh
    if recompute == "selective":
        scores = 0
    if sequence_parallel:
        return sbh * (34 + scores) / tensor
    return sbh * (10 + 24 / tensor + scores / tensor)
