"""CUDA graphs of a simulated rank: ``torch.cuda.CUDAGraph`` and the functions that ``torch.cuda.graph`` calls.

**Hardware** A capture records kernels, collectives and waits among streams without running them. A replay enqueues all
with one launch of the host. **Model** A capture costs the host's time of its operators, a replay of one operator.
Values written by a graph are unknown. **Not modelled** Shorter gaps between the kernels of a graph.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

from clusim.base.errors import InputError
from clusim.programs.clock import RankClock
from clusim.programs.known import KnownValues


def graph_class(
    clock: RankClock, known: KnownValues, stream: Callable[[], int]
) -> type:
    """Return the class that replaces ``torch.cuda.CUDAGraph``.

    Parameters
    ----------
    stream : callable
        Identifier of the current stream.
    """
    pools = itertools.count(1)

    class CUDAGraph:
        """Captured operations."""

        def __init__(self, keep_graph: bool = False) -> None:
            if known.complete:
                raise InputError(
                    "torch.cuda.CUDAGraph: a replay computes no values; run with --data shapes"
                )
            self.captured: Any = None
            self.written: list[torch.Tensor] = []
            self._pool = (0, next(pools))

        def capture_begin(
            self, pool: Any = None, *_given: Any, **_more: Any
        ) -> None:
            """Record operations from here on."""
            self._pool = pool or self._pool
            self.captured = clock.capture(stream())
            known.written = []

        def capture_end(self) -> None:
            """End the recording."""
            self.written = known.written or []
            clock.captured = known.written = None

        def replay(self) -> None:
            """Enqueue the recorded operations on the current stream."""
            if self.captured is None:
                raise RuntimeError(
                    "Called CUDAGraph::replay without a preceding successful capture."
                )
            clock.replay(stream(), self.captured)
            known.forget(self.written)

        def reset(self) -> None:
            """Delete the recording."""
            self.captured = None

        def pool(self) -> Any:
            """Return the identifier of the memory pool."""
            return self._pool

        def instantiate(self) -> None:
            """Prepare a replay, in zero time."""

    return CUDAGraph


def install(graph: type) -> None:
    """Replace the class of graphs, and functions that ``torch.cuda.graph`` calls."""
    handles = itertools.count(1)
    for place in (torch.cuda, torch.cuda.graphs):
        place.CUDAGraph = graph
        place.graph_pool_handle = lambda: (1, next(handles))
    torch._C._host_emptyCache = lambda: None
    # Static tensors are compared by their addresses, and storages by FSDP1.
    FakeTensor.data_ptr = _address
    of_host = torch.UntypedStorage.data_ptr

    def storage_address(storage: torch.UntypedStorage) -> int:
        if storage.device.type != "meta":
            return int(of_host(storage))
        return int(storage._cdata) if storage.nbytes() else 0

    torch.UntypedStorage.data_ptr = storage_address


def _address(tensor: torch.Tensor) -> int:
    """Return an address that views of one storage share."""
    storage: int = tensor.untyped_storage()._cdata
    return storage + int(tensor.storage_offset()) * int(tensor.element_size())
