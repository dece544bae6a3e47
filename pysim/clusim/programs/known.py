"""Values of small device tensors that follow from values the program set.

A tensor on the simulated GPU is without data. Small tensors with known inputs are also computed, so that control
data, such as the sizes that `DistributedDataParallel` compares among ranks, can be read. Values are kept per storage,
so that views and writes in place see it. New tensors name the host: a program may have set another default.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from clusim.programs.parts import parts_of

LARGEST = 1 << 16
"""Largest storage with values [bytes]."""

_SWEEP = 4096
"""Number of storages at which expired storages are removed."""


class KnownValues:
    """Values of storages. A weak reference keeps the address of a storage from being used again.

    Attributes
    ----------
    limit_bytes : int
        Largest storage with values.
    complete : bool
        True if all tensors have values.
    written : list of Tensor or None
        Tensors that a captured graph writes; None outside captures.
    """

    def __init__(self, *, complete: bool = False) -> None:
        self.complete = complete
        self.written: list[torch.Tensor] | None = None
        self.limit_bytes = sys.maxsize if complete else LARGEST
        self._values: dict[int, tuple[StorageWeakRef, torch.Tensor]] = {}
        self._limit = _SWEEP

    def view(self, tensor: torch.Tensor) -> torch.Tensor | None:
        """Return the values of a tensor as a view into its storage's values; None if unknown."""
        if tensor.layout is not torch.strided:
            return self._sparse(tensor)
        storage = tensor.untyped_storage()
        value = self._values.get(storage._cdata)
        if value is None or value[0].expired():
            return None
        if value[1].numel() < storage.nbytes():  # resized
            value[1].resize_(storage.nbytes())
        data = torch.empty(0, dtype=tensor.dtype, device="cpu")
        return data.set_(
            value[1].untyped_storage(),
            tensor.storage_offset(),
            tensor.size(),
            tensor.stride(),
        )

    def _sparse(self, tensor: torch.Tensor) -> torch.Tensor | None:
        """Return a copy of the values of a sparse tensor; None if unknown."""
        values = [self.view(part) for part in parts_of(tensor)]
        if any(value is None for value in values):
            return None
        result = torch.sparse_coo_tensor(
            *values, tensor.shape, device="cpu", check_invariants=False
        )
        return result._coalesced_(tensor.is_coalesced())

    def forget(self, tensors: Sequence[torch.Tensor]) -> None:
        """Drop the values of the storages of tensors."""
        if self.written is not None:
            self.written += tensors
        for tensor in tensors:
            for part in parts_of(tensor):
                self._values.pop(part.untyped_storage()._cdata, None)

    def begin(self, tensor: torch.Tensor) -> None:
        """Prepare the values of a new tensor, or of one that is about to be overwritten, if it fills its storage."""
        size = tensor.untyped_storage().nbytes()
        if (
            size <= self.limit_bytes
            and self.view(tensor) is None
            and tensor.nbytes == size
        ):
            self.put(tensor, torch.zeros((), dtype=tensor.dtype, device="cpu"))

    def put(self, tensor: torch.Tensor, value: Any) -> None:
        """Set the values of a tensor that fills its storage."""
        if tensor.layout is not torch.strided:
            for part, source in zip(parts_of(tensor), parts_of(value), strict=True):
                self.put(part, source)
            return
        storage = tensor.untyped_storage()
        size = storage.nbytes()
        if not isinstance(value, torch.Tensor) or size > self.limit_bytes:
            return
        if len(self._values) >= self._limit:
            self._sweep()
        self._values[storage._cdata] = (
            StorageWeakRef(storage),
            torch.zeros(max(1, size), dtype=torch.uint8, device="cpu"),
        )
        view = self.view(tensor)
        assert view is not None
        view.copy_(value.detach())

    def _sweep(self) -> None:
        self._values = {k: v for k, v in self._values.items() if not v[0].expired()}
        self._limit = max(_SWEEP, 2 * len(self._values))
