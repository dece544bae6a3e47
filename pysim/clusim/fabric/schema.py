"""The schema of topology files, and of the hardware presets, which use the same keys.

A file gives nodes and links; types of chips, switches, links, formats and protocols come from the presets by name or
are defined in the file, each on top of a ``base``. `Topology.model_json_schema()` is the JSON schema for editors.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, WithJsonSchema
from pydantic_core import PydanticCustomError

from clusim.errors import UnitError
from clusim.units import Rate, parse_rate, parse_size, parse_time

__all__ = [
    "ChipSpec",
    "FormatSpec",
    "LinkSpec",
    "LinkTypeSpec",
    "NodeSpec",
    "ProtocolSpec",
    "SwitchSpec",
    "Topology",
]


def _reader(parse: Callable[[Any], Any]) -> BeforeValidator:
    def read(value: Any) -> Any:
        try:
            return parse(value)
        except UnitError as error:
            raise PydanticCustomError("unit", "{message}", {"message": str(error)}) from None

    return BeforeValidator(read)


def _latency(value: Any) -> int:
    time_ps = parse_time(value)
    if time_ps < 1:
        raise UnitError(f"{value!r}: a latency is at least 1ps")
    return time_ps


def _positive_size(value: Any) -> int:
    size = parse_size(value)
    if size < 1:
        raise UnitError(f"{value!r}: must be at least 1 byte")
    return size


def _small_size(value: Any) -> int:
    size = parse_size(value)
    if size > 1 << 20:
        raise UnitError(f"{value!r}: headers and packets are at most 1 MiB")
    return size


def _bytes_per_s(value: Any) -> float:
    return parse_rate(value).bytes_per_s


def _text(example: str) -> WithJsonSchema:
    return WithJsonSchema({"type": "string", "examples": [example]})


def _wrap_default(value: Any) -> Any:
    return value if isinstance(value, dict) or value is None else {"default": value}


def _wrap_list(value: Any) -> Any:
    return value if isinstance(value, list) else [value]


_default_of = BeforeValidator(_wrap_default)
_one_or_more = BeforeValidator(_wrap_list)

Size = Annotated[int, _reader(_positive_size), Field(lt=2**53), _text("32KiB")]
SmallSize = Annotated[int, _reader(_small_size), _text("16B")]
Time = Annotated[int, _reader(parse_time), Field(lt=2**53), _text("500ns")]
Latency = Annotated[int, _reader(_latency), Field(lt=2**53), _text("150ns")]
LinkRate = Annotated[Rate, _reader(parse_rate), _text("25 GB/s")]
Bandwidth = Annotated[float, _reader(_bytes_per_s), Field(gt=0), _text("900 GB/s")]
Share = Annotated[float, Field(ge=0, le=1024)]
Count = Annotated[int, Field(ge=1, le=65_536)]
Kind = Literal[
    "write",
    "read_request",
    "read_response",
    "multicast",
    "reduce_request",
    "reduce_fetch",
    "reduce_data",
    "reduce_result",
]
KindOrDefault = Literal[
    "default",
    "write",
    "read_request",
    "read_response",
    "multicast",
    "reduce_request",
    "reduce_fetch",
    "reduce_data",
    "reduce_result",
]
Requester = Literal["sm", "ce", "nic"]


class Spec(BaseModel):
    """Base of everything in a file: unknown keys are errors, types are not converted.

    The validators are built when `Topology` is first used, all at once, which halves the import time.
    """

    model_config = ConfigDict(
        extra="forbid",
        strict=True,
        allow_inf_nan=False,
        arbitrary_types_allowed=True,
        defer_build=True,
    )


class ChipSpec(Spec):
    """An endpoint chip: GPU or host."""

    base: str | None = None
    sms: Annotated[int, Field(ge=1, le=65_536)] | None = None
    cta_slots: Annotated[int, Field(ge=1, le=256)] | None = None
    write_latency: Latency | None = None
    read_latency: Latency | None = None
    response_latency: Latency | None = None
    memory_rate: Bandwidth | None = None
    memory_efficiency: Annotated[float, Field(gt=0, le=1)] | None = None
    memory_quantum: Annotated[Latency, Field(le=10**12)] | None = None
    memory_per_delivered: Share | None = None
    memory_per_read: Share | None = None
    memory_per_injected: Share | None = None
    slowdown: Annotated[float, Field(ge=0.01, le=1024)] | None = None
    peak_flops: dict[str, Annotated[float, Field(gt=0)]] | None = None
    links: Annotated[int, Field(ge=0, le=65_536)] | None = None


class SwitchSpec(Spec):
    """A switch chip; the reduction unit exists if one of its keys is given."""

    base: str | None = None
    ports: Count | None = None
    latency: Latency | None = None
    store_and_forward: bool | None = None
    reduction_latency: Latency | None = None
    reduction_capacity: Size | None = None
    reduction_rate: Bandwidth | None = None


class FormatSpec(Spec):
    """A packet format; ``header``, ``control`` and ``service`` may differ per packet kind."""

    base: str | None = None
    flit: Annotated[int, _reader(_positive_size), Field(le=65_536), _text("16B")] | None = None
    header: Annotated[dict[KindOrDefault, SmallSize], _default_of] | None = None
    control: dict[Kind, Annotated[float, Field(ge=0, le=65_536)]] | None = None
    service: dict[Kind, Annotated[float, Field(ge=1, le=1024)]] | None = None
    payload: dict[Requester, Annotated[int, _reader(_small_size), Field(ge=1)]] | None = None


class LinkTypeSpec(Spec):
    """A type of link, or what one entry of ``links`` changes about its type."""

    base: str | None = None
    rate: LinkRate | None = None
    latency: Latency | None = None
    format: str | None = None
    buffer: Size | None = None
    replay: Time | None = None
    error_rate: Annotated[float, Field(ge=0, lt=1)] | None = None
    class_: Annotated[str | None, Field(alias="class", min_length=1, max_length=64)] = None


class ProtocolSpec(Spec):
    """What a CTA pays under one protocol."""

    base: str | None = None
    fixed: Time | None = None
    throughput: dict[str, Bandwidth] | None = None
    expand: Annotated[int, Field(ge=120, le=12_000)] | None = None
    tail_fence: Time | None = None
    head_fence: Time | None = None
    buffer: Size | None = None
    slots: Annotated[int, Field(ge=1, le=1024)] | None = None
    chunk_steps: Annotated[int, Field(ge=1, le=1024)] | None = None
    slice_steps: Annotated[int, Field(ge=1, le=1024)] | None = None
    grain: Size | None = None


class NodeSpec(Spec):
    """A node, or a range of alike nodes (``gpu0..7``)."""

    kind: Literal["gpu", "host", "switch"]
    chip: str | None = None
    switch: str | None = None
    latency: Latency | None = None
    store_and_forward: bool | None = None
    relay: bool = False
    tier: Annotated[str, Field(max_length=64)] | None = None


class LinkSpec(LinkTypeSpec):
    """Links between two nodes or two ranges of nodes."""

    from_: Annotated[str, Field(alias="from")]
    to: str
    pair: Literal["all", "zip"] = "all"
    count: Annotated[list[Count], _one_or_more] = Field(default_factory=lambda: [1])
    type: str | None = None
    dim: Annotated[int, Field(ge=0, le=15)] = 0
    weight: Annotated[int, Field(ge=1, le=64)] = 1
    dateline: Literal["none", "forward", "backward", "both"] = "none"


_Skew = Annotated[int, _reader(parse_time), Field(ge=0, lt=2**40), _text("100ns")]


class Topology(Spec):
    """A whole file."""

    name: Annotated[str, Field(min_length=1, max_length=200)] | None = None
    description: str = ""
    sources: dict[str, str] = Field(default_factory=dict)
    architecture: str | None = None
    p2p: Literal["read", "write"] | None = None
    window: Annotated[int, _reader(parse_size), Field(lt=2**32), _text("64KiB")] | None = None
    cta_skew: _Skew | None = None
    vcs: Annotated[int, Field(ge=1, le=16)] = 2
    routing: Literal["shortest", "dimension-order"] = "shortest"
    channels: dict[str, Annotated[int, Field(ge=1, le=256)]] = Field(default_factory=dict)
    rings: list[list[Annotated[int, Field(ge=0)]]] | None = None
    chips: dict[str, ChipSpec] = Field(default_factory=dict)
    switches: dict[str, SwitchSpec] = Field(default_factory=dict)
    formats: dict[str, FormatSpec] = Field(default_factory=dict)
    link_types: dict[str, LinkTypeSpec] = Field(default_factory=dict)
    protocols: dict[str, ProtocolSpec] = Field(default_factory=dict)
    nodes: Annotated[dict[str, NodeSpec], Field(min_length=1)]
    links: list[LinkSpec] = Field(default_factory=list)
