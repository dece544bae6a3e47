"""Faults of a run: wires that break or slow down, ranks that slow down."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clusim.errors import InputError
from clusim.fabric.arrays import FabricArrays
from clusim.image import empty

__all__ = ["Fault", "lower_faults"]

Array = NDArray[Any]


@dataclass(frozen=True, slots=True)
class Fault:
    """Something that breaks or slows down at `time_ps`.

    Attributes
    ----------
    wire : str or int or None
        Name or id of a wire whose rate becomes `factor` times the nominal one (0 = down), or
    rank : int or None
        the rank whose CTAs and kernels take `factor` times as long.
    """

    time_ps: int
    factor: Fraction | float
    wire: str | int | None = None
    rank: int | None = None


def lower_faults(arrays: FabricArrays, faults: Iterable[Fault]) -> Array:
    """Return the fault rows, in order of time."""
    rows = []
    for fault in sorted(faults, key=lambda item: item.time_ps):
        if fault.factor < 0 or fault.time_ps < 0 or (fault.wire is None) == (fault.rank is None):
            raise InputError(f"{fault}: give a wire or a rank, a time >= 0 and a factor >= 0")
        if fault.rank is not None:
            arrays.node_of(fault.rank)
            slow = max(1, round(1024 * Fraction(fault.factor)))
            rows.append((fault.time_ps, slow, 1, 1, int(arrays.rank_endpoint[fault.rank])))
            continue
        wire = _wire(arrays, fault.wire)
        row = arrays.wires[wire]
        rate = Fraction(fault.factor) * Fraction(int(row["rate_num"]), int(row["rate_den"]))
        rows.append((fault.time_ps, rate.numerator, rate.denominator, 0, wire))
    return np.array(rows, empty("faults").dtype)


def _wire(arrays: FabricArrays, wire: str | int | None) -> int:
    names = arrays.wire_names
    if isinstance(wire, int) and 0 <= wire < len(names):
        return wire
    if wire not in names:
        raise InputError(
            f"wire {wire!r}: not on {arrays.fabric.name}; wires are named as {names[0]!r}"
        )
    return names.index(str(wire))
