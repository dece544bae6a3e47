"""Values that a call of ``torch.distributed`` moves among ranks."""

from __future__ import annotations

import ctypes
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce

import torch

from clusim.base.terms.operations import OPERATIONS

Known = tuple[list[torch.Tensor], tuple[int, ...]]
Part = Known | None
"""Flat tensors that a rank sends, and the sizes of their parts for each rank if unequal; None if unknown."""


@dataclass(frozen=True, slots=True)
class MovedCall:
    """Operation, reduction, position of the rank and of the root in the group, and number of tensors sent."""

    operation: str
    redop: str
    own: int
    root: int
    num_sent: int
    splits: tuple[int, ...] = ()


def encode_tensors(values: Sequence[torch.Tensor]) -> list[tuple[str, bytes]]:
    """Return element types and data of tensors."""
    result = []
    for value in values:
        flat = value.detach().contiguous()
        data = (
            ctypes.string_at(flat.data_ptr(), flat.nbytes) if flat.numel() else b""
        )
        result.append((str(flat.dtype).removeprefix("torch."), data))
    return result


def decode_tensors(sent: Sequence[tuple[str, bytes]]) -> list[torch.Tensor]:
    """Return flat tensors from element types and data."""
    types = [(getattr(torch, name), data) for name, data in sent]
    return [
        torch.frombuffer(bytearray(data), dtype=dtype)
        if data
        else torch.empty(0, dtype=dtype, device="cpu")
        for dtype, data in types
    ]


def results_of(
    call: MovedCall, parts: Sequence[Part], num_written: int
) -> list[torch.Tensor | None]:
    """Return the values of the tensors that a call writes; None for unknown ones.

    Parameters
    ----------
    parts : sequence of Part
        Tensors that each rank of the group sent.
    """
    unknown: list[torch.Tensor | None] = [None] * num_written
    operation, kind = call.operation, OPERATIONS[call.operation]
    if operation in ("send", "recv") or (
        kind.rooted and not kind.reduces and kind.blocks != "out"
    ):
        root = parts[call.root] if 0 <= call.root < len(parts) else None
        if root is None or not root[0]:
            return unknown
        if operation == "scatter":
            return [root[0][call.own]] * num_written
        return list(root[0][:num_written]) + unknown[len(root[0]) :]
    present = [part for part in parts if part is not None]
    if len(present) < len(parts) or not num_written:
        return unknown
    if kind.reduces:
        return [_reduce(call, present, at, num_written) for at in range(num_written)]
    if operation == "alltoall":
        pieces = [_pieces(part, len(parts))[call.own] for part in present]
        return (
            list(pieces)
            if num_written > 1 or len(parts) == 1
            else [torch.cat(pieces)]
        )
    return _gather(present, call.num_sent, num_written)


def _gather(
    parts: Sequence[Known], num_sent: int, num_written: int
) -> list[torch.Tensor | None]:
    """Return gathered values: each tensor of all ranks, separate or joined."""
    columns = [[part[0][at] for part in parts] for at in range(max(1, num_sent))]
    if num_written == len(columns) * len(parts):
        return [value for column in columns for value in column]
    return [torch.cat(column) for column in columns]


def _pieces(part: Known, size: int) -> Sequence[torch.Tensor]:
    """Return the parts of a rank's data for each rank."""
    tensors, splits = part
    if len(tensors) == size:
        return tensors
    flat = tensors[0]
    if not splits:
        return flat.chunk(size) if flat.numel() % size == 0 else [flat] * size
    # Splits count rows.
    row = flat.numel() // max(1, sum(splits))
    return list(torch.split(flat, [row * count for count in splits]))


def _reduce(
    call: MovedCall, parts: Sequence[Known], at: int, written: int
) -> torch.Tensor | None:
    """Return a reduced tensor: of complete tensors, or of this rank's part."""
    size = len(parts)
    lists = call.num_sent == written * size and size > 1

    def share(part: Known) -> torch.Tensor:
        if call.operation != "reduce_scatter":
            return part[0][at]
        return (
            part[0][at * size + call.own]
            if lists
            else part[0][at].chunk(size)[call.own]
        )

    # Ranks with equal values have one part in common.
    counts = Counter(map(id, parts))
    distinct = {id(part): share(part) for part in parts}
    weighted = [(value, counts[key]) for key, value in distinct.items()]
    if call.redop in ("sum", "avg"):
        total = reduce(torch.add, (value * count for value, count in weighted))
        return total if call.redop == "sum" else (total / size).to(total.dtype)
    if call.redop == "prod":
        return reduce(torch.mul, (value**count for value, count in weighted))
    return reduce(
        torch.maximum if call.redop == "max" else torch.minimum, distinct.values()
    )
