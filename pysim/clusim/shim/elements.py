"""Element types of NCCL, with 8-bit floats, which the programs of collectives do not compute with.

**Hardware** 8-bit floats (OCP FP8): E4M3 has 4 bits of exponent, no infinity and 448 as its largest number; E5M2 has 5
bits and is the upper byte of a half. Conversions round to nearest even; CUDA's saturate. **Model** Sums in
float32, rounded after every addition. **Not modelled** Accumulation in half. **Parameters** none.
"""

from __future__ import annotations

from functools import cached_property

import numpy as np

from clusim.base.arrays import Array
from clusim.base.records import dataclass
from clusim.schedule.dtypes import Element, element


@dataclass(frozen=True)
class Float8(Element):
    """An 8-bit float with `mantissa_bits` explicit bits."""

    @cached_property
    def _values(self) -> Array:
        """Return the values of all codes."""
        codes = np.arange(256)
        fraction, bias = 1 << self.mantissa_bits, (1 << (6 - self.mantissa_bits)) - 1
        exponent, mantissa = codes % 128 // fraction, codes % fraction
        normal = np.ldexp(1.0 + mantissa / fraction, exponent - bias)
        values = np.where(
            exponent > 0, normal, np.ldexp(mantissa / fraction, 1 - bias)
        )
        values[np.arange(256) % 128 > self._largest_code] = np.nan
        if self.mantissa_bits == 2:
            values[[0x7C, 0xFC]] = np.inf
        return np.where(codes < 128, values, -values).astype(np.float32)

    @property
    def _largest_code(self) -> int:
        """Return the code of the largest number."""
        return 0x7E if self.mantissa_bits == 3 else 0x7B

    def widen(self, values: Array) -> Array:
        """Return values as float32."""
        return self._values[values]

    def narrow(self, values: Array) -> Array:
        """Return the codes of the nearest numbers; larger ones become the largest."""
        table = self._values[: self._largest_code + 1].astype(np.float64)
        middles = (table[:-1] + table[1:]) / 2
        size = np.minimum(np.abs(values.astype(np.float64)), table[-1])
        codes = np.searchsorted(middles, size, side="left")
        tie = (codes < len(middles)) & (codes % 2 == 1)
        codes = codes + (
            tie & (size == middles[np.minimum(codes, len(middles) - 1)])
        )
        signed = codes + np.where(np.signbit(values), 128, 0)
        return np.where(np.isnan(values), 0x7F, signed).astype(np.uint8)


FLOAT8 = {
    name: Float8(name, 1, np.dtype(np.uint8), True, bits)
    for name, bits in (("float8e4m3", 3), ("float8e5m2", 2))
}
"""8-bit floats, by name."""


def element_type(name: str) -> Element:
    """Return the element type of a name."""
    return FLOAT8.get(name) or element(name)
