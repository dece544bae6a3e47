"""Memory of a simulated GPU: storages and workspaces of libraries against its size."""

from __future__ import annotations

import gc

import pytest

from support.torch_programs import Later, needs_torch

needs_torch()

torch, cuda = Later("torch"), Later("clusim.programs.cuda")
KIB = 1 << 10


def test_a_workspace_must_fit_beside_the_storages() -> None:
    memory = cuda.DeviceMemory(16 * KIB)
    tensor = torch.empty(8 * KIB, dtype=torch.uint8)
    memory.add([tensor])
    memory.hold(8 * KIB)
    assert (memory.now_bytes, memory.peak_bytes) == (16 * KIB, 16 * KIB)
    with pytest.raises(torch.OutOfMemoryError):
        memory.hold(1)
    assert memory.now_bytes == 16 * KIB


def test_a_storage_that_does_not_fit_is_not_counted_when_it_is_freed() -> None:
    memory = cuda.DeviceMemory(16 * KIB)
    tensor = torch.empty(24 * KIB, dtype=torch.uint8)
    with pytest.raises(torch.OutOfMemoryError):
        memory.add([tensor])
    assert memory.now_bytes == 0
    del tensor
    gc.collect()
    assert (memory.now_bytes, memory.peak_bytes) == (0, 0)
