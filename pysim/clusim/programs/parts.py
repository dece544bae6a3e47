"""Dense parts of tensors: a sparse tensor has its data in tensors of indices and values."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Any

import torch
from torch._subclasses.fake_tensor import (
    FakeTensor,
    FakeTensorMode,
    in_kernel_invocation_manager,
)
from torch.utils._pytree import tree_leaves, tree_map

from clusim.base.errors import InputError
from clusim.formats.recordings.model import TensorShape


def parts_of(tensor: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Return the dense tensors with the data of a tensor: of a sparse one, indices and values."""
    if tensor.layout is torch.strided:
        return (tensor,)
    if tensor.layout is not torch.sparse_coo:
        raise InputError(
            f"{tensor.layout}: only sparse tensors of coordinates (COO) are simulated"
        )
    if not isinstance(tensor, FakeTensor):
        return tensor._indices(), tensor._values()
    with in_kernel_invocation_manager(tensor.fake_mode):
        return tensor._indices(), tensor._values()


def bytes_of(tensor: torch.Tensor) -> int:
    """Return the size of the data of a tensor [bytes]."""
    return sum(part.numel() * part.element_size() for part in parts_of(tensor))


def shapes_of(
    inputs: Sequence[torch.Tensor],
    outputs: Sequence[torch.Tensor],
    written: Sequence[torch.Tensor] = (),
) -> tuple[tuple[TensorShape, ...], tuple[TensorShape, ...]]:
    """Return the shapes of the inputs and outputs of an operator for its price.

    A sparse tensor has the shapes of its indices and values. A dense tensor that is written together with it has the
    shape of the values, the rows that change.
    """
    sparse = [tensor for tensor in inputs if tensor.layout is not torch.strided]
    rows = (
        {id(tensor): parts_of(sparse[-1])[1:] for tensor in written}
        if sparse
        else {}
    )

    def shapes(tensors: Sequence[torch.Tensor]) -> tuple[TensorShape, ...]:
        parts = (rows.get(id(tensor)) or parts_of(tensor) for tensor in tensors)
        return tuple(map(_shape_of, chain.from_iterable(parts)))

    return shapes(inputs), shapes(outputs)


def _shape_of(tensor: torch.Tensor) -> TensorShape:
    dtype = str(tensor.dtype).removeprefix("torch.")
    return TensorShape(tuple(tensor.shape), dtype, tensor.element_size())


def same_shapes(result: Any, known: Any) -> bool:
    """Return True if the tensors of two results have equal shapes.

    The kernels of CPUs and GPUs differ in results for the backward pass.
    """
    pairs = zip(tree_leaves(result), tree_leaves(known), strict=False)
    return all(
        [part.shape for part in parts_of(mine)]
        == [part.shape for part in parts_of(other)]
        for mine, other in pairs
        if isinstance(mine, torch.Tensor) and isinstance(other, torch.Tensor)
    )


def without_data(leaf: Any) -> Any:
    """Return a tensor of the host without its data, as the fake mode would otherwise see a constant."""
    if not isinstance(leaf, torch.Tensor) or isinstance(leaf, FakeTensor):
        return leaf
    if leaf.layout is not torch.strided:
        return leaf.to("meta")
    return torch.empty_strided(
        leaf.shape, leaf.stride(), dtype=leaf.dtype, device=leaf.device
    )


def on_gpu(known: Any, mode: FakeTensorMode) -> Any:
    """Return tensors of the GPU without data, with the forms of tensors of the host."""
    return tree_map(
        lambda leaf: _move(leaf, mode) if isinstance(leaf, torch.Tensor) else leaf,
        known,
    )


def _move(tensor: torch.Tensor, mode: FakeTensorMode) -> torch.Tensor:
    parts = [without_data(part) for part in parts_of(tensor)]
    with mode:
        moved = [torch.empty_like(part, device="cuda") for part in parts]
        if tensor.layout is torch.strided:
            return moved[0]
        result = torch.sparse_coo_tensor(
            *moved, tensor.shape, check_invariants=False
        )
        return result._coalesced_(tensor.is_coalesced())
