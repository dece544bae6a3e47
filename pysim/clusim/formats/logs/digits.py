"""Vectorised parsing of numbers and names in a buffer of text, and a cache of parsed texts.

`buffer` contains the bytes of some lines as uint8, followed by `PADDING` more; positions are indices
into it. The cache serves texts that ranks write repeatedly.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, wraps
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

T = TypeVar("T")

MOST_TEXTS = 1 << 12
"""Maximum number of cached texts of one kind."""

LONGEST = 256
"""Maximum length of a cached text [characters]."""


def remembered(parse: Callable[[str], T]) -> Callable[[str], T]:
    """Cache a function of a text for recent short texts; results must not be modified.

    Ranks write mostly equal lines, and programs restart: three of four messages are repeats.
    """
    known = lru_cache(MOST_TEXTS)(parse)

    @wraps(parse)
    def look(text: str) -> T:
        return known(text) if len(text) <= LONGEST else parse(text)

    return look


PADDING = 256
"""Bytes after the text of a buffer, so that fixed-width reads stay inside it."""

Positions = NDArray[np.int64]

_HEX = np.full(256, 255, np.uint8)
for _digit in b"0123456789abcdefABCDEF":
    _HEX[_digit] = int(chr(_digit), 16)
_DECIMAL = np.where(_HEX < 10, _HEX, 255).astype(np.uint8)
_DECIMAL[ord("a") : ord("f") + 1] = _DECIMAL[ord("A") : ord("F") + 1] = 255

_MIX = np.uint64(0x9E3779B97F4A7C15)


def words(buffer: NDArray[np.uint8]) -> NDArray[np.uint64]:
    """Return the view with the 8 bytes from position i on as element i."""
    return np.ndarray((len(buffer) - 7,), np.dtype("<u8"), buffer.data, 0, (1,))


def word(text: bytes) -> tuple[np.uint64, np.uint64]:
    """Return up to 8 bytes of `text` as a number, and the mask of the valid bytes."""
    assert len(text) <= 8
    mask = (1 << 8 * len(text)) - 1
    return np.uint64(int.from_bytes(text, "little")), np.uint64(mask)


def positions(buffer: NDArray[np.uint8], text: bytes) -> Positions:
    """Return the positions of `text` (at most 8 bytes)."""
    at = np.flatnonzero(buffer[: len(buffer) - PADDING] == text[0])
    value, mask = word(text)
    result: Positions = at[(words(buffer)[at] & mask) == value]
    return result


def _number(
    buffer: NDArray[np.uint8], start: Positions, end: Positions, table: NDArray[np.uint8], base: int
) -> tuple[NDArray[np.uint64], NDArray[np.bool_]]:
    length = end - start
    longest = 19 if base == 10 else 16
    good = (length > 0) & (length <= longest)
    value = np.zeros(len(start), np.uint64)
    factor = np.uint64(base)
    for j in range(min(int(length.max(initial=0)), longest)):
        digit = table[buffer[start + j]]
        live = length > j
        good &= (digit != 255) | ~live
        value = np.where(live, value * factor + digit, value)
    return value, good


def decimals(
    buffer: NDArray[np.uint8], start: Positions, end: Positions
) -> tuple[NDArray[np.uint64], NDArray[np.bool_]]:
    """Return the decimal numbers written in [start, end), and a mask of the valid numbers."""
    return _number(buffer, start, end, _DECIMAL, 10)


def hexadecimals(
    buffer: NDArray[np.uint8], start: Positions, end: Positions
) -> tuple[NDArray[np.uint64], NDArray[np.bool_]]:
    """Return the hexadecimal numbers in [start, end) without ``0x``, and a validity mask."""
    return _number(buffer, start, end, _HEX, 16)


def hashes(
    buffer: NDArray[np.uint8], start: Positions, end: Positions, width: int
) -> NDArray[np.uint64]:
    """Return a 64-bit hash of `width` bytes (multiple of 8) of each text [start, end)."""
    view = words(buffer)
    length = np.minimum(end - start, width)
    value = length.astype(np.uint64) * _MIX
    for j in range(0, min(width, -(-int(length.max(initial=0)) // 8) * 8), 8):
        left = np.clip(length - j, 0, 8).astype(np.uint64)
        # A shift by 64 bits is undefined: eight full bytes need two shifts.
        mask = ~((~np.uint64(0) << (left * np.uint64(4))) << (left * np.uint64(4)))
        value = (value ^ (view[np.where(left > 0, start + j, 0)] & mask)) * _MIX
        value ^= value >> np.uint64(29)
    return np.asarray(value, np.uint64)
