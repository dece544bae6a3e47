"""Layers of each part of each pipeline stage.

Partition of layers by a workload, and its traffic, by framework.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import accumulate
from typing import NamedTuple

from clusim.base.errors import InputError
from clusim.topology.model import Fabric
from clusim.workload.deepep import DeepEp
from clusim.workload.host import kernels_by
from clusim.workload.hostlink import peer_rates
from clusim.workload.kernels import Chip, Kernel, Precision
from clusim.workload.layers import Layer, Shard, accumulating, backward_steps, gathering
from clusim.workload.memory import Optimizer, Recomputer
from clusim.workload.mesh import Mesh, zones_of
from clusim.workload.models import Model, Transformer
from clusim.workload.partition import LayerCost, WorkerRates, balanced, replicated
from clusim.workload.pipeline_schedules import Crew, StageLayout, layout_of
from clusim.workload.spec import Workload, complain


def shard_of(workload: Workload, mesh: Mesh, precision: Precision, deepep: DeepEp | None) -> Shard:
    """Return the sharding of layers, with the kernels of the framework."""
    style, along = workload.tensor.style, workload.tensor.sequence_parallel
    if workload.tensor.overlap and not along:
        message = "what is overlapped is cut along the sequence; needs sequence_parallel"
        raise complain(workload, ("tensor", "overlap"), message)
    if along and style != "paired":
        raise complain(
            *(workload, ("tensor", "style")),
            f"{style} with sequence_parallel: what is cut along the sequence fits matrices in pairs only; use paired",
        )
    sums, eager = kernels_by(workload.host)
    return Shard(
        batch=workload.batch.micro,
        sequence=workload.sequence // workload.pipeline.pieces,
        precision=precision,
        tensor=mesh.tensor,
        context=mesh.context,
        expert=mesh.expert,
        sequence_parallel=workload.tensor.sequence_parallel and mesh.tensor > 1,
        style=workload.tensor.style,
        flash=workload.attention == "flash",
        capacity=workload.experts.capacity,
        around=workload.context.style,
        overlap=workload.tensor.overlap and mesh.tensor > 1,
        norm=mesh.norm,
        deepep=deepep,
        fused_loss=workload.loss == "fused",
        sums=sums,
        eager=eager,
    )


def deepep_of(workload: Workload, fabric: Fabric, machines: int) -> DeepEp | None:
    """Return the expert token exchange between this number of nodes, if it is DeepEP's."""
    own = workload.experts
    if own.exchange != "deepep":
        return None
    limit = 0 if own.machines is None or own.machines >= machines else own.machines
    inside_Bps, _ = peer_rates(fabric)
    return DeepEp(own.sms, own.dispatch == "fp8", machines, limit, own.low_latency, inside_Bps)


def moving(
    layers: list[Layer],
    workload: Workload,
    shard: Shard,
    optimizer: Optimizer,
    microbatches: int,
) -> list[Layer]:
    """Return layers with kernels that accumulate gradients and pack gathered or reduced data."""
    element_bytes = shard.precision.bytes
    if workload.accumulation != "fused" and microbatches > 1:
        layers = _alike(layers, lambda layer: accumulating(layer, element_bytes))
    if workload.data.kind == "fsdp" and shard.eager:
        layers = _alike(layers, lambda layer: gathering(layer, element_bytes, optimizer.reduced))
    return layers


def adds_up(workload: Workload, optimizer: Optimizer) -> bool:
    """True if products add weight gradients to 32-bit sums; false with sharded weights."""
    whole = workload.data.kind not in ("fsdp", "zero3")
    return whole and workload.accumulation == "fused" and optimizer.main_gradient > 0


def _alike(layers: list[Layer], change: Callable[[Layer], Layer]) -> list[Layer]:
    """Return changed layers; equal layers stay one object."""
    made = {id(layer): change(layer) for layer in layers}
    return [made[id(layer)] for layer in layers]


COPY = "embedding copy"
"""Tensor of the last stage, if the head uses the weights of the embedding, which is in the first."""


class Ground(NamedTuple):
    """Unit of layer partitioning; `element` is the size of a reduced gradient [bytes].

    Workers that alternate must be able to share the `microbatches` evenly.
    """

    chip: Chip
    fabric: Fabric
    mesh: Mesh
    element: int
    microbatches: int


def stages_of(
    workload: Workload, model: Model, layers: Sequence[Layer], ground: Ground
) -> tuple[Crew, list[list[list[Layer]]]]:
    """Return the workers of the stages, and the layers by worker and part, with recomputation."""
    own, workers = workload.pipeline, ground.mesh.pipeline
    crew = Crew(tuple(own.replicas or [1] * workers))
    counts: list[int] = []
    times: list[int] = []
    if own.partition != "even":
        times = [_time_ps(layer, workload, ground.chip) for layer in layers]
    if own.partition == "replicated":
        costs = [
            LayerCost(time_ps / 1e12, layer.parameters * ground.element, layer.output_bytes)
            for time_ps, layer in zip(times, layers, strict=True)
        ]
        result = replicated(costs, _rates(ground), ground.microbatches)
        crew, counts = Crew(tuple(own for _, own in result)), [count for count, _ in result]
    layout = layout_of(own.schedule, crew.stages, own.chunks)
    if own.partition == "balanced":
        counts = balanced(times, own.replicas or [1] * layout.parts)
    parts = _cut(layers, counts) if counts else divide(layers, layout, own.layers)
    stages = [
        [parts[layout.part(stage, chunk)] for chunk in range(layout.chunks)]
        for stage in range(layout.stages)
    ]
    _copy_embedding(stages, model, layout, own.schedule)
    again = Recomputer(workload)
    again.check(layers)
    done = [[again.part(chunk) for chunk in chunks] for chunks in stages]
    return crew, [done[crew.stage(worker)] for worker in range(workers)]


def _rates(ground: Ground) -> WorkerRates:
    zones = zones_of(ground.fabric)
    machines = tuple(zones[ground.mesh.stage(w)[0]] for w in range(ground.mesh.pipeline))
    return WorkerRates(*peer_rates(ground.fabric), machines)


def divide(
    layers: Sequence[Layer], layout: StageLayout, counts: Sequence[int] | None = None
) -> list[list[Layer]]:
    """Return the layers by part: `counts` blocks in each, or as evenly as possible.

    Layers before the blocks are in the first part, layers after them in the last.
    """
    first = [layer for layer in layers if layer.kind in ("embedding", "stem")]
    last = [layer for layer in layers if layer.kind == "head"]
    blocks = [layer for layer in layers if layer not in first and layer not in last]
    parts = layout.parts
    if counts is None:
        if len(blocks) < parts:
            chunks = parts // layout.stages
            cut = f"{layout.stages} stages" + (f" x {chunks} chunks" if chunks > 1 else "")
            raise InputError(f"{len(blocks)} layers cannot be divided into {cut}")
        base, more = divmod(len(blocks), parts)
        counts = [base + (part < more) for part in range(parts)]
    if len(counts) != parts or sum(counts) != len(blocks):
        raise InputError(
            f"layers {list(counts)}: must be {parts} numbers, whose sum is {len(blocks)}"
        )
    result = _cut(blocks, counts)
    result[0] = first + result[0]
    result[-1] = result[-1] + last
    if not all(result):
        raise InputError(f"layers {list(counts)}: a part has no layer at all")
    return result


def _cut(layers: Sequence[Layer], counts: Sequence[int]) -> list[list[Layer]]:
    ends = [*accumulate(counts)]
    return [list(layers[end - count : end]) for end, count in zip(ends, counts, strict=True)]


def _time_ps(layer: Layer, workload: Workload, chip: Chip) -> int:
    """Return the time of a layer's kernels for a microbatch [ps]."""
    steps = (*layer.forward, *backward_steps(layer, workload.recompute))
    return sum(chip.time_ps(step) for step in steps if isinstance(step, Kernel))


def _copy_embedding(
    stages: list[list[list[Layer]]], model: Model, layout: StageLayout, schedule: str
) -> None:
    """Add a copy of an embedding shared with the head to the last stage, as Megatron-LM does.

    If the first stage also holds the last part, both use the same embedding.
    """
    tied = isinstance(model, Transformer) and model.tied
    if len(stages) == 1 or not tied or schedule == "pipedream" or layout.shape != "round":
        return
    last, embedding = stages[-1][-1], stages[0][0][0].tensors[0]
    last[-1] = replace(last[-1], tensors=(replace(embedding, name=COPY), *last[-1].tensors))
