"""Layouts of a training job: sizes of the mesh, microbatch, pipeline schedule, placement of states, recomputation.

**Included** Tensor parallelism with sequence parallelism inside an NVLink domain, pipelines (1F1B, interleaved) with
equal stages, contexts, experts, and data parallelism with distributed optimizer, FSDP or HSDP (states shared inside a
node); microbatches of powers of 2; no, selective and full recomputation.
**Not included** Offload, zero-bubble pipelines, stages of different size, tensor parallelism over several domains.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from typing import Any

from clusim.base.json_schema import JsonObject
from clusim.topology import Fabric
from clusim.workload.mesh import zones_of
from clusim.workload.models import Model, Transformer
from clusim.workload.spec import Workload

MOST_MICRO = 8
"""Largest microbatch of a replica [samples]."""

MOST_CONTEXT = 16
"""Largest number of parts of a sequence."""

MOST_CHUNKS = 8
"""Largest number of chunks of an interleaved pipeline."""

RECOMPUTE = ("none", "selective", "full")

FSDP, HSDP, OPTIMIZER = "fsdp", "hsdp", "distributed-optimizer"

SCHEDULE = ("schedule", "chunks", "layers", "partition", "replicas", "pieces")
"""Keys of a pipeline that a layout replaces."""

FRAMEWORKS = {FSDP: "torch-compile", HSDP: "torch-compile", OPTIMIZER: "megatron"}
"""Host of a layout by its placement of states, unless the workload names one."""


@dataclass(frozen=True, slots=True)
class ParallelLayout(JsonObject):
    """Layout of a training job.

    Attributes
    ----------
    tensor, pipeline, context, expert, data : int
        GPUs of each dimension of parallelism.
    micro : int
        Samples of a microbatch.
    chunks : int
        Chunks of each stage; more than one is an interleaved pipeline.
    states : str
        Placement of states: ``distributed-optimizer``, ``fsdp``, or ``hsdp`` with `shard` GPUs per copy.
    shard : int
        GPUs that share states; 0 is all replicas.
    recompute : str
        Recomputation of activations.
    """

    tensor: int
    pipeline: int
    context: int
    expert: int
    data: int
    micro: int
    chunks: int
    states: str
    shard: int
    recompute: str

    @property
    def words(self) -> str:
        """Return the layout in a line."""
        sizes = {
            "TP": self.tensor,
            "PP": self.pipeline,
            "VPP": self.chunks,
            "CP": self.context,
            "EP": self.expert,
            "DP": self.data,
        }
        mesh = [f"{name}{size}" for name, size in sizes.items() if size > 1]
        again = (
            [] if self.recompute == "none" else [f"{self.recompute} recomputation"]
        )
        states = f"{self.states} {self.shard}" if self.shard else self.states
        return ", ".join([" ".join([*mesh, f"MB{self.micro}"]), states, *again])

    def workload(self, base: Mapping[str, Any]) -> Workload:
        """Return the workload with this layout; `base` has the other keys of its file."""
        data = {
            **base.get("data", {}),
            "kind": FSDP if self.states == HSDP else self.states,
        }
        data["shard"] = self.shard or None
        pipeline = {"messages": "overlapped"} | {
            key: value
            for key, value in base.get("pipeline", {}).items()
            if key not in SCHEDULE
        }
        if self.chunks > 1:
            pipeline |= {"schedule": "interleaved", "chunks": self.chunks}
        changed: dict[str, Any] = {
            "recompute": self.recompute,
            "batch": {**base["batch"], "micro": self.micro},
            "parallel": {
                "tensor": self.tensor,
                "pipeline": self.pipeline,
                "context": self.context,
                "expert": self.expert,
                "data": self.data,
            },
            "data": data,
            "pipeline": pipeline,
        }
        if self.tensor > 1:
            changed["tensor"] = {**base.get("tensor", {}), "sequence_parallel": True}
        if "host" not in base:
            changed["host"] = {"framework": FRAMEWORKS[self.states]}
        if self.states == OPTIMIZER and "gradient_bits" not in base:
            changed["gradient_bits"] = 32
        return Workload.model_validate({**base, **changed})


def layouts(
    model: Model, workload: Workload, fabric: Fabric
) -> Iterator[ParallelLayout]:
    """Yield the layouts of a job on all GPUs of a system that divide model and batch."""
    zones = zones_of(fabric)
    per_node = min(zones.count(zone) for zone in set(zones))
    heads = model.heads if isinstance(model, Transformer) else 1
    experts = model.experts if isinstance(model, Transformer) else 0
    depth = model.layers if isinstance(model, Transformer) else 1
    tensors = [size for size in _powers(per_node) if heads % size == 0]
    pipelines = [size for size in range(1, len(zones) + 1) if depth % size == 0]
    contexts = [
        size for size in _powers(MOST_CONTEXT) if workload.sequence % (2 * size) == 0
    ]
    for tensor, pipeline, context in product(tensors, pipelines, contexts):
        data, remainder = divmod(len(zones), tensor * pipeline * context)
        if remainder or not data:
            continue
        for expert in _divisors(experts, data * context):
            mesh = tensor, pipeline, context, expert, data
            yield from _schedules(mesh, depth, workload.batch.all, per_node)


def _schedules(
    mesh: tuple[int, int, int, int, int], depth: int, batch: int, per_node: int
) -> Iterator[ParallelLayout]:
    """Yield the layouts of a mesh: microbatches, chunks, states and recomputation."""
    tensor, pipeline, context, _, data = mesh
    inside = max(1, per_node // tensor)
    for micro in _powers(MOST_MICRO):
        rounds, remainder = divmod(batch, micro * data)
        if remainder:
            continue
        chunks = [1]
        if pipeline > 1 and rounds % pipeline == 0:
            chunks = [
                n for n in range(1, MOST_CHUNKS + 1) if depth % (pipeline * n) == 0
            ]
        states = [(OPTIMIZER, 0)]
        if pipeline == 1:
            states += [(FSDP, 0)]
            if (
                inside < data * context
                and data * context % inside == 0
                and inside > 1
            ):
                states += [(HSDP, inside)]
        for count, (kind, shard), recompute in product(chunks, states, RECOMPUTE):
            yield ParallelLayout(*mesh, micro, count, kind, shard, recompute)


def _powers(most: int) -> list[int]:
    return [1 << bit for bit in range(most.bit_length()) if 1 << bit <= most]


def _divisors(experts: int, replicas: int) -> list[int]:
    """Return the sizes of groups of experts."""
    if not experts:
        return [1]
    return [
        size
        for size in range(1, experts + 1)
        if experts % size == 0 and replicas % size == 0
    ]
