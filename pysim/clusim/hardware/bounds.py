"""Values of figures with their units: bounds as factors of the value, multiples, words."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, cast

from clusim.base.errors import InputError, UnitError
from clusim.base.units import (
    format_rate,
    format_size,
    format_time,
    parse_rate,
    parse_size,
    parse_time,
)

Value = str | int | float | bool | Mapping[str, str | int | float]
"""A value as in a topology file: quantities are strings with units."""


def is_number(value: Value) -> bool:
    """Return True if all parts of a value are numbers, with or without a unit."""
    parts = list(value.values()) if isinstance(value, Mapping) else [value]
    numbers = [
        not isinstance(part, bool) and re.match(r"[0-9.]", str(part))
        for part in parts
    ]
    return bool(numbers) and all(numbers)


def relative_bounds(value: Value, bounds: object) -> tuple[float, float] | None:
    """Return bounds of a file as factors of the value."""
    if bounds is None:
        return None
    if not is_number(value):
        raise InputError(f"bounds belong to numbers, and this figure is {value!r}")
    share = re.fullmatch(r"[0-9.]+%", str(bounds))
    ends = [f"-{bounds}", bounds] if share else bounds
    if not isinstance(ends, list) or len(ends) != 2:
        raise InputError(
            f"bounds is {bounds!r}; write [low, high], or 10% of the value"
        )
    low, high = (_factor(value, end) for end in ends)
    if not 0 <= low <= 1 <= high:
        raise InputError(
            f"bounds is {bounds!r}; the value {value!r} is not between them"
        )
    return low, high


def _factor(value: Value, end: object) -> float:
    """Return a bound as a factor of the value."""
    share = re.fullmatch(r"([-+]?[0-9.]+)%", str(end))
    if share is not None:
        return 1 + float(share[1]) / 100
    if isinstance(value, Mapping):
        raise InputError(
            f"bound {end!r} of several numbers; write a percentage, such as -10%"
        )
    try:
        (number, write), (nominal, unit) = _quantity(end), _quantity(value)
    except (UnitError, TypeError, ValueError):
        raise InputError(
            f"bound {end!r}: not a number; write it as the value, {value!r}"
        ) from None
    if write is not unit or not nominal:
        raise InputError(
            f"bound {end!r} of the value {value!r}; use its unit, or a percentage"
        )
    return number / nominal


def _quantity(value: Any) -> tuple[float, Callable[[float], str] | None]:
    """Return a number, or a quantity in ps, bytes or bytes/s, and the function that writes it; None: a number."""
    if not isinstance(value, str):
        return float(value), None
    for parse, write in ((parse_time, _write_time), (parse_size, _write_size)):
        try:
            return float(parse(value)), write
        except UnitError:
            continue
    return float(parse_rate(value).bytes_per_s), _write_rate


def _write_time(time_ps: float) -> str:
    return f"{round(time_ps)}ps"


def _write_size(size_bytes: float) -> str:
    return f"{round(size_bytes)}B"


def _write_rate(rate_Bps: float) -> str:
    return f"{round(rate_Bps)} B/s"


def scale_value(value: Value, factor: float) -> Value:
    """Return a value times a factor; counts of 20 and more are rounded."""
    if isinstance(value, Mapping):
        return {
            key: cast("Any", scale_value(part, factor))
            for key, part in value.items()
        }
    number, write = _quantity(value)
    if write is not None:
        return write(number * factor)
    return (
        round(number * factor)
        if isinstance(value, int) and number >= 20
        else number * factor
    )


def is_continuous(value: Value) -> bool:
    """Return True if all parts of a value are times, rates or fractions above 0; not sizes, counts and words."""
    if isinstance(value, Mapping):
        return bool(value) and all(map(is_continuous, value.values()))
    try:
        number, write = _quantity(value)
    except (UnitError, TypeError, ValueError):
        return False
    return number > 0 and (
        write in (_write_time, _write_rate) or isinstance(value, float)
    )


def bounds_words(value: Value, bounds: tuple[float, float]) -> str:
    """Return bounds in words: ``100 ns to 150 ns``; of several numbers relative."""
    if isinstance(value, Mapping):
        return " to ".join(f"{factor - 1:+.0%}" for factor in bounds)
    return _range_words(value, bounds)


@cache
def _range_words(value: str | float, bounds: tuple[float, float]) -> str:
    number, write = _quantity(value)
    words: Any = {
        _write_time: lambda part: format_time(round(part)),
        _write_size: lambda part: format_size(round(part)),
        _write_rate: format_rate,
        None: lambda part: f"{part:.3g}",
    }
    return " to ".join(words[write](number * factor) for factor in bounds)
