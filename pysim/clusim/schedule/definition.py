"""Definition of every collective, and test data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from clusim.base.arrays import Array
from clusim.base.errors import InputError
from clusim.schedule.dtypes import UFUNCS, Element, combine, divide, element
from clusim.schedule.ir import CollectiveCall


@dataclass(frozen=True, slots=True)
class Region:
    """Required content of a part of one rank's output.

    Attributes
    ----------
    position : int
        Position of the rank in the group.
    offset : int
        First byte in the output buffer.
    values : ndarray
        Elements that must be there (stored type).
    wide, scale : ndarray or None
        For a reduction of floats: the result in float64, and the sum of the operands' magnitudes (of the
        result's, where they are not added), to which rounding errors are in proportion.
    """

    position: int
    offset: int
    values: Array
    wide: Array | None = None
    scale: Array | None = None


def _block(call: CollectiveCall, position: int) -> tuple[int, int]:
    """Return (first byte, end) of a block of the buffer."""
    return min(position * call.block_bytes, call.bytes), min(
        (position + 1) * call.block_bytes, call.bytes
    )


def _root(call: CollectiveCall) -> int:
    return call.ranks.index(call.root)


def _reduce_part(
    call: CollectiveCall,
    kind: Element,
    inputs: Sequence[Array],
    position: int,
    part: tuple[int, int],
) -> Region:
    """Return the region with the reduction of a part of all inputs, from one byte to another."""
    low, high = part
    cut = slice(low // kind.size_bytes, high // kind.size_bytes)
    parts = [values[cut] for values in inputs]
    if not kind.is_float:
        total = parts[0]
        for other in parts[1:]:
            total = combine(kind, call.redop, total, other)
        average = divide(kind, total, len(parts)) if call.redop == "avg" else total
        return Region(position, low, average)
    additive = call.redop in ("sum", "avg")
    wide = kind.to_float64(parts[0])
    scale = np.abs(wide)
    for other in parts[1:]:
        operand = kind.to_float64(other)
        wide = UFUNCS[call.redop](wide, operand)
        scale = scale + np.abs(operand) if additive else np.abs(wide)
    values = _store(kind, wide)
    if call.redop == "avg":
        wide, scale, values = (
            wide / len(parts),
            scale / len(parts),
            divide(kind, values, len(parts)),
        )
    return Region(position, low, values, wide, scale)


def _store(kind: Element, wide: Array) -> Array:
    with np.errstate(over="ignore"):
        return kind.narrow(
            wide.astype(np.float32) if kind.name == "bfloat16" else wide
        )


def expected_outputs(call: CollectiveCall, inputs: Sequence[Array]) -> list[Region]:
    """Return the outputs that `call` must leave, from the inputs of all positions (stored elements)."""
    maker = _DEFINITIONS.get(call.operation)
    if maker is None:
        raise InputError(
            f"operation {call.operation!r}: unknown; use one of {', '.join(_DEFINITIONS)}"
        )
    return maker(call, element(call.dtype), inputs)


def _allreduce(
    call: CollectiveCall, kind: Element, inputs: Sequence[Array]
) -> list[Region]:
    region = _reduce_part(call, kind, inputs, 0, (0, call.bytes))
    return [
        replace(region, position=position) for position in range(len(call.ranks))
    ]


def _reduce(
    call: CollectiveCall, kind: Element, inputs: Sequence[Array]
) -> list[Region]:
    return [_reduce_part(call, kind, inputs, _root(call), (0, call.bytes))]


def _reduce_scatter(
    call: CollectiveCall, kind: Element, inputs: Sequence[Array]
) -> list[Region]:
    positions = range(len(call.ranks))
    return [
        _reduce_part(call, kind, inputs, position, _block(call, position))
        for position in positions
    ]


def _copy_block(
    call: CollectiveCall, kind: Element, source: Array, position: int, block: int
) -> Region:
    low, high = _block(call, block)
    return Region(
        position, low, source[low // kind.size_bytes : high // kind.size_bytes]
    )


def _all_gather(
    call: CollectiveCall, kind: Element, inputs: Sequence[Array]
) -> list[Region]:
    size = len(call.ranks)
    return [
        _copy_block(call, kind, inputs[b], p, b)
        for p in range(size)
        for b in range(size)
    ]


def _gather(
    call: CollectiveCall, kind: Element, inputs: Sequence[Array]
) -> list[Region]:
    return [
        _copy_block(call, kind, inputs[b], _root(call), b)
        for b in range(len(call.ranks))
    ]


def _scatter(
    call: CollectiveCall, kind: Element, inputs: Sequence[Array]
) -> list[Region]:
    return [
        _copy_block(call, kind, inputs[_root(call)], p, p)
        for p in range(len(call.ranks))
    ]


def _broadcast(
    call: CollectiveCall, kind: Element, inputs: Sequence[Array]
) -> list[Region]:
    return [
        Region(position, 0, inputs[_root(call)])
        for position in range(len(call.ranks))
    ]


def _alltoall(
    call: CollectiveCall, kind: Element, inputs: Sequence[Array]
) -> list[Region]:
    """Block `d` of source `s` lands at block `s` of destination `d`."""
    regions = []
    for source in range(len(call.ranks)):
        for target in range(len(call.ranks)):
            region = _copy_block(call, kind, inputs[source], target, target)
            regions.append(Region(target, source * call.block_bytes, region.values))
    return regions


def _sendrecv(
    call: CollectiveCall, kind: Element, inputs: Sequence[Array]
) -> list[Region]:
    size = len(call.ranks)
    return [
        Region(position, 0, inputs[(position - 1) % size])
        for position in range(size)
    ]


def _send(
    call: CollectiveCall, kind: Element, inputs: Sequence[Array]
) -> list[Region]:
    return [Region(1, 0, inputs[0])]


def _barrier(
    call: CollectiveCall, kind: Element, inputs: Sequence[Array]
) -> list[Region]:
    return []


_DEFINITIONS = {
    "allreduce": _allreduce,
    "reduce": _reduce,
    "reduce_scatter": _reduce_scatter,
    "all_gather": _all_gather,
    "gather": _gather,
    "scatter": _scatter,
    "broadcast": _broadcast,
    "alltoall": _alltoall,
    "sendrecv": _sendrecv,
    "send": _send,
    "barrier": _barrier,
    "messages": _barrier,
}


def buffer_bytes(call: CollectiveCall) -> int:
    """Return the size of a rank's buffers; ragged blocks of an all-to-all may reach further [bytes]."""
    blocks = (
        call.block_bytes * len(call.ranks) if call.operation == "alltoall" else 0
    )
    return max(call.bytes, blocks)


def exact_inputs(call: CollectiveCall, seed: int = 0) -> list[Array]:
    """Return inputs whose reduction is exact in any order: small integers, or powers of two for products."""
    kind = element(call.dtype)
    count = call.bytes // kind.size_bytes
    rng = np.random.default_rng([seed, len(call.ranks)])
    inputs = []
    for position in range(len(call.ranks)):
        choices = [-1, 0, 1, 2]
        if call.redop == "prod":
            choices = [-1, 1, 2] if position < 8 else [-1, 1]
        if kind.name.startswith("u"):
            choices = [abs(choice) for choice in choices]
        values = rng.choice(np.array(choices, np.int64), count)
        inputs.append(
            kind.narrow(values.astype(np.float32) if kind.is_float else values)
        )
    return inputs


def random_inputs(call: CollectiveCall, seed: int = 0) -> list[Array]:
    """Return random inputs: floats of mixed sign and size, integers over their whole range.

    Floats of a product are near 1, so that no partial product leaves the range in which rounding is relative.
    """
    kind = element(call.dtype)
    count = call.bytes // kind.size_bytes
    rng = np.random.default_rng([seed, len(call.ranks)])
    if kind.is_float and call.redop == "prod":
        max_exponent = min(1.0, 8 / len(call.ranks))
        sizes = (
            np.exp2(rng.uniform(-max_exponent, max_exponent, count))
            for _ in call.ranks
        )
        return [kind.narrow(size * rng.choice((-1.0, 1.0), count)) for size in sizes]
    if kind.is_float:
        return [kind.narrow(rng.standard_normal(count)) for _ in call.ranks]
    return [
        rng.integers(0, 256, call.bytes, np.uint8).view(kind.storage)
        for _ in call.ranks
    ]
