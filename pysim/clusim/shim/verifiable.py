"""Kernels of nccl-tests that create and check data.

A program's kernels are GPU code, which does not run here; these are known by name. Inputs are such that every order of
a reduction gives the same bits: for a sum, two ranks have a small number and the others 0, for a product 2 and 1.
Inputs and expected results differ from the values of nccl-tests on GPUs.

**Real programs** nccl-tests (verifiable.h): ``prepareInput2<T, Op>`` writes the contribution of a rank,
``prepareExpected2`` the result, ``verifyPrepared<T>`` adds the number of elements that differ by more than a
tolerance, compared as integers.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from clusim.base.arrays import Array
from clusim.base.errors import InputError
from clusim.schedule.dtypes import Element, divide
from clusim.shim.elements import element_type
from clusim.shim.memory import SharedMemory, Span, as_elements

PART = 1 << 20
"""Elements that are processed at a time."""

_TYPES = {
    **{
        "a": "int8",
        "h": "uint8",
        "i": "int32",
        "j": "uint32",
        "t": "uint16",
        "l": "int64",
        "m": "uint64",
    },
    **{
        "f": "float32",
        "d": "float64",
        "6__half": "float16",
        "13__nv_bfloat16": "bfloat16",
    },
    **{"13__nv_fp8_e4m3": "float8e4m3", "13__nv_fp8_e5m2": "float8e5m2"},
}
"""By their mangled names."""

_NAME = re.compile(
    r"(prepareInput2|prepareExpected2|verifyPrepared)I(6__half|13__nv_\w+?(?:16|e4m3|e5m2)|[a-z])"
    r"(?:N\w*?\d+Reduce(Nil|Sum|Prod|Min|Max|Avg|PreMulSum)E)?"
)


@dataclass(frozen=True, slots=True)
class Known:
    """A kernel of nccl-tests: its name, element type and reduction."""

    name: str
    dtype: str
    redop: str


def known_kernel(mangled: str) -> Known:
    """Return the kernel of a mangled name; raise `InputError` for others."""
    match = _NAME.search(mangled)
    if match is None or (match[3] is None and match[1] != "verifyPrepared"):
        raise InputError(f"kernel {mangled}: not simulated")
    return Known(match[1], _TYPES[match[2]], (match[3] or "").lower())


def _hash_elements(seed: int, first: int, count: int) -> NDArray[np.uint64]:
    """Return random bits of elements (splitmix64 of their index and the seed)."""
    with np.errstate(over="ignore"):
        bits = np.arange(first, first + count, dtype=np.uint64)
        bits += np.uint64(seed & (1 << 64) - 1) * np.uint64(0x9E3779B97F4A7C15)
        for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
            bits = (bits ^ (bits >> np.uint64(shift))) * np.uint64(factor)
        return bits ^ (bits >> np.uint64(31))


class Data:
    """Data of one reduction over `ranks` ranks."""

    def __init__(self, kernel: Known, ranks: int, bits: NDArray[np.uint64]) -> None:
        self.redop, self.ranks, self.bits = kernel.redop, ranks, bits
        self.kind: Element = element_type(kernel.dtype)
        self._first = (bits >> np.uint64(40)) % np.uint64(ranks)
        step = np.uint64(1) + (bits >> np.uint64(20)) % np.uint64(max(1, ranks - 1))
        self._second = (self._first + step) % np.uint64(ranks)

    def _small(self, shift: int) -> Array:
        """Return numbers 1 to 3, exact in every type."""
        return (
            1
            + (self.bits >> np.uint64(shift) & np.uint64(0xFFFF)).astype(np.float64)
            % 3
        )

    def _to_storage(self, values: Array) -> Array:
        if self.kind.storage.kind in "iu" and not self.kind.is_float:
            return values.astype(self.kind.storage)
        return self.kind.narrow(values)

    def input(self, rank: int) -> Array:
        """Return the contribution of a rank."""
        if self.redop == "nil" or self.redop in ("min", "max"):
            return self._rank_numbers(rank)
        neutral = 1.0 if self.redop == "prod" else 0.0
        values = np.full(len(self.bits), neutral)
        for holder, shift in ((self._first, 0), (self._second, 16)):
            mine = holder == np.uint64(rank)
            values[mine] = 2.0 if self.redop == "prod" else self._small(shift)[mine]
        return self._to_storage(values)

    def _rank_numbers(self, rank: int) -> Array:
        """Return numbers that differ between ranks, 0 to 15."""
        mixed = (self.bits >> np.uint64(8)) + np.uint64(rank) * (
            np.uint64(1) + self.bits % np.uint64(7)
        )
        return self._to_storage((mixed % np.uint64(16)).astype(np.float64))

    def expected_result(self) -> Array:
        """Return the result."""
        if self.redop == "nil":
            return self._rank_numbers(0)
        if self.redop in ("min", "max"):
            function = np.minimum if self.redop == "min" else np.maximum
            wide = [
                self.kind.to_float64(self._rank_numbers(rank))
                for rank in range(self.ranks)
            ]
            return self._to_storage(function.reduce(wide))
        if self.redop == "prod":
            return self._to_storage(np.full(len(self.bits), 4.0))
        first, second = self._small(0), self._small(16)
        if self.redop == "premulsum":
            first, second = (
                values * (1.0 + (holder % np.uint64(2)).astype(np.float64))
                for values, holder in ((first, self._first), (second, self._second))
            )
        total = self._to_storage(first + second)
        return divide(self.kind, total, self.ranks) if self.redop == "avg" else total


def prepare(
    memory: SharedMemory, process: int, mangled: str, values: Sequence[int]
) -> int:
    """Defer a kernel with its arguments, and return the bytes that it reads and writes."""
    kernel = known_kernel(mangled)
    if kernel.name == "verifyPrepared":
        return _verify(memory, process, np.dtype(kernel.dtype).itemsize, values)
    width = element_type(kernel.dtype).size_bytes
    address, count, *arguments = values
    ranks, rank, seed, first = (
        (arguments[0], 0, *arguments[1:])
        if len(arguments) == 3
        else tuple(arguments)
    )
    span = memory.span(process, address, count * width)

    def run() -> None:
        into = memory.view(span)
        for start in range(0, count, PART):
            number = min(PART, count - start)
            data = Data(kernel, ranks, _hash_elements(seed, first + start, number))
            elements = (
                data.input(rank)
                if kernel.name == "prepareInput2"
                else data.expected_result()
            )
            into[start * width : (start + number) * width] = elements.view(np.uint8)

    memory.defer((), (span,), run)
    return count * width


def _verify(
    memory: SharedMemory, process: int, width: int, values: Sequence[int]
) -> int:
    result, expected, count, tolerance, wrong = values
    spans = [
        memory.span(process, address, count * width)
        for address in (result, expected)
    ]
    total = memory.span(process, wrong, 8)
    memory.defer(
        (*spans, total),
        (total,),
        _difference(memory, spans, total, (width, tolerance)),
    )
    return 2 * count * width


def _difference(
    memory: SharedMemory, spans: Sequence[Span], total: Span, how: tuple[int, int]
) -> Callable[[], None]:
    width, tolerance = how

    def run() -> None:
        got, expected = (
            as_elements(memory.view(span), f"<u{width}") for span in spans
        )
        bad = 0
        for start in range(0, len(got), PART):
            a, b = got[start : start + PART], expected[start : start + PART]
            bad += int((np.where(a < b, b - a, a - b) > tolerance).sum())
        as_elements(memory.view(total), np.int64)[0] += bad

    return run
