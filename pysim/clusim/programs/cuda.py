"""``torch.cuda`` of a simulated rank: devices, streams, events and memory on the rank's virtual clock."""

from __future__ import annotations

import ctypes
import itertools
import types
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from clusim.programs.clock import DEFAULT_STREAM, RankClock
from clusim.programs.issued import Mark
from clusim.programs.parts import parts_of
from clusim.topology.node import Endpoint

_SEGMENT = 512
"""Sizes in the caching allocator are multiples of this [bytes] (``kMinBlockSize`` of c10's CUDACachingAllocator)."""


_WITHOUT_EFFECT = (
    "_lazy_init",
    "init",
    "set_rng_state",
    "set_rng_state_all",
    "manual_seed",
    "manual_seed_all",
    "seed",
    "seed_all",
    "empty_cache",
    "ipc_collect",
    "set_per_process_memory_fraction",
)
"""Functions without effect on virtual time and memory."""

_PROFILING = (
    "cudaProfilerStart",
    "cudaProfilerStop",
    "rangePushA",
    "rangePop",
    "rangeStartA",
    "rangeEnd",
    "markA",
    "deviceRangeStart",
    "deviceRangeEnd",
)
"""Functions of the CUDA runtime and NVTX for profilers; without effect."""


class DeviceMemory:
    """Memory of the GPU in use by live storages.

    Attributes
    ----------
    now_bytes, peak_bytes : int
        Present and largest allocation [bytes].
    limit_bytes : int
        Size of the memory; 0 is unknown.
    """

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.now_bytes = self.peak_bytes = 0
        self._sizes: dict[int, tuple[Any, int]] = {}

    @property
    def free_bytes(self) -> int:
        """Memory that is not allocated [bytes]."""
        return self.limit_bytes - self.now_bytes

    def add(self, tensors: Sequence[torch.Tensor]) -> None:
        """Count the storages of new tensors; raise `torch.OutOfMemoryError` if they do not fit."""
        for tensor in tensors:
            for part in parts_of(tensor):
                self.count_storage(part.untyped_storage())

    def count_storage(self, storage: torch.UntypedStorage) -> None:
        """Count a storage at its present size."""
        key = storage._cdata
        earlier = self._sizes.get(key)
        if earlier is not None and earlier[0]() is not storage:
            self._free(key)
            earlier = None
        size = -(-storage.nbytes() // _SEGMENT) * _SEGMENT
        reference = (
            weakref.ref(storage, lambda _: self._free(key))
            if earlier is None
            else earlier[0]
        )
        self.now_bytes -= earlier[1] if earlier else 0
        self._sizes[key] = reference, 0
        self.hold(size)
        self._sizes[key] = reference, size

    def hold(self, size_bytes: int) -> None:
        """Count memory, of a storage or a library; raise `torch.OutOfMemoryError` if it does not fit."""
        if self.limit_bytes and self.now_bytes + size_bytes > self.limit_bytes:
            raise torch.OutOfMemoryError(
                f"CUDA out of memory. Tried to allocate {size_bytes / 2**20:.2f} MiB. GPU 0 has a total capacity of"
                f" {self.limit_bytes / 2**30:.2f} GiB, of which {self.now_bytes / 2**30:.2f} GiB is allocated"
            )
        self.now_bytes += size_bytes
        self.peak_bytes = max(self.peak_bytes, self.now_bytes)

    def _free(self, key: int) -> None:
        size = self._sizes.pop(key, None)
        if size is not None:
            self.now_bytes -= size[1]


class SimulatedCuda:
    """Functions of ``torch.cuda``.

    Parameters
    ----------
    library : ctypes.CDLL
        Library of ``device.cpp``.
    gpu : Endpoint
        The GPU of the topology.
    count : int
        GPUs of the node.
    """

    def __init__(
        self,
        library: ctypes.CDLL,
        clock: RankClock,
        gpu: Endpoint,
        count: int,
        memory: DeviceMemory,
    ) -> None:
        self.library, self.clock, self.gpu, self.count = library, clock, gpu, count
        self.memory = memory
        self.numbers = itertools.count(DEFAULT_STREAM + 1)
        library.clusim_stream.restype = ctypes.c_long
        library.clusim_set_stream.argtypes = [ctypes.c_int, ctypes.c_long]

    def stream(self) -> int:
        """Return the current stream of this thread."""
        return int(self.library.clusim_stream(self.library.clusim_device()))

    def device(self) -> int:
        """Return the current device."""
        return int(self.library.clusim_device())

    @contextmanager
    def on(self, stream: int) -> Iterator[None]:
        """Set the current stream."""
        device, before = self.device(), self.stream()
        self.library.clusim_set_stream(device, stream)
        try:
            yield
        finally:
            self.library.clusim_set_stream(device, before)


def _event_class(cuda: SimulatedCuda) -> type:
    """Return the class that replaces ``torch.cuda.Event``."""
    clock = cuda.clock

    class Event:
        """CUDA event with the virtual time of its stream."""

        def __init__(
            self, enable_timing: bool = False, *_given: Any, **_more: Any
        ) -> None:
            self.mark = Mark()

        def record(self, stream: Any = None) -> None:
            """Mark the present place of a stream."""
            self.mark = clock.mark(
                cuda.stream() if stream is None else stream.stream_id
            )

        def wait(self, stream: Any = None) -> None:
            """Let a stream wait."""
            clock.wait(
                cuda.stream() if stream is None else stream.stream_id, self.mark
            )

        def synchronize(self) -> None:
            """Let the host wait."""
            clock.synchronise([self.mark])

        def query(self) -> bool:
            """Return True if the host's time is after the mark."""
            return clock.is_past(self.mark)

        def elapsed_time(self, other: Event) -> float:
            """Return the time to another event [ms]."""
            return (clock.end_of(other.mark) - clock.end_of(self.mark)) / 1e9

    return Event


class _NumberedStream:
    """Stream by its number: streams with the same number are equal."""

    stream_id: int

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, _NumberedStream):
            return False
        return other.stream_id == self.stream_id

    def __hash__(self) -> int:
        return hash(self.stream_id)


def _stream_class(cuda: SimulatedCuda, event_class: type) -> type:
    """Return the class that replaces ``torch.cuda.Stream``."""
    clock = cuda.clock

    class Stream(_NumberedStream):
        """CUDA stream of the simulated device."""

        def __init__(
            self,
            device: Any = None,
            priority: int = 0,
            *,
            stream_id: int | None = None,
            **_more: Any,
        ) -> None:
            self.stream_id = next(cuda.numbers) if stream_id is None else stream_id
            self.device = torch.device("cuda", cuda.device())
            self.priority = priority
            self.device_index, self.device_type = cuda.device(), 1
            self.cuda_stream = self.stream_id

        def wait_stream(self, other: Any) -> None:
            """Wait for all present work of another stream."""
            clock.wait(self.stream_id, clock.mark(other.stream_id))

        def wait_event(self, event: Any) -> None:
            """Wait for an event."""
            clock.wait(self.stream_id, event.mark)

        def record_event(self, event: Any = None) -> Any:
            """Return an event at the present place."""
            event = event or event_class()
            event.record(self)
            return event

        def synchronize(self) -> None:
            """Let the host wait."""
            clock.synchronise([clock.mark(self.stream_id)])

        def query(self) -> bool:
            """Return True if all work is complete."""
            return clock.is_past(clock.mark(self.stream_id))

        def is_capturing(self) -> bool:
            """Return True during the capture of a graph."""
            return clock.captured is not None

        def __enter__(self) -> Stream:
            self._context = cuda.on(self.stream_id)
            self._context.__enter__()
            return self

        def __exit__(self, *error: Any) -> None:
            self._context.__exit__(*error)

    return Stream


def _properties(gpu: Endpoint) -> Any:
    major, minor = divmod(gpu.compute_capability, 10)
    return types.SimpleNamespace(
        name=f"NVIDIA {gpu.chip.upper()} (simulated)",
        major=major,
        minor=minor,
        total_memory=gpu.mem_bytes,
        multi_processor_count=gpu.sms,
        warp_size=32,
        gcnArchName="",
    )


def _nothing(*_given: Any, **_more: Any) -> None:
    return None


def _device_functions(cuda: SimulatedCuda) -> dict[str, Any]:
    """Return the functions about devices."""
    properties = _properties(cuda.gpu)

    def set_device(device: Any) -> None:
        index = device if isinstance(device, int) else torch.device(device).index
        if index is not None and index >= cuda.count:
            raise RuntimeError("CUDA error: invalid device ordinal")
        if index is not None and index >= 0:
            cuda.library.clusim_set_device(index)

    return {
        "is_available": lambda: True,
        "is_initialized": lambda: True,
        "device_count": lambda: cuda.count,
        "current_device": cuda.device,
        "set_device": set_device,
        "_exchange_device": lambda index: _exchange(cuda, index),
        "_maybe_exchange_device": lambda index: _exchange(cuda, index),
        "get_device_name": lambda device=None: properties.name,
        "get_device_capability": lambda device=None: (
            properties.major,
            properties.minor,
        ),
        "get_device_properties": lambda device=None: properties,
        "is_bf16_supported": lambda including_emulation=True: properties.major >= 8,
        "can_device_access_peer": lambda device, peer: True,
    }


def _stream_functions(cuda: SimulatedCuda) -> dict[str, Any]:
    """Return the classes and functions of streams, events and graphs."""
    clock, event_class = cuda.clock, _event_class(cuda)
    stream_class = _stream_class(cuda, event_class)

    @contextmanager
    def on_stream(stream: Any) -> Iterator[None]:
        if stream is None:
            yield
        else:
            with cuda.on(stream.stream_id):
                yield

    def set_stream(stream: Any) -> None:
        cuda.library.clusim_set_stream(cuda.device(), stream.stream_id)

    return {
        "synchronize": lambda device=None: clock.synchronise(),
        "Stream": stream_class,
        "Event": event_class,
        "current_stream": lambda device=None: stream_class(stream_id=cuda.stream()),
        "default_stream": lambda device=None: stream_class(stream_id=DEFAULT_STREAM),
        **dict.fromkeys(("stream", "StreamContext"), on_stream),
        "set_stream": set_stream,
        "is_current_stream_capturing": lambda: clock.captured is not None,
    }


def _memory_functions(memory: DeviceMemory) -> dict[str, Any]:
    """Return the functions about memory."""

    def reset_peak(_device: Any = None) -> None:
        memory.peak_bytes = memory.now_bytes

    return {
        **dict.fromkeys(
            ("memory_allocated", "memory_reserved"),
            lambda device=None: memory.now_bytes,
        ),
        **dict.fromkeys(
            ("max_memory_allocated", "max_memory_reserved"),
            lambda device=None: memory.peak_bytes,
        ),
        **dict.fromkeys(
            ("reset_peak_memory_stats", "reset_max_memory_allocated"), reset_peak
        ),
        "mem_get_info": lambda device=None: (memory.free_bytes, memory.limit_bytes),
        "memory_stats": lambda device=None: _stats(memory),
        "memory_summary": lambda *given, **more: (
            f"{memory.peak_bytes} bytes at the peak"
        ),
    }


def _random_functions(cuda: SimulatedCuda) -> dict[str, Any]:
    """Return the functions about the state of random numbers."""

    def state(_device: Any = None) -> torch.Tensor:
        return torch.zeros(16, dtype=torch.uint8, device="cpu")

    return {
        "get_rng_state": state,
        "get_rng_state_all": lambda: [state() for _ in range(cuda.count)],
        "initial_seed": lambda: 0,
    }


def install(cuda: SimulatedCuda, release: tuple[int, ...]) -> None:
    """Replace the functions of ``torch.cuda`` and ``torch.accelerator``."""
    module, accelerator = torch.cuda, torch.accelerator
    profiling = types.SimpleNamespace(**dict.fromkeys(_PROFILING, lambda *given: 0))
    replaced = {
        **_device_functions(cuda),
        **_stream_functions(cuda),
        **_memory_functions(cuda.memory),
        **_random_functions(cuda),
        **dict.fromkeys(_WITHOUT_EFFECT, _nothing),
        "cudart": lambda: profiling,
        "check_error": _nothing,
    }
    for name, value in replaced.items():
        setattr(module, name, value)
    module.nccl.version = lambda: release
    module.nvtx._nvtx = profiling
    module.profiler.check_error, module.profiler.cudart = (
        _nothing,
        replaced["cudart"],
    )
    for name in (
        "is_available",
        "device_count",
        "synchronize",
        "current_stream",
        "memory_allocated",
        "max_memory_allocated",
    ):
        setattr(accelerator, name, replaced[name])
    accelerator.current_accelerator = lambda check_available=False: torch.device(
        "cuda"
    )
    accelerator.current_device_index = cuda.device
    accelerator.set_device_index = replaced["set_device"]
    torch.backends.cuda.is_built = lambda: True
    # It delays the reuse of memory, which is not simulated; FSDP calls the method outside the dispatch of operators.
    torch.Tensor.record_stream = _nothing
    _watch_storages(cuda.memory)


def _exchange(cuda: SimulatedCuda, index: int) -> int:
    before = cuda.device()
    if index >= 0:
        cuda.library.clusim_set_device(index)
    return before


def _stats(memory: DeviceMemory) -> dict[str, int]:
    sizes = {"current": memory.now_bytes, "peak": memory.peak_bytes}
    kinds = ("allocated", "reserved", "active")
    stats = {
        f"{kind}_bytes.all.{name}": size
        for kind in kinds
        for name, size in sizes.items()
    }
    return stats | {"num_alloc_retries": 0, "num_ooms": 0}


def _watch_storages(memory: DeviceMemory) -> None:
    """Count storages that change size, such as the storages of gathered parameters."""
    resize = torch.UntypedStorage.resize_

    def resize_(storage: torch.UntypedStorage, size: int) -> torch.UntypedStorage:
        result = resize(storage, size)
        if storage._cdata in memory._sizes:
            memory.count_storage(storage)
        return result

    torch.UntypedStorage.resize_ = resize_
