"""Integer arithmetic of the contract: rounding, mixing (section 12)."""

from __future__ import annotations

_MASK = 2**64 - 1


def ceil_div(a: int, b: int) -> int:
    """Divide, rounding up."""
    return -(-a // b)


def round_up(value: int, unit: int) -> int:
    """Round `value` up to a multiple of `unit`."""
    return ceil_div(value, unit) * unit


def mix(a: int, b: int) -> int:
    """Mix two 64-bit numbers into one (section 12)."""
    x = (a + 0x9E3779B97F4A7C15 + b * 0xBF58476D1CE4E5B9) & _MASK
    x ^= x >> 30
    x = (x * 0xBF58476D1CE4E5B9) & _MASK
    x ^= x >> 27
    x = (x * 0x94D049BB133111EB) & _MASK
    return x ^ (x >> 31)


def hash32(seed: int, wire: int, grant: int) -> int:
    """Return the 32-bit number that decides whether a grant is replayed (sections 4, 12)."""
    return mix(mix(seed, wire), grant) >> 32
