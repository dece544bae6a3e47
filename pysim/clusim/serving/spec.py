"""Serving files: the schema, and reading them."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError

from clusim.base.resources import shipped_serving
from clusim.serving.scheduler import Rule
from clusim.topology.quantities import Amount, Spec, Time, base_or_mapping
from clusim.workload.spec import ModelSpec, Positive, Small
from clusim.workload.workload_file import load_described

MOST_REQUESTS = 10_000_000
"""Most requests of a run."""

EngineName = Literal["vllm", "sglang", "trtllm"]


class EngineSpec(Spec):
    """Engine, and changes of its host's times."""

    name: EngineName = "vllm"
    step: Time | None = None
    sequence: Time | None = None
    request: Time | None = None


class ServedFormats(Spec):
    """Number formats of weights, and of the cache of keys and values."""

    weights: Literal["bf16", "fp8", "fp8-block", "nvfp4", "mxfp4"] = "bf16"
    cache: Literal["bf16", "fp8"] = "bf16"


class ReplicaSpec(Spec):
    """Ranks of a replica."""

    tensor: Small = 1
    pipeline: Small = 1
    expert: Small = 1
    attention_data: Small = 1


class CacheSpec(Spec):
    """Cache of keys and values: tokens of a block, share of memory, and memory that it leaves free; prefixes remain."""

    block: Small = 16
    share: Annotated[float, Field(gt=0, le=1)] = 0.9
    blocks: Positive | None = None
    reserve: Amount | None = None
    prefix: bool = False


class BatchingSpec(Spec):
    """Scheduler and its limits; the engine's if not set."""

    rule: Rule | None = None
    max_batched_tokens: Positive = 8192
    max_sequences: Small = 1024


class LogNormalSpec(Spec):
    """Mean, and standard deviation of the logarithm."""

    mean: Annotated[float, Field(gt=0, le=2**30)]
    sigma: Annotated[float, Field(ge=0, le=8)]


class LengthSpec(Spec):
    """Lengths in tokens: equal, uniform between two, or log-normal."""

    fixed: Positive | None = None
    uniform: Annotated[list[Positive], Field(min_length=2, max_length=2)] | None = (
        None
    )
    lognormal: LogNormalSpec | None = None

    @model_validator(mode="before")
    @classmethod
    def _with_number(cls, value: Any) -> Any:
        """Accept a number."""
        is_number = isinstance(value, int) and not isinstance(value, bool)
        return {"fixed": value} if is_number else value

    @model_validator(mode="after")
    def _check(self) -> LengthSpec:
        forms = self.fixed, self.uniform, self.lognormal
        if sum(form is not None for form in forms) != 1:
            raise PydanticCustomError(
                "length",
                "write a number, {{uniform: [low, high]}} or {{lognormal: {{mean: .., sigma: ..}}}}",
            )
        if self.uniform is not None and self.uniform[0] > self.uniform[1]:
            raise PydanticCustomError(
                "length", "the first length must not be greater"
            )
        return self


class RequestSpec(Spec):
    """Requests: lengths, and either a number that is always in the server, or a rate of arrivals [1/s].

    All prompts begin with `prefix` equal tokens.
    """

    input: LengthSpec = LengthSpec(fixed=1024)
    output: LengthSpec = LengthSpec(fixed=128)
    concurrency: Small | None = None
    rate: Annotated[float, Field(gt=0, le=1e9)] | None = None
    count: Annotated[int, Field(ge=1, le=MOST_REQUESTS)] | None = None
    file: str | None = None
    prefix: Annotated[int, Field(ge=0, le=2**30)] = 0
    seed: Annotated[int, Field(ge=0)] = 0


class LimitSpec(Spec):
    """Limits of a request that counts as good."""

    ttft: Time | None = None
    tpot: Time | None = None


class ExchangeSpec(Spec):
    """Exchange of tokens for experts with data parallelism of attention, and the load of the fullest group.

    ``skew`` is its additional load; ``power`` shapes the popularity of experts, in an order by ``seed``.
    """

    exchange: Literal["gather", "alltoall", "deepep"] = "gather"
    low_latency: bool = False
    skew: Annotated[float, Field(ge=0, le=16)] = 0.0
    power: Annotated[float, Field(ge=0, le=8)] = 0.0
    seed: Annotated[int, Field(ge=0)] = 0

    @model_validator(mode="after")
    def _check(self) -> ExchangeSpec:
        if self.skew and self.power:
            raise PydanticCustomError("experts", "set either skew or power")
        if self.low_latency and self.exchange != "deepep":
            raise PydanticCustomError("experts", "low_latency needs exchange deepep")
        return self


class PoolSpec(Spec):
    """Replicas of one kind of work, on consecutive ranks."""

    replicas: Small = 1
    parallel: ReplicaSpec = ReplicaSpec()


class PoolsSpec(Spec):
    """Separate replicas for prompts and for decoding."""

    prefill: PoolSpec = PoolSpec()
    decode: PoolSpec = PoolSpec()


class TransferSpec(Spec):
    """Transfer of a cache from a prefill to a decode replica.

    ``whole``: after the prompt; ``layers``: every layer's part after its computation.
    """

    when: Literal["whole", "layers"] = "whole"
    setup: Time | None = None
    piece: Time | None = None


class BesideSpec(Spec):
    """Other traffic on the network: messages of every rank to the rank half of the ranks away."""

    load: Annotated[float, Field(gt=0, lt=1)] = 0.5
    message: Amount = 1 << 20


class ServingSpec(Spec):
    """Served model: system, engine, parallelism, scheduler and requests."""

    name: str = "serving"
    description: str = ""
    topology: str | None = None
    nodes: Annotated[int, Field(ge=1, le=65_536)] | None = None
    model: Annotated[ModelSpec, base_or_mapping]
    engine: EngineSpec = EngineSpec()
    precision: ServedFormats = ServedFormats()
    parallel: ReplicaSpec = ReplicaSpec()
    replicas: Small = 1
    pools: PoolsSpec | None = None
    transfer: TransferSpec = TransferSpec()
    beside: BesideSpec | None = None
    experts: ExchangeSpec = ExchangeSpec()
    cache: CacheSpec = CacheSpec()
    batching: BatchingSpec = BatchingSpec()
    requests: RequestSpec = RequestSpec()
    limits: LimitSpec = LimitSpec()

    @model_validator(mode="after")
    def _check(self) -> ServingSpec:
        """Refuse keys that others exclude, or that need others."""
        keys = self.model_fields_set
        if self.pools is not None and (
            both := sorted(keys & {"parallel", "replicas"})
        ):
            raise PydanticCustomError(
                "pools",
                "{key} is not for pools, which have theirs",
                {"key": both[0]},
            )
        if self.pools is None and (lone := sorted(keys & {"transfer", "beside"})):
            raise PydanticCustomError("pools", "{key} needs pools", {"key": lone[0]})
        return self


def load_serving(
    path: str | os.PathLike[str], changes: Mapping[str, Any] | None = None
) -> ServingSpec:
    """Return the served model in a YAML file, or the shipped file of that name.

    Parameters
    ----------
    changes : mapping or None
        Values of keys of the file, by their paths: ``{"parallel.tensor": 4}``.

    Raises
    ------
    InputError
        A missing file, or an invalid line.
    """
    spec, folder = load_described(
        ServingSpec, path, shipped_serving(), ("serving", "'model'"), changes
    )
    if spec.model.huggingface:
        spec.model.huggingface = os.fspath(folder / spec.model.huggingface)
    if spec.requests.file:
        spec.requests.file = os.fspath(folder / spec.requests.file)
    return spec
