"""Workload on a topology, checked and completed: chip, mesh, microbatches, layers of every stage, memory."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any

from clusim.base.errors import InputError
from clusim.topology.model import Fabric
from clusim.workload.chips import chip_of
from clusim.workload.host import HostTimes, host_of
from clusim.workload.kernels import PRECISIONS, Chip, Precision
from clusim.workload.layers import Layer, Shard
from clusim.workload.memory import (
    ZERO,
    Keeping,
    Memory,
    Optimizer,
    ProcessMemory,
    communicator_bytes,
    find_optimizer,
    in_flight,
    process_memory,
    stage_memory,
)
from clusim.workload.mesh import Mesh, placement, zones_of
from clusim.workload.models import Dlrm, Model, Transformer, find_model, read_config
from clusim.workload.parallel.checks import (
    check_checkpoints,
    check_exchange,
    check_interleaving,
    check_kind,
    check_names,
    check_turns,
    check_weights,
    expert_loads,
)
from clusim.workload.parallel.layout import mesh_of
from clusim.workload.parallel.stages import (
    COPY,
    Ground,
    adds_up,
    deepep_of,
    moving,
    shard_of,
    stages_of,
)
from clusim.workload.pipeline_schedules import (
    CUT,
    Action,
    Crew,
    StageLayout,
    layout_of,
    order,
    round_robin,
    waves,
)
from clusim.workload.recipes import weight_bytes
from clusim.workload.spec import ModelSpec, Workload
from clusim.workload.workload_file import complain

WHOLE = (
    "norm",
    "final norm",
    "embedding norm",
    "router",
    "projection bias",
    "fc2 bias",
)
"""Names of tensors that tensor parallelism does not split."""

MOST_MICROBATCHES = 1 << 14
"""Limit on microbatches of a replica per step: more are an input error."""


@dataclass(frozen=True)
class ParallelPlan:
    """Layout of a training run, complete before any part of the schedule is written.

    Attributes
    ----------
    stages : list of list of list of Layer
        Layers of a rank by stage and chunk; each worker of a stage counts as a stage.
    crew : Crew
        Workers by stage; without replicas each stage has one.
    microbatches : int
        Microbatches of a model replica per step.
    servers : tuple of int
        Ranks of parameter servers.
    """

    workload: Workload
    fabric: Fabric
    model: Model
    precision: Precision
    chip: Chip
    optimizer: Optimizer
    mesh: Mesh
    shard: Shard
    microbatches: int
    stages: list[list[list[Layer]]]
    crew: Crew
    servers: tuple[int, ...] = ()

    @property
    def samples(self) -> int:
        """Tokens (or samples) of a step over all ranks."""
        return self.model.samples(self.shard) * self.microbatches * self.mesh.data

    @property
    def model_flops(self) -> int:
        """Operations counted in MFU, per step over all ranks: no recomputation or expert padding."""
        total = 0
        for stage in range(self.crew.stages):
            for layer in (
                layer
                for chunk in self.stages[self.crew.first(stage)]
                for layer in chunk
            ):
                total += (
                    layer.flops("forward")
                    + layer.flops("input")
                    + layer.flops("weight")
                )
        return (
            total
            * self.microbatches
            * self.mesh.size
            // self.mesh.pipeline
            // self.copies
        )

    def optimizer_parameters(self, stage: int) -> int:
        """Return the parameters that the optimiser touches on a GPU of a stage."""
        if self.servers:
            return 0
        tensors = [
            t
            for chunk in self.stages[stage]
            for layer in chunk
            for t in layer.tensors
        ]
        common = sum(t.optimizer_elements for t in tensors if not t.expert)
        experts = sum(t.optimizer_elements for t in tensors if t.expert)
        if self.zero:
            common = -(-common // self.mesh.shards)
            experts = -(-experts // self.mesh.expert_shards)
        return common + experts

    @property
    def loads(self) -> list[float]:
        """Load of the experts, or of the tables, of each rank of an expert group relative to the mean."""
        experts, ranks = self.workload.experts, self.mesh.expert
        if (
            isinstance(self.model, Dlrm)
            and not experts.skew
            and not experts.capacity
        ):
            return self.model.table_loads(ranks)
        settings = experts.skew, experts.capacity, experts.seed
        return expert_loads(ranks, *settings, pad=experts.pad)

    @property
    def zero(self) -> int:
        """Stage of ZeRO."""
        return ZERO.get(self.workload.data.kind, 0)

    @property
    def schedule(self) -> str:
        """Schedule of the pipeline; irrelevant with a single stage."""
        schedule = self.workload.pipeline.schedule
        return (
            schedule if self.mesh.pipeline > 1 or schedule == "wavefront" else "1f1b"
        )

    def passes(self, stage: int, microbatches: int) -> list[Action]:
        """Return the actions of a stage, in order."""
        pipeline, stages = self.workload.pipeline, self.mesh.pipeline
        if self.schedule == "wavefront":
            return waves(stage, stages, microbatches, pipeline.pieces)
        if self.schedule == "pipedream":
            return round_robin(self.crew, stage, microbatches)
        chunks = pipeline.chunks if self.schedule == "interleaved" else 1
        return order(self.schedule, stage, stages, microbatches, chunks)

    @property
    def layout(self) -> StageLayout:
        """Parts of the model by stage."""
        return layout_of(self.schedule, self.crew.stages, len(self.stages[0]))

    @property
    def copies(self) -> int:
        """Stages with the same part of the model, each for its share of the microbatches."""
        return 2 if self.layout.shape == "both" else 1

    @property
    def splits_backward(self) -> bool:
        """True if weight gradients have separate passes."""
        return self.schedule in CUT

    def copied_bytes(self, stage: int) -> int:
        """Return the gradients that a rank of a stage adds to the opposite stage's [bytes]."""
        if self.copies == 1:
            return 0
        tensors = [
            t
            for chunk in self.stages[stage]
            for layer in chunk
            for t in layer.tensors
        ]
        sizes = [
            sum(t.elements for t in tensors if t.expert == expert)
            for expert in (False, True)
        ]
        if self.zero:
            sizes = [
                -(-sizes[0] // self.mesh.shards),
                -(-sizes[1] // self.mesh.expert_shards),
            ]
        return sum(sizes) * self.element_bytes_reduced

    @property
    def tied_bytes(self) -> int:
        """Return the gradients of embedding copies in first and last stage; 0: no copy [bytes]."""
        copies = [t for t in self.stages[-1][-1][-1].tensors if t.name == COPY]
        size = sum(t.elements for t in copies) * self.element_bytes_reduced
        return size // self.mesh.shards if self.zero == 3 else size

    def whole_bytes(self, stage: int) -> int:
        """Return the gradients that sequence parallelism computes from one rank's tokens [bytes]."""
        if not self.shard.sequence_parallel:
            return 0
        tensors = [
            t
            for chunk in self.stages[stage]
            for layer in chunk
            for t in layer.tensors
        ]
        size = sum(t.elements for t in tensors if t.name.startswith(WHOLE))
        size *= self.element_bytes_reduced
        return size // self.mesh.shards if self.zero == 3 else size

    @property
    def element_bytes_reduced(self) -> int:
        """Element of the gradients that ranks reduce [bytes]."""
        return self.optimizer.sum_bytes

    def host(self) -> HostTimes | None:
        """Return the host thread of every rank, or None if issuing costs no time."""
        heads = self.model.heads if isinstance(self.model, Transformer) else 0
        settings = self.workload.host
        return host_of(
            settings, self.fabric, self.shard, -(-heads // self.mesh.tensor)
        )

    def placement(self) -> dict[str, str]:
        """Return, for each dimension, the placement of its groups inside or across nodes."""
        return placement(self.mesh, self.fabric)

    def hints(self) -> list[str]:
        """Return hints about unusual features of the mesh, with the usual choice."""
        mesh, where = self.mesh, self.placement()
        zones = zones_of(self.fabric)
        fits = min(zones.count(zone) for zone in set(zones))
        if where["tensor"] in ("inside", "none"):
            if where.get("shard", "inside") in ("inside", "none"):
                return []
            return [
                f"states are sharded over groups of {mesh.shards} GPUs that span nodes, so weights are"
                f" gathered between nodes; a node has {fits}"
            ]
        if mesh.tensor <= fits and fits % mesh.tensor == 0:
            return [
                f"tensor parallelism spans nodes, though groups of {mesh.tensor} fit inside; put tensor first"
                " in parallel.order"
            ]
        return [
            f"tensor parallelism spans nodes: {mesh.tensor} GPUs in a group, {fits} per node"
        ]

    @property
    def process(self) -> ProcessMemory:
        """Memory of a rank's process; on an ideal chip, of unknown memory, only the step is counted."""
        if not self.chip.memory_bytes:
            return ProcessMemory()
        return process_memory(self.workload.memory, self.chip.workspace_bytes)

    def memory(self, stage: int) -> Memory:
        """Return the memory of a rank of a stage."""
        workload, mesh = self.workload, self.mesh
        versions, microbatches_held = 1, workload.pipeline.pieces
        if self.schedule == "pipedream":
            # This schedule never empties its pipeline.
            microbatches_held = versions = self.crew.ahead(stage) + 1
        elif self.schedule != "wavefront":
            chunks = workload.pipeline.chunks
            microbatches_held = in_flight(
                self.schedule, stage, mesh.pipeline, self.microbatches, chunks
            )
        return stage_memory(
            self.stages[stage],
            self.optimizer,
            Keeping(
                self.zero,
                mesh.shards,
                mesh.expert_shards,
                microbatches_held,
                gathered=workload.data.prefetch if workload.data.reshard else None,
                weight_versions=versions,
                states_on_host=workload.offload.optimizer,
                activations_on_host=workload.offload.activations,
                summed=self.chip.adds,
                copied_bytes=weight_bytes(self.precision),
                copies_only=workload.primary_weights == "fp8",
                process=self.process,
            ),
            buffers=communicator_bytes(self._communicators()),
            capacity=self.chip.memory_bytes,
        )

    def _communicators(self) -> list[tuple[int, int, bool]]:
        """Return (channels, peers, one direction per peer) of the communicators of a rank."""
        mesh, result = self.mesh, []
        all_of = mesh.data * mesh.context
        sizes = [
            ("tensor", mesh.tensor),
            ("context", mesh.context),
            ("data", mesh.shards),
        ]
        for dim, size in [*sizes, ("data", all_of // mesh.shards)]:
            if size > 1:
                result.append(
                    (self.channels(dim) or self.fabric.num_channels("ring"), 2, True)
                )
        if mesh.expert > 1:
            result.append(
                (
                    self.channels("expert") or self.fabric.num_channels("p2p"),
                    mesh.expert - 1,
                    False,
                )
            )
        if mesh.pipeline > 1:
            result.append((self.channels("pipeline") or 2, 2, False))
        return result

    def channels(self, dim: str) -> int | None:
        """Return the channels that the workload requests in a dimension."""
        spec = self.workload.communicator(dim)
        return spec.channels if spec is not None else None


def model_of(spec: ModelSpec) -> Model:
    """Return the model a workload names, with the dimensions it changes."""
    if (spec.base is None) == (spec.huggingface is None):
        raise InputError(
            "set either 'base', the name of a model, or 'huggingface', the path of a config.json"
        )
    model: Model = (
        read_config(spec.huggingface)
        if spec.huggingface is not None
        else find_model(spec.base or "")
    )
    changes: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value
        for name, value in spec.model_dump(exclude={"base", "huggingface"}).items()
        if value is not None
    }
    names = {item.name for item in fields(model)}
    for name in changes:
        if name not in names:
            raise InputError(f"{name!r} is not a dimension of {model.name}")
    if (
        isinstance(model, Transformer)
        and not {"head_size"} & changes.keys()
        and {"hidden", "heads"} & changes.keys()
    ):
        hidden, heads = (
            changes.get("hidden", model.hidden),
            changes.get("heads", model.heads),
        )
        if hidden % heads:
            raise InputError(
                f"hidden size {hidden} is not a multiple of {heads} heads; set head_size"
            )
        changes["head_size"] = hidden // heads
        if model.kv_heads == model.heads:
            changes.setdefault("kv_heads", changes.get("heads", model.heads))
    model = replace(model, **changes)
    if isinstance(model, Transformer):
        model.check_numbers()
    return model


def make_plan(workload: Workload, fabric: Fabric) -> ParallelPlan:
    """Return the plan of a workload on a topology; errors name the place in the file."""
    try:
        chip = chip_of(fabric, PRECISIONS[workload.precision], workload.hardware)
    except InputError as error:
        raise complain(
            workload, _blamed_of_chip(workload, str(error)), str(error)
        ) from None
    try:
        model = model_of(workload.model)
    except InputError as error:
        raise complain(workload, ("model",), str(error)) from None
    precision = chip.precision
    mesh, servers = mesh_of(workload, fabric)
    check_names(workload, fabric)
    check_checkpoints(workload, fabric)
    if workload.experts.pad and not workload.experts.capacity:
        raise complain(
            workload, ("experts", "pad"), "needs a capacity to fill experts up to"
        )
    check_kind(workload, model)
    check_weights(workload)
    microbatches = _microbatches(workload, mesh) * workload.pipeline.pieces
    machines = check_exchange(workload, mesh, fabric, model)
    deepep = deepep_of(workload, fabric, machines)
    shard = shard_of(workload, mesh, precision, deepep)
    optimizer = find_optimizer(
        workload.optimizer,
        precision,
        workload.gradient_bits,
        copied_by_step=workload.accumulation == "step",
    )
    try:
        layers = model.build(shard)
        layers = moving(layers, workload, shard, optimizer, microbatches)
        chip = replace(chip, eager=shard.eager, adds=adds_up(workload, optimizer))
        ground = Ground(chip, fabric, mesh, optimizer.sum_bytes, microbatches)
        crew, stages = stages_of(workload, model, layers, ground)
    except InputError as error:
        raise complain(
            workload, _find_cause(workload, str(error)), str(error)
        ) from None
    check_interleaving(workload, microbatches)
    check_turns(workload, crew, microbatches)
    return ParallelPlan(
        workload,
        fabric,
        model,
        precision,
        chip,
        optimizer,
        mesh,
        shard,
        microbatches,
        stages,
        crew,
        servers,
    )


def _blamed_of_chip(workload: Workload, message: str) -> tuple[str, ...]:
    """Return the key of the file with a setting that the chip does not support."""
    hardware = workload.hardware
    if hardware.kernels and hardware.kernels in message:
        return ("hardware", "kernels")
    if message.startswith("attention_library"):
        return ("hardware", "attention_library")
    return ("hardware",) if "gemm_fraction" in message else ("precision",)


def _find_cause(workload: Workload, message: str) -> tuple[str, ...]:
    """Return the key of the file that prevents the partition of the model."""
    if message.startswith("sequence"):
        return ("sequence",)
    if workload.pipeline.layers is not None and message.startswith("layers ["):
        return ("pipeline", "layers")
    if "recompute:" in message or message.startswith(
        ("choose one of layers", "groups of layers")
    ):
        return ("recomputation",)
    return ("parallel",) if workload.parallel.model_fields_set else ("model",)


def _microbatches(workload: Workload, mesh: Mesh) -> int:
    batch = workload.batch
    if batch.all % (batch.micro * mesh.data):
        message = (
            f"{batch.all} samples cannot be divided into microbatches of {batch.micro} on {mesh.data} replicas;"
            f" use a multiple of {batch.micro * mesh.data}"
        )
        raise complain(workload, ("batch", "global"), message)
    result = batch.all // (batch.micro * mesh.data)
    if result > MOST_MICROBATCHES:
        message = f"{result:,} microbatches per step; at most {MOST_MICROBATCHES:,} are simulated"
        raise complain(workload, ("batch", "global"), message)
    return result
