"""Quantities in topology files (text with units -> integers), and the base class of their specs."""

from __future__ import annotations

import re
from collections.abc import Callable
from fractions import Fraction
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, WithJsonSchema
from pydantic_core import PydanticCustomError

from clusim.base.errors import UnitError
from clusim.base.units import Rate, parse_rate, parse_size, parse_time
from clusim.topology.model import PacketKind


def read_with(parse: Callable[[Any], Any]) -> BeforeValidator:
    """Return a validator that reads a quantity with `parse` and reports its error message."""

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
        raise UnitError(f"{value!r}: not a length; write metres, for example 30 or '30 m'")
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


def _or_none(key: str) -> BeforeValidator:
    """Return a validator that reads the word ``none`` as a mapping with `key` 0."""
    return BeforeValidator(lambda value: {key: 0} if value == "none" else value)


def _wrap_list(value: Any) -> Any:
    return value if isinstance(value, list) else [value]


default_of = BeforeValidator(_wrap_default)
base_or_mapping = BeforeValidator(_wrap_base)
no_pfc = _or_none("xoff")
no_ecn = _or_none("max")
one_or_more = BeforeValidator(_wrap_list)

Size = Annotated[int, read_with(positive_size), Field(lt=2**53), example("32KiB")]
Amount = Annotated[int, read_with(parse_size), Field(lt=2**53), example("32KiB")]
SmallSize = Annotated[int, read_with(small_size), example("16B")]
Time = Annotated[int, read_with(parse_time), Field(lt=2**53), example("500ns")]
Latency = Annotated[int, read_with(_latency), Field(lt=2**53), example("150ns")]
LineTime = Annotated[int, read_with(_line_time), example("15ns")]
LinkRate = Annotated[Rate, read_with(parse_rate), example("25 GB/s")]
Length = Annotated[float, read_with(_length_m), example("30 m")]
Bandwidth = Annotated[float, read_with(_bytes_per_s), Field(gt=0), example("900 GB/s")]
PositiveSmallSize = Annotated[int, read_with(small_size), Field(ge=1), example("128B")]
Tier = Annotated[str, Field(max_length=64)]
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
