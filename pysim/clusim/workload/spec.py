"""Workload files: the schema."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    Field,
    PrivateAttr,
    field_validator,
    model_validator,
)
from pydantic_core import PydanticCustomError

from clusim.base.errors import InputError
from clusim.base.terms.operations import protocol_named
from clusim.topology.quantities import (
    Amount,
    Bandwidth,
    Size,
    Spec,
    Time,
    base_or_mapping,
)
from clusim.topology.validate import Problems

Positive = Annotated[int, Field(ge=1, le=2**40)]
Small = Annotated[int, Field(ge=1, le=2**20)]
Fraction = Annotated[float, Field(gt=0, le=1)]

RecomputedModule = Literal[
    "core_attn",
    "layernorm",
    "mla_up_proj",
    "mlp",
    "mlp_act",
    "moe",
    "moe_act",
    "shared_experts",
]


class ModelSpec(Spec):
    """Model by name, from a Hugging Face configuration, or a named one with other dimensions."""

    base: str | None = None
    huggingface: str | None = None
    layers: Small | None = None
    hidden: Positive | None = None
    heads: Positive | None = None
    kv_heads: Positive | None = None
    head_size: Positive | None = None
    intermediate: Positive | None = None
    vocab: Positive | None = None
    experts: Annotated[int, Field(ge=0)] | None = None
    top_k: Positive | None = None
    expert_size: Positive | None = None
    shared_experts: Annotated[int, Field(ge=0)] | None = None
    dense_layers: Annotated[int, Field(ge=0)] | None = None
    positions: Annotated[int, Field(ge=0)] | None = None
    dropout: bool | None = None
    sizes: Annotated[list[Positive], Field(min_length=2, max_length=4096)] | None = (
        None
    )
    blocks: Annotated[list[Small], Field(min_length=1, max_length=16)] | None = None
    image: Annotated[int, Field(ge=32, le=2**20)] | None = None
    embedding: Positive | None = None
    pooling: Positive | None = None
    rows: Annotated[list[Positive], Field(min_length=1)] | None = None
    tables: Literal["whole", "even"] | None = None
    bottom: list[Positive] | None = None
    top: list[Positive] | None = None


class BatchSpec(Spec):
    """Samples of a step over all ranks, and of a microbatch of one model replica."""

    all: Annotated[int, Field(ge=1, le=2**40, alias="global")]
    micro: Positive = 1


class ParallelSpec(Spec):
    """Sizes of the mesh; `data` defaults to the GPUs that the other dimensions leave."""

    tensor: Small = 1
    context: Small = 1
    expert: Small = 1
    data: Small | None = None
    pipeline: Small = 1
    order: list[Literal["tensor", "context", "data", "pipeline"]] | None = None
    ranks: list[Annotated[int, Field(ge=0)]] | None = None


class TensorSpec(Spec):
    """Partition of matrices, and overlap of product pieces with communication (`overlap`)."""

    sequence_parallel: bool = False
    overlap: bool = False
    style: Literal["paired", "column", "row"] = "paired"


class ContextSpec(Spec):
    """Exchange of keys and values with other parts of the sequence.

    ``ring``: they circulate during the kernels; ``all-gather``: they are gathered before; ``ulysses``: heads
    are exchanged for tokens, so that a rank has complete sequences of some heads.
    """

    style: Literal["ring", "all-gather", "ulysses"] = "ring"


class OffloadSpec(Spec):
    """State and work on hosts: optimizer states and step; activations until they are needed."""

    optimizer: bool = False
    activations: bool = False


class PipelineSpec(Spec):
    """Order of passes, placement of layers, and overlap of messages between stages.

    `layers`: number of layers in each part of the model, in order; ``balanced`` minimises the time of the
    slowest part.
    `replicas`: with ``pipedream`` the GPUs of each stage, which alternate; ``replicated`` also chooses
    these.
    `pieces`: parts of the sequence that pass as a wave through a recurrent network, with ``wavefront``.
    `rule`: ``megatron`` rejects the layouts that Megatron-LM rejects: interleaved, microbatches that are no
    multiple of the stages.
    """

    schedule: Literal[
        "naive",
        "gpipe",
        "1f1b",
        "interleaved",
        "pipedream",
        "zero-bubble",
        "zb-v",
        "dualpipe",
        "dualpipe-v",
        "wavefront",
    ] = "1f1b"
    chunks: Small = 1
    rule: Literal["megatron"] | None = None
    pieces: Small = 1
    layers: list[Annotated[int, Field(ge=0, le=2**20)]] | None = None
    partition: Literal["even", "balanced", "replicated"] = "even"
    replicas: Annotated[list[Small], Field(min_length=1)] | None = None
    messages: Literal["blocking", "overlapped"] | None = None
    scatter_gather: bool = True


class DataSpec(Spec):
    """Reduction of gradients and placement of states.

    `shard`: number of ranks that share the states of a replica, the others have copies (HSDP); by default
    all share them.
    `batchnorm`: number of ranks that normalise batches together (SyncBatchNorm).
    """

    kind: Literal[
        "ddp",
        "naive",
        "driver",
        "parameter-server",
        "zero1",
        "zero2",
        "zero3",
        "fsdp",
        "distributed-optimizer",
    ] = "ddp"
    bucket: Size = 25 << 20
    first_bucket: Size = 1 << 20
    overlap: bool = True
    accumulate: bool = True
    prefetch: Annotated[int, Field(ge=0, le=64)] = 1
    reshard: bool = True
    shard: Small | None = None
    batchnorm: Small = 1
    servers: Small = 1
    colocated: bool = False
    mode: Literal["bsp", "async"] = "bsp"


class ExpertsSpec(Spec):
    """Load of the experts: `skew` 0 is even, the busiest rank has 1 + skew times the mean.

    `capacity` is the limit; with `pad` every expert receives as many tokens as its capacity, padded if fewer
    arrive. With ``exchange: deepep`` a token is sent once to each rank that has one of its experts, by `sms`
    CTAs, in the number format `dispatch`, and with `low_latency` to each of its experts; the experts of a
    token are on at most `machines` nodes.
    """

    exchange: Literal["alltoall", "deepep"] = "alltoall"
    sms: Annotated[int, Field(ge=2, le=64)] = 20
    dispatch: Literal["bf16", "fp8"] = "bf16"
    machines: Small | None = None
    low_latency: bool = False
    pad: bool = False
    capacity: Annotated[float, Field(ge=0, le=1024)] = 0.0
    skew: Annotated[float, Field(ge=0, le=1024)] = 0.0
    seed: Annotated[int, Field(ge=0)] = 0


def _protocol(word: str) -> str:
    try:
        return protocol_named(word).key
    except InputError as error:
        raise PydanticCustomError(
            "protocol", "{message}", {"message": str(error)}
        ) from None


class CommunicatorSpec(Spec):
    """Algorithms of a dimension's collectives, overriding the workload's `collectives`."""

    algorithm: dict[str, str] | None = None
    protocol: Annotated[str, AfterValidator(_protocol)] | None = None
    channels: Annotated[int, Field(ge=1, le=64)] | None = None


class RecomputationSpec(Spec):
    """Recomputed part of a stage, instead of all layers or the core of attention.

    With ``recompute: full`` the first `layers` of every part of a stage or each `every`-th one, or all in
    groups of `group` of which only the input is kept; with ``selective`` these `modules`, as named by
    Megatron-LM, or `operators` by TorchTitan's policy ``op``.
    """

    layers: Annotated[int, Field(ge=0, le=2**20)] | None = None
    every: Small | None = None
    group: Small = 1
    modules: list[RecomputedModule] | None = None
    operators: Literal["torchtitan"] | None = None


class StragglerSpec(Spec):
    """Slow ranks (factors by rank), and random kernel times (standard deviation, relative)."""

    ranks: dict[str, Annotated[float, Field(ge=0.01, le=1000)]] = Field(
        default_factory=dict
    )
    jitter: Annotated[float, Field(ge=0, le=10)] = 0.0
    seed: Annotated[int, Field(ge=0)] = 0


class CheckpointSpec(Spec):
    """Checkpoints: `write` rate of all GPUs together [B/s], and interval.

    `every` is in steps, `every_s` in seconds; by default the interval with the least waste. With
    `asynchronous` training only stops until the states are copied to the hosts; with `overlap` they are
    copied during the passes of a step, and its optimiser waits for them.
    """

    write: Bandwidth
    every: Positive | None = None
    every_s: Annotated[float, Field(gt=0, le=1e9)] | None = None
    asynchronous: bool = False
    overlap: bool = False


class ReliabilitySpec(Spec):
    """GPU failures and their cost: mean time between failures per GPU [h], restart [s], period."""

    gpu_mtbf_h: Annotated[float, Field(gt=0, le=1e9)]
    restart_s: Annotated[float, Field(ge=0, le=1e9)]
    checkpoint: CheckpointSpec | None = None
    days: Annotated[float, Field(gt=0, le=36_500)] = 30.0


Factor = Annotated[float, Field(ge=1e-3, le=1e3)]


class HardwareSpec(Spec):
    """Parameters that replace those of the presets; `speed` is the factor of faster kernels and their traffic."""

    gemm_fraction: Fraction | None = None
    attention_fraction: Fraction | None = None
    kernels: Annotated[str, Field(min_length=1, max_length=4096)] | None = None
    attention_library: Annotated[str, Field(min_length=1, max_length=32)] | None = (
        None
    )
    sustained: Fraction | None = None
    memory: Amount | None = None
    speed: Factor = 1.0


class MemorySpec(Spec):
    """Memory of a rank's process in addition to its step; the defaults are presets.

    `fragments` is a fraction of activations and transient memory.
    """

    context: Amount | None = None
    workspaces: Amount | None = None
    convolutions: Amount | None = None
    fragments: Annotated[float, Field(ge=0, le=1)] | None = None


class HostSpec(Spec):
    """Host thread of a rank: its framework, and replacements of the framework's parameters.

    `speed` is the factor of a faster thread.
    """

    framework: Literal[
        "none",
        "pytorch",
        "megatron",
        "megatron-deepspeed",
        "torch-compile",
        "cuda-graph",
        "jax",
    ] = "none"
    per_operator: Time | None = None
    queue: Annotated[int, Field(ge=1, le=2**20)] | None = None
    data_loading: Time = 0
    speed: Factor = 1.0


Batch = Annotated[str, Field(pattern=r"^[1-9][0-9]{0,12}$")]
"""A batch as the key of a table."""

Epochs = Annotated[float, Field(gt=0, le=1e9)]


class ConvergenceSpec(Spec):
    """Epochs to accuracy, for small batches or by batch, and the samples of an epoch."""

    samples: Annotated[int, Field(ge=1, le=2**50)]
    epochs: Epochs | None = None
    critical_batch: Positive | None = None
    by_batch: Annotated[dict[Batch, Epochs], Field(min_length=1)] | None = None

    @model_validator(mode="after")
    def _one_law(self) -> ConvergenceSpec:
        """Accept either a number of epochs, with its critical batch, or a table."""
        alone = self.epochs is None and self.critical_batch is None
        if (self.by_batch is None) == alone:
            message = (
                "set epochs, with critical_batch if they grow, or epochs by_batch"
            )
            raise PydanticCustomError("convergence", message)
        return self


class Workload(Spec):
    """Training run: model, topology, batch and parallelism."""

    name: str = "workload"
    description: str = ""
    topology: str | None = None
    nodes: Annotated[int, Field(ge=1, le=65_536)] | None = None
    model: Annotated[ModelSpec, base_or_mapping]
    sequence: Positive = 2048
    batch: BatchSpec
    precision: Literal[
        "bf16", "fp16", "fp8", "fp8-current", "fp8-block", "mxfp8", "fp32", "tf32"
    ] = "bf16"
    primary_weights: Literal["bf16", "fp8"] = "bf16"
    optimizer: Literal["sgd", "momentum", "adam"] = "adam"
    gradient_bits: Literal[16, 32] = 16
    offload: OffloadSpec = OffloadSpec()
    recompute: Literal["none", "selective", "full"] = "none"
    recomputation: RecomputationSpec = RecomputationSpec()
    attention: Literal["flash", "plain"] = "flash"
    loss: Literal["fused", "plain"] = "fused"
    accumulation: Literal["fused", "added", "step"] = "fused"
    parallel: ParallelSpec = ParallelSpec()
    tensor: TensorSpec = TensorSpec()
    context: ContextSpec = ContextSpec()
    pipeline: PipelineSpec = PipelineSpec()
    data: DataSpec = DataSpec()
    experts: ExpertsSpec = ExpertsSpec()
    communicators: dict[
        Literal["tensor", "context", "expert", "data", "pipeline"], CommunicatorSpec
    ] = Field(default_factory=dict)
    collectives: Literal["nccl", "clusim"] = "nccl"
    stragglers: StragglerSpec = StragglerSpec()
    hardware: HardwareSpec = HardwareSpec()
    memory: MemorySpec = MemorySpec()
    checkpoint: CheckpointSpec | None = None
    reliability: ReliabilitySpec | None = None
    convergence: ConvergenceSpec | None = None
    host: HostSpec = HostSpec()
    fold: Literal["auto", "all", "proved", "none"] = "auto"
    _document: Problems | None = PrivateAttr(None)

    def __hash__(self) -> int:
        """Return a hash of the fields that are fast to hash."""
        return hash((self.name, self.topology, self.nodes))

    @model_validator(mode="before")
    @classmethod
    def _with_nodes(cls, data: Any) -> Any:
        """Accept ``topology: {preset: NAME, nodes: N}`` in place of ``topology: NAME`` and ``nodes: N``."""
        topology = data.get("topology") if isinstance(data, Mapping) else None
        if not isinstance(topology, Mapping) or not isinstance(
            topology.get("preset"), str
        ):
            return data
        if set(topology) - {"preset", "nodes"} or (
            "nodes" in topology and "nodes" in data
        ):
            return data
        return {**data, "topology": topology["preset"]} | {
            k: topology[k] for k in topology if k == "nodes"
        }

    @field_validator("topology", mode="before")
    @classmethod
    def _resolve_names(cls, value: Any) -> Any:
        if isinstance(value, Mapping):
            raise PydanticCustomError(
                "named",
                "expected the name of a preset or a file, with the number of nodes in `nodes`"
                " (topology: dgx-h100, nodes: 8), or {preset: dgx-h100, nodes: 8}",
            )
        return value

    @property
    def checkpoints(self) -> CheckpointSpec | None:
        """Checkpoints of the workload, or with its failures."""
        reliability = self.reliability
        return self.checkpoint or (
            reliability.checkpoint if reliability is not None else None
        )

    def communicator(self, dim: str) -> CommunicatorSpec | None:
        """Return the settings of a dimension's collectives, or None if not set."""
        return next(
            (spec for name, spec in self.communicators.items() if name == dim), None
        )
