"""Validated words and numbers of foreign files, printed on one line; errors with location."""

from __future__ import annotations

import re
from typing import Any

from clusim.base.errors import TopologyError, one_line


def fail(where: str, line: int, message: str) -> TopologyError:
    """Return an error at a line of a file; line 0 is the file in general."""
    place = f"{where}:{line}" if line else where
    return TopologyError(f"{place}: {message}")


def printable(text: object, most: int = 60) -> str:
    """Return foreign text as one short line for a message."""
    shown = one_line(str(text))
    return shown if len(shown) <= most else f"{shown[: most - 3]}..."


_DIGITS = re.compile(r"([0-9]+)")


def natural(text: str) -> tuple[tuple[int, str], ...]:
    """Return a key that sorts ``mlx5_2`` before ``mlx5_10``."""
    parts = _DIGITS.split(text)
    return tuple((int(part[:18]), "") if i % 2 else (-1, part) for i, part in enumerate(parts))


def whole(text: str | None) -> int | None:
    """Return the integer in `text` (decimal, or hexadecimal with ``0x``), or None."""
    text = (text or "").strip()
    if re.fullmatch(r"-?[0-9]{1,9}", text):
        return int(text)
    if re.fullmatch(r"0[xX][0-9a-fA-F]{1,16}", text):
        return int(text, 16)
    return None


def number(value: Any) -> float | None:
    """Return a finite number from a number or its text, or None."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    if isinstance(value, str) and len(value) > 40:
        return None
    try:
        result = float(value)
    except (ValueError, OverflowError):
        return None
    return result if abs(result) < 1e18 else None
