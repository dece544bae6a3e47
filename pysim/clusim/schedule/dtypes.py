"""Element types and reduction operators of collectives, on NumPy arrays.

**Hardware**: GPUs reduce f64, f32, f16, bf16 and integers; the reduction unit of a switch keeps
16-bit floats in f32 until the result leaves it (``.acc::f32``, PTX ISA, multimem). **Model**: bf16
is stored in uint16 and rounded to nearest even after every operation; an average is a sum divided
at the end. **Not modelled**: f8 types. **Parameters**: none.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from clusim.base.arrays import Array
from clusim.base.errors import InputError, suggest
from clusim.base.records import dataclass
from clusim.base.terms.dtypes import DTYPES, find_dtype


@dataclass(frozen=True, slots=True)
class Element:
    """One element type.

    Attributes
    ----------
    name : str
        Full name, as in ``float32``.
    size_bytes : int
        Size of one element [bytes].
    storage : numpy.dtype
        How arrays of it are stored; bf16 is stored in uint16.
    is_float : bool
        Whether it is a floating-point type.
    mantissa_bits : int
        Explicit mantissa bits (0 for integers).
    """

    name: str
    size_bytes: int
    storage: np.dtype[Any]
    is_float: bool
    mantissa_bits: int

    def widen(self, values: Array) -> Array:
        """Return stored `values` in a type NumPy computes in exactly."""
        if self.name == "bfloat16":
            bits = values.astype(np.uint32) << np.uint32(16)
            return bits.view(np.float32)
        return values.astype(np.float32) if self.name == "float16" else values

    def narrow(self, values: Array) -> Array:
        """Return `values` rounded to nearest even and stored as this type."""
        if self.name != "bfloat16":
            with np.errstate(over="ignore"):
                return values.astype(self.storage)
        bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
        rounding = np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))
        rounded = ((bits + rounding) >> np.uint32(16)).astype(np.uint16)
        quiet_nan = ((bits >> np.uint32(16)) | np.uint32(0x40)).astype(np.uint16)
        return np.where(np.isnan(values), quiet_nan, rounded)

    def to_float64(self, values: Array) -> Array:
        """Return stored `values` as float64."""
        return self.widen(values).astype(np.float64)


ELEMENTS: dict[str, Element] = {
    item.name: Element(
        item.name,
        item.size_bytes,
        np.dtype(item.storage),
        item.mantissa_bits > 0,
        item.mantissa_bits,
    )
    for item in DTYPES.values()
    if item.storage
}
"""Element types that programs compute with, by full name."""

UFUNCS: dict[str, Callable[..., Any]] = {
    "sum": np.add,
    "avg": np.add,
    "prod": np.multiply,
    "max": np.maximum,
    "min": np.minimum,
}
"""Function of two operands, by redop; an average is a sum that is divided at the end."""


def element(name: str) -> Element:
    """Return the element type of a name in any spelling."""
    data_type = find_dtype(name)
    result = ELEMENTS.get(data_type.name) if data_type is not None else None
    if result is None:
        raise InputError(f"dtype {name!r}: unknown{suggest(name, ELEMENTS)}")
    return result


def combine(kind: Element, redop: str, first: Array, right: Array) -> Array:
    """Return ``left op right`` for stored arrays, rounded once; integers wrap around."""
    with np.errstate(over="ignore", invalid="ignore"):
        return kind.narrow(UFUNCS[redop](kind.widen(first), kind.widen(right)))


def combine_all(kind: Element, redop: str, parts: Sequence[Array]) -> Array:
    """Return the reduction of `parts` in their order, rounded once at the end (f16, bf16 accumulate in f32)."""
    total = kind.widen(parts[0])
    with np.errstate(over="ignore", invalid="ignore"):
        for part in parts[1:]:
            total = UFUNCS[redop](total, kind.widen(part))
    return kind.narrow(total)


def divide(kind: Element, values: Array, divisor: int) -> Array:
    """Return stored `values` divided by `divisor`; integers round toward zero."""
    if kind.is_float:
        wide = kind.widen(values)
        return kind.narrow(wide / wide.dtype.type(divisor))
    if kind.name.startswith("u"):
        return kind.narrow(values // kind.storage.type(divisor))
    signed = values.astype(np.int64)
    return kind.narrow(np.sign(signed) * (np.abs(signed) // divisor))
