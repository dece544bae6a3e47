"""Layers of each part of each pipeline stage: partition by the workload, or computed.

The computed partition minimises the time of the slowest part. **Hardware** PipeDream (SOSP 2019),
section 3.1: the best time of the first j layers on m workers is the minimum, over the place i of the
last cut and the m' workers of the last stage, of the maximum of three times: the best time of the first
i layers on m - m' workers; the messages across the cut (the output of layer i and its gradient); and
the last stage, the longer of its layers' time and of the sum of their gradients over m' workers,
divided by m', as the workers alternate. **Model** The same, with 2 (m' - 1)/m' of the gradients for a
sum over m' (a ring), and a worker's rate inside or across nodes: workers are in order, so m determines
which of the two a stage or a cut uses. **Not modelled** A separate copy of the pipeline in every node
(PipeDream's levels); memory.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import accumulate
from typing import NamedTuple

import numpy as np

from clusim.base.errors import InputError
from clusim.topology.model import Fabric
from clusim.workload.deepep import DeepEp
from clusim.workload.host import kernels_by, peer_rates
from clusim.workload.kernels import Chip, Kernel, Precision
from clusim.workload.layers import (
    Layer,
    Shard,
    accumulating,
    backward_steps,
    gathering,
)
from clusim.workload.memory import Optimizer
from clusim.workload.mesh import Mesh, zones_of
from clusim.workload.models import Model, Transformer
from clusim.workload.pipeline_schedules import Crew, StageLayout, layout_of
from clusim.workload.recomputation import Recomputer
from clusim.workload.spec import Workload
from clusim.workload.workload_file import complain


class LayerCost(NamedTuple):
    """Cost of a layer: time of a microbatch [s], gradients and output [bytes]."""

    time_s: float
    gradient_bytes: float
    output_bytes: float


class WorkerRates(NamedTuple):
    """Rates of a worker inside its node and to others [B/s], and the node of every worker."""

    inside_Bps: float
    across_Bps: float
    machines: tuple[int, ...]

    def between(self, first: int, last: int) -> float:
        """Return the rate among the workers from `first` to `last`."""
        same = len(set(self.machines[first : last + 1])) == 1
        return self.inside_Bps if same else self.across_Bps


def balance_layers(times: Sequence[int], replicas: Sequence[int]) -> list[int]:
    """Return the layers of each part, at least one, with the slowest part as fast as possible.

    Parameters
    ----------
    replicas : sequence of int
        Number of workers that alternate in each part.
    """
    count, parts = len(times), len(replicas)
    if count < parts:
        raise InputError(f"{count} layers cannot be divided into {parts} parts")
    upto = [0, *accumulate(times)]
    # best[j]: the least time of the slowest part when the first j layers form this number of parts; cut: where
    # the last one begins.
    best: list[float] = [0, *[float("inf")] * count]
    cuts: list[list[int]] = []
    for part, workers in enumerate(replicas, 1):
        row: list[float] = [float("inf")] * (count + 1)
        cut = [0] * (count + 1)
        for j in range(part, count + 1):
            for i in range(part - 1, j):
                slowest = max(best[i], (upto[j] - upto[i]) / workers)
                if slowest < row[j]:
                    row[j], cut[j] = slowest, i
        best = row
        cuts.append(cut)
    sizes: list[int] = []
    end = count
    for cut in reversed(cuts):
        sizes.append(end - cut[end])
        end = cut[end]
    return sizes[::-1]


def replicate_stages(
    layers: Sequence[LayerCost], rates: WorkerRates, microbatches: int
) -> list[tuple[int, int]]:
    """Return layers and workers of every stage that maximise the pipeline's microbatch rate.

    The workers of a stage must be able to share the `microbatches` of a step evenly.
    """
    count, workers = len(layers), len(rates.machines)
    upto, gradients = (
        np.array([0, *accumulate(layer[column] for layer in layers)])
        for column in (0, 1)
    )
    moved = np.array([0.0, *(2 * layer.output_bytes for layer in layers)])
    # best[m][j]: the least time of the first j layers on the first m workers; choice: the last cut and its workers.
    best = np.full((workers + 1, count + 1), np.inf)
    best[0, 0] = 0
    choice: dict[tuple[int, int], tuple[int, int]] = {}
    for all_of in range(1, workers + 1):
        for copies in (n for n in range(1, all_of + 1) if not microbatches % n):
            before = all_of - copies
            rate = rates.between(before, all_of - 1)
            across = (
                moved / rates.between(before - 1, before) if before else moved * 0
            )
            for j in range(1, count + 1):
                sums = (
                    2 * (copies - 1) / copies * (gradients[j] - gradients[:j]) / rate
                )
                last = np.maximum(upto[j] - upto[:j], sums) / copies
                slowest = np.maximum(np.maximum(best[before, :j], across[:j]), last)
                at = int(slowest.argmin())
                if slowest[at] < best[all_of, j]:
                    best[all_of, j], choice[all_of, j] = slowest[at], (at, copies)
    if (workers, count) not in choice:
        raise InputError(
            f"{count} layers cannot be divided over {workers} GPUs that share out {microbatches} microbatches evenly"
        )
    stages: list[tuple[int, int]] = []
    m, j = workers, count
    while j:
        cut, copies = choice[m, j]
        stages.append((j - cut, copies))
        m, j = m - copies, cut
    return stages[::-1]


def shard_of(
    workload: Workload, mesh: Mesh, precision: Precision, deepep: DeepEp | None
) -> Shard:
    """Return the sharding of layers, with the kernels of the framework."""
    style, along = workload.tensor.style, workload.tensor.sequence_parallel
    if workload.tensor.overlap and not along:
        message = "overlap splits along the sequence; set sequence_parallel"
        raise complain(workload, ("tensor", "overlap"), message)
    if along and style != "paired":
        raise complain(
            workload,
            ("tensor", "style"),
            f"{style} with sequence_parallel: sequence shards require paired matrices; use paired",
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
    experts = workload.experts
    if experts.exchange != "deepep":
        return None
    limit = (
        0
        if experts.machines is None or experts.machines >= machines
        else experts.machines
    )
    inside_Bps, _ = peer_rates(fabric)
    return DeepEp(
        experts.sms,
        experts.dispatch == "fp8",
        machines,
        limit,
        experts.low_latency,
        inside_Bps,
    )


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
        layers = _alike(
            layers,
            lambda layer: gathering(layer, element_bytes, optimizer.sum_bytes),
        )
    return layers


def adds_up(workload: Workload, optimizer: Optimizer) -> bool:
    """True if products add weight gradients to 32-bit sums; false with sharded weights."""
    unsharded = workload.data.kind not in ("fsdp", "zero3")
    return (
        unsharded
        and workload.accumulation == "fused"
        and optimizer.main_gradient > 0
    )


def _alike(layers: list[Layer], change: Callable[[Layer], Layer]) -> list[Layer]:
    """Return changed layers; equal layers stay one object."""
    changed = {id(layer): change(layer) for layer in layers}
    return [changed[id(layer)] for layer in layers]


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
    pipeline, workers = workload.pipeline, ground.mesh.pipeline
    crew = Crew(tuple(pipeline.replicas or [1] * workers))
    counts: list[int] = []
    times: list[int] = []
    recomputer = Recomputer(workload, ground.chip.precision)
    recomputer.check(layers)
    if pipeline.partition != "even":
        times = [_time_ps(layer, ground.chip) for layer in recomputer.assign(layers)]
    if pipeline.partition == "replicated":
        costs = [
            LayerCost(
                time_ps / 1e12, layer.parameters * ground.element, layer.output_bytes
            )
            for time_ps, layer in zip(times, layers, strict=True)
        ]
        result = replicate_stages(costs, _rates(ground), ground.microbatches)
        crew, counts = (
            Crew(tuple(pipeline for _, pipeline in result)),
            [count for count, _ in result],
        )
    layout = layout_of(pipeline.schedule, crew.stages, pipeline.chunks)
    if pipeline.partition == "balanced":
        counts = balance_layers(times, pipeline.replicas or [1] * layout.parts)
    parts = (
        _cut(layers, counts) if counts else divide(layers, layout, pipeline.layers)
    )
    stages = [
        [parts[layout.part(stage, chunk)] for chunk in range(layout.chunks)]
        for stage in range(layout.stages)
    ]
    _copy_embedding(stages, model, layout, pipeline.schedule)
    done = [[recomputer.assign(chunk) for chunk in chunks] for chunks in stages]
    return crew, [done[crew.stage(worker)] for worker in range(workers)]


def _rates(ground: Ground) -> WorkerRates:
    zones = zones_of(ground.fabric)
    machines = tuple(
        zones[ground.mesh.stage(w)[0]] for w in range(ground.mesh.pipeline)
    )
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
            cut = f"{layout.stages} stages" + (
                f" x {chunks} chunks" if chunks > 1 else ""
            )
            raise InputError(f"{len(blocks)} layers cannot be divided into {cut}")
        base, more = divmod(len(blocks), parts)
        counts = [base + (part < more) for part in range(parts)]
    if len(counts) != parts or sum(counts) != len(blocks):
        raise InputError(
            f"layers {list(counts)}: must be {parts} numbers with the sum {len(blocks)}"
        )
    result = _cut(blocks, counts)
    result[0] = first + result[0]
    result[-1] = result[-1] + last
    if not all(result):
        raise InputError(
            f"layers {list(counts)}: a part is empty; each needs a layer"
        )
    return result


def _cut(layers: Sequence[Layer], counts: Sequence[int]) -> list[list[Layer]]:
    ends = [*accumulate(counts)]
    return [
        list(layers[end - count : end])
        for end, count in zip(ends, counts, strict=True)
    ]


def _time_ps(layer: Layer, chip: Chip) -> int:
    """Return the time of a layer's kernels for a microbatch [ps]."""
    steps = (*layer.forward, *backward_steps(layer))
    return sum(chip.time_ps(step) for step in steps if isinstance(step, Kernel))


def _copy_embedding(
    stages: list[list[list[Layer]]], model: Model, layout: StageLayout, schedule: str
) -> None:
    """Add a copy of an embedding shared with the head to the last stage, as Megatron-LM does.

    If the first stage also holds the last part, both use the same embedding.
    """
    tied = isinstance(model, Transformer) and model.tied
    if (
        len(stages) == 1
        or not tied
        or schedule == "pipedream"
        or layout.shape != "round"
    ):
        return
    last, embedding = stages[-1][-1], stages[0][0][0].tensors[0]
    last[-1] = replace(
        last[-1], tensors=(replace(embedding, name=COPY), *last[-1].tensors)
    )
