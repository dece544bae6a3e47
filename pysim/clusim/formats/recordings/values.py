"""Values of JSON objects that may be of any type: numbers, times, objects and lists.

Each function returns a value of one type: a JSON value of another type, or out of range, is None or empty.
"""

from __future__ import annotations

from decimal import Decimal
from math import isfinite
from typing import Any


def exact_float(text: str) -> float | Decimal:
    """Return a JSON number, exact beyond double precision, as in times since 1970."""
    return float(text) if len(text) < 16 else Decimal(text)


def number(value: Any) -> float | None:
    """Return a finite number; None for other values."""
    if isinstance(value, bool) or not isinstance(value, (int, float, Decimal)):
        return None
    try:
        result = float(value)
    except OverflowError:
        return None
    return result if isfinite(result) else None


def integer(value: Any, most: int = 1 << 62) -> int | None:
    """Return an integer from 0 to `most`, also of a string of digits; None for other values."""
    if type(value) is int:  # excludes bool
        return value if 0 <= value <= most else None
    if isinstance(value, str) and len(value) < 20 and value.isdecimal() and value.isascii():
        value = int(value)
    result = number(value)
    if result is None or result < 0 or result > most or result != int(result):
        return None
    return int(value)


def time_ps(value: Any, unit_ps: int) -> int | None:
    """Return a time in `unit_ps` as integer picoseconds; None if invalid or too large."""
    result = number(value)
    if result is None or not 0 <= result < (1 << 80) / unit_ps:
        return None
    return int(value * unit_ps) if isinstance(value, (int, Decimal)) else round(result * unit_ps)


def table_of(value: Any) -> dict[str, Any]:
    """Return a JSON object; empty for other values."""
    return value if isinstance(value, dict) else {}


def list_of(value: Any) -> list[Any]:
    """Return a JSON list; empty for other values."""
    return value if isinstance(value, list) else []


def tables_of(value: Any) -> list[dict[str, Any]]:
    """Return the objects in a JSON list."""
    return [item for item in list_of(value) if isinstance(item, dict)]


def integers(value: Any, most: int = 1 << 62) -> tuple[int, ...] | None:
    """Return a JSON list of integers as by `integer`; None for other values."""
    numbers = [integer(item, most) for item in list_of(value)]
    known = tuple(item for item in numbers if item is not None)
    return known if isinstance(value, list) and len(known) == len(numbers) else None
