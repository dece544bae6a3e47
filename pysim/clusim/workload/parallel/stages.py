"""Layers of each part of each pipeline stage."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate
from typing import NamedTuple

from clusim.base.errors import InputError
from clusim.topology.model import Fabric
from clusim.workload.kernels import Chip, Kernel
from clusim.workload.layers import Layer, backward_steps
from clusim.workload.mesh import Mesh, zones_of
from clusim.workload.models import Model, Transformer
from clusim.workload.partition import LayerCost, WorkerRates, balanced, replicated
from clusim.workload.peers import peer_rates
from clusim.workload.pipeline_schedules import Crew, StageLayout, layout_of
from clusim.workload.recompute import Recomputer
from clusim.workload.spec import Workload

COPY = "embedding copy"
"""Tensor of the last stage, if the head uses the weights of the embedding, which is in the first."""


class Ground(NamedTuple):
    """Unit of partition of layers: `element` is that of the reduced gradients [bytes].

    Workers that take turns must share out the `microbatches` evenly.
    """

    chip: Chip
    fabric: Fabric
    mesh: Mesh
    element: int
    microbatches: int


def stages_of(
    workload: Workload, model: Model, layers: Sequence[Layer], ground: Ground
) -> tuple[Crew, list[list[list[Layer]]]]:
    """Return the workers of the stages, and the layers by worker and part, with what each computes again."""
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
        found = replicated(costs, _rates(ground), ground.microbatches)
        crew, counts = Crew(tuple(own for _, own in found)), [count for count, _ in found]
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
    """Return the layers by part: as many blocks in each as `counts` says, else as even as can be.

    What comes before the blocks is in the first part, what comes behind in the last.
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
    found = _cut(blocks, counts)
    found[0] = first + found[0]
    found[-1] = found[-1] + last
    if not all(found):
        raise InputError(f"layers {list(counts)}: a part has no layer at all")
    return found


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
    """Give the last of several stages its own copy of an embedding that the head uses too, as Megatron-LM does.

    Where the first stage also has the last part both use the same.
    """
    tied = isinstance(model, Transformer) and model.tied
    if len(stages) == 1 or not tied or schedule == "pipedream" or layout.shape != "round":
        return
    last, embedding = stages[-1][-1], stages[0][0][0].tensors[0]
    last[-1] = replace(last[-1], tensors=(replace(embedding, name=COPY), *last[-1].tensors))
