"""Arguments of the operators of ``torch.distributed``: operation, tensors, sizes, reduction."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from clusim.base.terms.operations import OPERATIONS, find_operation

_FORMS = re.compile(r"_(?:coalesced|into_tensor|base|single|tensor|out)(?=_|$)")
"""Endings of the names of operators that move the same data in another form."""


@cache
def operation_of(name: str) -> str:
    """Return the collective of an operator of ``c10d`` or ``_c10d_functional``; empty for others."""
    word = _FORMS.sub("", name).strip("_")
    operation = find_operation(word)
    return (
        "barrier"
        if word == "barrier"
        else ""
        if operation is None
        else operation.name
    )


_REDUCTIONS = ("sum", "avg", "prod", "min", "max", "sum", "sum", "sum", "sum")
"""Reductions in the order of ``c10d::ReduceOp::RedOpType``; logical reductions move as many bytes as a sum."""


def needs_all_ranks(name: str) -> bool:
    """Return True if the results of an operation depend on the values of every rank."""
    operation = OPERATIONS[name]
    return operation.reduces or operation.blocks in ("out", "both")


def source_tensors(given: Any) -> list[torch.Tensor]:
    """Return the tensors that a call sends."""
    keys = ("input_tensors", "input_tensor", "inputs", "input", "tensors")
    leaves = (leaf for key in keys for leaf in tree_leaves(given.get(key)))
    return [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]


def split_sizes(
    given: Any, written: Sequence[torch.Tensor]
) -> tuple[tuple[int, ...], ...]:
    """Return the bytes that an all-to-all sends to and receives from each rank; empty if all are equal."""
    sizes = []
    for tensors, key in (
        (source_tensors(given), "input_split_sizes"),
        (written, "output_split_sizes"),
    ):
        rows = given.get(key)
        if not rows:
            sizes.append(
                tuple(t.nbytes for t in tensors) if len(tensors) > 1 else ()
            )
            continue
        row = tensors[0].nbytes // max(1, tensors[0].shape[0])
        sizes.append(tuple(int(count) * row for count in rows))
    uneven = all(sizes) and len({*sizes[0], *sizes[1]}) > 1
    return tuple(sizes) if uneven else ()


def reduction_of(given: Any) -> str:
    """Return the reduction of a call in this project's words."""
    redop = given.get("reduce_op")
    if redop is None:
        return "sum"
    if isinstance(redop, str):
        return redop.lower().replace("product", "prod")
    return _REDUCTIONS[int(redop.op())] if hasattr(redop, "op") else "sum"


def tensor_bytes(tensors: Sequence[torch.Tensor]) -> int:
    """Return the size of tensors [bytes]."""
    return sum(t.numel() * t.element_size() for t in tensors)
