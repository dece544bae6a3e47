"""Order of the tensors of a call in memory: vector or single loads."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch._prims_common import is_non_overlapping_and_dense_or_false

from clusim.workload.traffic import STRIDED, TRANSPOSED

_LARGE = 1 << 62

_ORDERED = ("mm", "attention", "norm", "convolution", "pool", "softmax")
"""Words of operators with kernels for any order."""


def layout(
    name: str, tensors: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor]
) -> tuple[str, ...]:
    """Return the flag of a call with views without vector loads.

    Loads are vectors if all tensors of the result's shape have its strides and no gaps.
    """
    if not outputs or any(word in name for word in _ORDERED):
        return ()
    result = outputs[0]
    if name == "cat":
        return (STRIDED,) if any(not t.is_contiguous() for t in tensors) else ()
    shape = [size for size in result.shape if size > 1]
    if len(shape) < 2:
        return ()
    strides = _strides(result)
    flags: set[str] = set()
    for tensor in (*tensors, result):
        if tensor.shape != result.shape:
            continue
        tensor_strides = _strides(tensor)
        if tensor_strides != strides or not is_non_overlapping_and_dense_or_false(
            tensor
        ):
            inner = min(
                range(len(tensor_strides)), key=lambda dim: strides[dim] or _LARGE
            )
            flags.add(
                STRIDED if tensor_strides[inner] <= strides[inner] else TRANSPOSED
            )
    return (TRANSPOSED,) if TRANSPOSED in flags else tuple(flags)


def _strides(tensor: torch.Tensor) -> list[int]:
    """Return the strides of dimensions with more than one element."""
    return [
        s for s, size in zip(tensor.stride(), tensor.shape, strict=True) if size > 1
    ]
