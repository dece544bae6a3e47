"""Element types: bf16 rounding, wrap-around, averages."""

from __future__ import annotations

import numpy as np
import pytest

from clusim.base.errors import InputError
from clusim.schedule.dtypes import ELEMENTS, combine, combine_all, divide, element


def test_bf16_rounds_to_nearest_even() -> None:
    kind = element("bf16")
    values = np.array([1.0, 1.00390625, 1.01171875, 3.4e38, -2.5], np.float32)
    assert kind.widen(kind.narrow(values)).tolist() == [1.0, 1.0, 1.015625, float("inf"), -2.5]


def test_bf16_keeps_not_a_number() -> None:
    kind = element("bfloat16")
    bits = np.array([0x7F800001, 0xFFFFFFFF], np.uint32).view(np.float32)
    assert np.isnan(kind.widen(kind.narrow(bits))).all()


def test_every_bf16_survives_a_round_trip() -> None:
    kind = element("bf16")
    bits = np.arange(2**16, dtype=np.uint16)
    values = kind.widen(bits)
    number = ~np.isnan(values)
    assert (kind.narrow(values)[number] == bits[number]).all()


def test_integers_wrap_around() -> None:
    kind = element("i8")
    total = combine(kind, "sum", np.array([100], np.int8), np.array([100], np.int8))
    assert total.tolist() == [-56]


def test_half_sums_in_the_switch_are_rounded_once() -> None:
    kind = element("f16")
    parts = [np.array([value], np.float16) for value in (2048, 1, 1)]
    assert combine_all(kind, "sum", parts).tolist() == [2050.0]
    stepwise = combine(kind, "sum", combine(kind, "sum", parts[0], parts[1]), parts[2])
    assert stepwise.tolist() == [2048.0]


def test_averages_of_integers_round_toward_zero() -> None:
    assert divide(element("i32"), np.array([-7, 7], np.int32), 2).tolist() == [-3, 3]
    assert divide(element("u64"), np.array([2**64 - 1], np.uint64), 2).tolist() == [2**63 - 1]
    assert divide(element("f32"), np.array([7], np.float32), 2).tolist() == [3.5]


def test_names_and_aliases() -> None:
    assert all(element(name).name == name for name in ELEMENTS)
    assert [element(word).name for word in ("half", "ncclFloat", "torch.bfloat16", "u8")] == [
        "float16",
        "float32",
        "bfloat16",
        "uint8",
    ]
    with pytest.raises(InputError, match="dtype 'f8': unknown; "):
        element("f8")
