"""Measured against computed times on a grid of shapes: what a physical form leaves, between and beyond its knots.

Ratios are interpolated in their logarithm, linearly in the logarithms of m, n and k. Beyond the grid the nearest
ratio on its edge holds, so that the form decides how times grow there.
"""

from __future__ import annotations

import base64
import zlib
from bisect import bisect_right
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from math import exp, log2

import numpy as np
from numpy.typing import NDArray

from clusim.base.errors import InputError

STEP = 0.02
"""Unit of the stored logarithms of ratios, which are bytes."""


@dataclass(frozen=True)
class Ratios:
    """Ratios on a grid.

    Attributes
    ----------
    knots : tuple of tuple of int
        Values of m, n and k, rising.
    packed : str
        Their logarithms in units of `STEP`, m slowest, along k each against the one before it, a signed byte each;
        compressed by zlib, in base64.
    """

    knots: tuple[tuple[int, ...], ...]
    packed: str

    @cached_property
    def _values(self) -> NDArray[np.int8]:
        shape = tuple(len(axis) for axis in self.knots)
        raw = zlib.decompress(base64.b64decode(self.packed))
        if len(raw) != int(np.prod(shape)):
            raise InputError(f"table of products: {len(raw)} ratios for a grid of {shape}")
        return np.cumsum(np.frombuffer(raw, np.int8).reshape(shape), axis=-1, dtype=np.int8)

    def at(self, m: float, n: float, k: float) -> float:
        """Return measured / computed at a shape."""
        places = [_place(axis, value) for axis, value in zip(self.knots, (m, n, k), strict=True)]
        total = 0.0
        for corner in product((0, 1), repeat=3):
            weight, index = 1.0, []
            for (left, share), side in zip(places, corner, strict=True):
                weight *= share if side else 1.0 - share
                index.append(left + side)
            if weight:
                total += weight * int(self._values[tuple(index)])
        return exp(total * STEP)


def _place(axis: tuple[int, ...], value: float) -> tuple[int, float]:
    """Return the knot left of a value, and how far on it is towards the next, in logarithms."""
    held = min(max(value, axis[0]), axis[-1])
    left = min(bisect_right(axis, held) - 1, len(axis) - 2)
    low, high = log2(axis[left]), log2(axis[left + 1])
    return left, (log2(held) - low) / (high - low)


def pack(logarithms: NDArray[np.float64]) -> str:
    """Return the text that `Ratios` has of logarithms of ratios on a grid."""
    units = np.clip(np.round(logarithms / STEP), -127, 127).astype(np.int8)
    # Differences may wrap around; so do the sums that take them back.
    steps = np.diff(units, axis=-1, prepend=np.int8(0))
    return base64.b64encode(zlib.compress(steps.tobytes(), 9)).decode("ascii")
