"""8-bit floats against their definition, number by number."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from clusim.schedule.dtypes import ELEMENTS
from clusim.shim.elements import FLOAT8, element_type

E4M3, E5M2 = FLOAT8["float8e4m3"], FLOAT8["float8e5m2"]
BITS = {"float8e4m3": (4, 3, 7), "float8e5m2": (5, 2, 15)}
"""Bits of exponent and mantissa, and the bias (OCP FP8, table 1)."""


def by_definition(name: str, code: int) -> Fraction | str:
    """Return the number of a code without its sign, or what it is instead."""
    exponents, mantissas, bias = BITS[name]
    exponent, mantissa = code >> mantissas, code % (1 << mantissas)
    if name == "float8e4m3" and code == 0x7F:
        return "nan"
    if name == "float8e5m2" and exponent == (1 << exponents) - 1:
        return "nan" if mantissa else "inf"
    if exponent == 0:
        return Fraction(mantissa, 1 << mantissas) * Fraction(2) ** (1 - bias)
    return (1 + Fraction(mantissa, 1 << mantissas)) * Fraction(2) ** (exponent - bias)


@pytest.mark.parametrize("name", FLOAT8)
def test_every_code_has_the_number_of_its_definition(name: str) -> None:
    values = FLOAT8[name].widen(np.arange(256, dtype=np.uint8))
    assert values.dtype == np.float32
    for code in range(128):
        exact = by_definition(name, code)
        if exact == "nan":
            assert np.isnan(values[code])
            assert np.isnan(values[code + 128])
        else:
            assert values[code] == (np.inf if exact == "inf" else exact)
            assert values[code + 128] == -values[code]
    assert np.signbit(values[128])


def test_largest_and_smallest_numbers_are_published() -> None:
    """OCP FP8, table 2."""
    codes = np.array([0x7E, 0x08, 0x01], np.uint8)
    assert E4M3.widen(codes).tolist() == [448, 2**-6, 2**-9]
    codes = np.array([0x7B, 0x04, 0x01, 0x7C, 0xFC], np.uint8)
    assert E5M2.widen(codes).tolist() == [57344, 2**-14, 2**-16, np.inf, -np.inf]


@pytest.mark.parametrize("name", FLOAT8)
def test_numbers_are_rounded_to_the_nearest_and_ties_to_even(name: str) -> None:
    kind = FLOAT8[name]
    largest = 0x7E if name == "float8e4m3" else 0x7B
    codes = np.arange(largest + 1, dtype=np.uint8)
    table = kind.widen(codes).astype(np.float64)
    assert kind.narrow(table).tolist() == codes.tolist()
    assert kind.narrow(-table).tolist() == (codes + 128).tolist()
    middles = (table[:-1] + table[1:]) / 2
    assert kind.narrow(middles).tolist() == [low + low % 2 for low in range(largest)]
    for part, up in ((0.499, 0), (0.501, 1)):
        near = table[:-1] + part * np.diff(table)
        assert kind.narrow(near).tolist() == [low + up for low in range(largest)]
        assert kind.narrow(-near).tolist() == [128 + low + up for low in range(largest)]
    assert kind.narrow(table).dtype == np.uint8


@pytest.mark.parametrize("name", FLOAT8)
def test_conversions_saturate_and_keep_what_is_no_number(name: str) -> None:
    kind = FLOAT8[name]
    largest = 0x7E if name == "float8e4m3" else 0x7B
    values = np.array([1e9, -1e9, np.inf, -np.inf, np.nan, -0.0], np.float32)
    expected = [largest, largest + 128, largest, largest + 128, 0x7F, 128]
    assert kind.narrow(values).tolist() == expected


def test_names_lead_to_element_types() -> None:
    assert element_type("float8e4m3") is E4M3
    assert element_type("float32") is ELEMENTS["float32"]
    assert (E5M2.size_bytes, E5M2.is_float, E5M2.mantissa_bits) == (1, True, 2)
