"""Quantities in topology files (text with units <-> integers), and the base class of their specs.

The keys of a file and the attributes of a topology have equal names, except for the unit at the end of an attribute
(`_UNITS`) and some older keys (`_KEYS`). `attributes_of` and `keys_of` convert one to the other.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterator, Mapping
from fractions import Fraction
from functools import cache
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, WithJsonSchema
from pydantic_core import PydanticCustomError

from clusim.base.errors import UnitError
from clusim.base.units import Rate, format_rate, parse_rate, parse_size, parse_time
from clusim.topology.packets import PacketKind


def read_with(parse: Callable[[Any], Any]) -> BeforeValidator:
    """Return a validator that reads a quantity with `parse` and reports its error message."""

    def read(value: Any) -> Any:
        try:
            return parse(value)
        except UnitError as error:
            raise PydanticCustomError(
                "unit", "{message}", {"message": str(error)}
            ) from None

    return BeforeValidator(read)


def _latency(value: Any) -> int:
    time_ps = parse_time(value)
    if time_ps < 1:
        raise UnitError(f"{value!r}: a latency is at least 1ps")
    return time_ps


def _line_time(value: Any) -> int:
    time_ps = parse_time(value)
    if time_ps > 500_000:
        raise UnitError(f"{value!r}: a look at a line lasts at most 500ns")
    return time_ps


def positive_size(value: Any) -> int:
    """Return a size of at least 1 byte."""
    size = parse_size(value)
    if size < 1:
        raise UnitError(f"{value!r}: must be at least 1 byte")
    return size


def small_size(value: Any) -> int:
    """Return a size of at most 1 MiB."""
    size = parse_size(value)
    if size > 1 << 20:
        raise UnitError(f"{value!r}: headers and packets are at most 1 MiB")
    return size


def _bytes_per_s(value: Any) -> float:
    return parse_rate(value).bytes_per_s


_LENGTH = re.compile(r"\s*([0-9]{1,9}(?:\.[0-9]{0,9})?)\s*(cm|m|km)\s*")
_METRES = {"cm": Fraction(1, 100), "m": Fraction(1), "km": Fraction(1000)}


def _length_m(value: Any) -> float:
    """Return a cable length [m]; plain numbers are metres."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        metres = Fraction(value)
    elif isinstance(value, str) and (match := _LENGTH.fullmatch(value)):
        metres = Fraction(match[1]) * _METRES[match[2]]
    else:
        raise UnitError(
            f"{value!r}: not a length; write metres, for example 30 or '30 m'"
        )
    if not 0 <= metres <= 100_000:
        raise UnitError(f"{value!r}: a cable is 0 to 100 km long")
    return float(metres)


def example(text: str) -> WithJsonSchema:
    """Return a JSON schema for a value that is text such as `text`."""
    return WithJsonSchema({"type": "string", "examples": [text]})


def _wrap_default(value: Any) -> Any:
    return value if isinstance(value, dict) or value is None else {"default": value}


def _wrap_base(value: Any) -> Any:
    return {"base": value} if isinstance(value, str) else value


def _wrap_policy(value: Any) -> Any:
    return {"policy": value} if isinstance(value, str) else value


def _or_none(key: str) -> BeforeValidator:
    """Return a validator that reads the word ``none`` as a mapping with `key` 0."""
    return BeforeValidator(lambda value: {key: 0} if value == "none" else value)


def _wrap_list(value: Any) -> Any:
    return value if isinstance(value, list) else [value]


default_of = BeforeValidator(_wrap_default)
base_or_mapping = BeforeValidator(_wrap_base)
policy_or_mapping = BeforeValidator(_wrap_policy)
no_pfc = _or_none("xoff")
no_ecn = _or_none("max")
no_drop = _or_none("queue")
no_schedule = BeforeValidator(lambda value: {} if value == "none" else value)
one_or_more = BeforeValidator(_wrap_list)

Size = Annotated[int, read_with(positive_size), Field(lt=2**53), example("32KiB")]
Amount = Annotated[int, read_with(parse_size), Field(lt=2**53), example("32KiB")]
SmallSize = Annotated[int, read_with(small_size), example("16B")]
Time = Annotated[int, read_with(parse_time), Field(lt=2**53), example("500ns")]
Order = Literal["any"] | Amount
Latency = Annotated[int, read_with(_latency), Field(lt=2**53), example("150ns")]
LineTime = Annotated[int, read_with(_line_time), example("15ns")]
LinkRate = Annotated[Rate, read_with(parse_rate), example("25 GB/s")]
Length = Annotated[float, read_with(_length_m), example("30 m")]
Bandwidth = Annotated[
    float, read_with(_bytes_per_s), Field(gt=0), example("900 GB/s")
]
PositiveSmallSize = Annotated[
    int, read_with(small_size), Field(ge=1), example("128B")
]
Tier = Annotated[str, Field(max_length=64)]
TrafficClass = Annotated[int, Field(ge=0, le=6)]
Weight = Annotated[int, Field(ge=1, le=1000)]
Share = Annotated[float, Field(ge=0, le=1024)]
Count = Annotated[int, Field(ge=1, le=65_536)]
KindOrDefault = Literal["default", PacketKind]
Requester = Literal["sm", "ce", "nic"]


class Spec(BaseModel):
    """Base of all sections of a file: unknown keys are errors, types are not converted.

    The validators are built when `Topology` is first used, all at once, which halves the import time.
    """

    model_config = ConfigDict(
        extra="forbid",
        strict=True,
        allow_inf_nan=False,
        arbitrary_types_allowed=True,
        defer_build=True,
    )


_UNITS = (
    "_ps",
    "_bytes",
    "_Bps",
    "_W",
    "_120",
    *(f"_{2**bits}" for bits in (8, 10, 16)),
)
"""Ends of attributes that are not part of a key; 2^n is the unit of an integer, 1/2^n."""

_KEYS = {
    "mem_Bps": "memory_rate",
    "mem_bytes": "memory",
    "mem_efficiency": "memory_efficiency",
    "mem_quantum_ps": "memory_quantum",
    "deliver_256": "memory_per_delivered",
    "read_256": "memory_per_read",
    "inject_256": "memory_per_injected",
    "slow_1024": "slowdown",
    "pcie_Bps": "pcie_rate",
    "op_Bps": "throughput",
    "plugin_ps": "plugin_latency",
    "min_Bps": "min_rate",
}
"""Keys of attributes that have another name."""

MEMORY_SHARES = ("memory_per_delivered", "memory_per_read", "memory_per_injected")
"""Keys of a chip that replace the memory traffic that follows from primitives and L2."""

_SCALES = {"_256": 256, "_1024": 1024, "_65536": 65_536, "compute_capability": 10}
"""Attribute per value in a file, by the end of the attribute."""

_OMITTED = frozenset(
    {
        "pcie_Bps",
        "architecture",
        "compute_capability",
        "mem_bytes",
        "gemm_fraction",
        "power_W",
        "kernels",
        "l2_bytes",
        "eager_bytes",
        "rendezvous_ps",
        "progress_ps",
        "ack_ps",
        "progress_simple_ps",
        "control_ps",
        "control_flush_ps",
        "transit_ps",
        "speed_Bps",
        "plugin_ps",
    }
)
"""Attributes that are not written if they are 0 or empty."""


@cache
def _pairs(cls: type, prefix: str) -> tuple[tuple[str, str, int], ...]:
    """Return attribute, key and scale of the fields of a dataclass."""

    def pairs() -> Iterator[tuple[str, str, int]]:
        for field in dataclasses.fields(cls):
            unit = next((unit for unit in _UNITS if field.name.endswith(unit)), "")
            key = _KEYS.get(field.name, prefix + field.name.removesuffix(unit))
            yield field.name, key, _SCALES.get(unit) or _SCALES.get(field.name, 0)

    return tuple(pairs())


def attributes_of(cls: type, spec: Spec, prefix: str = "") -> dict[str, Any]:
    """Return the attributes of a dataclass that a spec sets; its keys begin with `prefix`."""
    values = (
        (name, getattr(spec, key, None), scale)
        for name, key, scale in _pairs(cls, prefix)
    )
    return {
        name: round(value * scale) if scale else value
        for name, value, scale in values
        if value is not None
    }


def keys_of(item: Any, spec: type[Spec], prefix: str = "") -> dict[str, Any]:
    """Return the keys of a spec that describe a dataclass object, as plain data."""
    data: dict[str, Any] = {}
    cls: Any = type(item)
    for name, key, scale in _pairs(cls, prefix):
        value = getattr(item, name)
        if (
            key in spec.model_fields
            and value is not None
            and (value or name not in _OMITTED)
        ):
            data[key] = value / scale if scale else _plain(name, value)
    return data


def _plain(name: str, value: Any) -> Any:
    """Return the value of an attribute with its unit."""
    if isinstance(value, Rate):
        return format_rate(value, exact=True)
    if isinstance(value, Mapping):
        return {key: _plain(name, item) for key, item in value.items()}
    if name.endswith("_ps"):
        return f"{value}ps"
    if name.endswith(("_bytes", "byte_counter")):
        return f"{value}B"
    return format_rate(value, exact=True) if name.endswith("_Bps") else value
