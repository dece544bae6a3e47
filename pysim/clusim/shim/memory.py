"""Memory of the simulated GPUs, shared with the programs, and the work on it.

Work is deferred until somebody can read its result, because most results are never read: a benchmark repeats a
collective on the same buffers. Work is dropped if its result is completely overwritten unread.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clusim.base.errors import InputError

PINNED = -1
"""Device number of pinned memory, which the host can read at any time."""

Span = tuple[int, int]
"""First byte and end in `SharedMemory`'s numbering of all shared bytes."""

_ARENA_BITS = 44
"""Each arena has 2^44 numbers."""


@dataclass(frozen=True, slots=True)
class Arena:
    """Memory of a device of one process, or its pinned memory."""

    process: int
    device: int
    base: int
    data: NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class Work:
    """Deferred work on memory."""

    reads: Sequence[Span]
    writes: Sequence[Span]
    run: Callable[[], None]


@dataclass
class SharedMemory:
    """Shared memory of all processes, and the deferred work in order."""

    arenas: list[Arena] = field(default_factory=list)
    work: list[Work] = field(default_factory=list)

    def add(
        self, process: int, place: tuple[int, int], descriptor: int, device: int
    ) -> None:
        """Map memory of a process, which starts at an address and has a size [bytes]."""
        base, size = place
        opened = os.open(f"/proc/{process}/fd/{descriptor}", os.O_RDWR)
        try:
            mapped = mmap.mmap(opened, size)
        finally:
            os.close(opened)
        self.arenas.append(
            Arena(process, device, base, np.frombuffer(mapped, np.uint8))
        )

    def span(self, process: int, address: int, size: int) -> Span:
        """Return the numbers of bytes of a process.

        Raises `InputError` if they were not allocated through CUDA or NCCL.
        """
        for number, arena in enumerate(self.arenas):
            offset = address - arena.base
            if (
                arena.process == process
                and offset >= 0
                and offset + size <= len(arena.data)
            ):
                start = (number << _ARENA_BITS) + offset
                return start, start + size
        raise InputError(
            f"address {address:#x}: {size} bytes are not in memory of cudaMalloc, cudaHostAlloc or ncclMemAlloc"
        )

    def view(self, span: Span) -> NDArray[np.uint8]:
        """Return the bytes of a span."""
        number, offset = divmod(span[0], 1 << _ARENA_BITS)
        return self.arenas[number].data[offset : offset + span[1] - span[0]]

    def device(self, span: Span) -> int:
        """Return the device that has a span."""
        return self.arenas[span[0] >> _ARENA_BITS].device

    def defer(
        self, reads: Sequence[Span], writes: Sequence[Span], run: Callable[[], None]
    ) -> None:
        """Append work; it is done at once if the host can see its operands or its result."""
        self.work.append(Work(reads, writes, run))
        if any(self.device(span) == PINNED for span in (*reads, *writes)):
            self.flush()

    def copy(self, pairs: Sequence[tuple[Span, Span]]) -> None:
        """Defer copies that happen at once: a span may be the source of one and the target of another."""
        moved = [(source, target) for source, target in pairs if source != target]

        def run() -> None:
            contents = [self.view(source).copy() for source, _ in moved]
            for (_, target), values in zip(moved, contents, strict=True):
                self.view(target)[:] = values

        if moved:
            self.defer(
                [source for source, _ in moved], [target for _, target in moved], run
            )

    def flush(self) -> None:
        """Do all deferred work, except for results that are overwritten unread."""
        needed, self.work = without_dead(self.work), []
        for item in needed:
            item.run()

    def forget(self, span: Span) -> None:
        """Drop the content of freed memory."""
        self.work.append(Work((), (span,), lambda: None))
        self.work = without_dead(self.work)


def without_dead(work: Sequence[Work]) -> list[Work]:
    """Return the work without results that are completely overwritten unread."""
    overwritten: list[Span] = []
    alive = []
    for item in reversed(work):
        if item.writes and all(
            _is_covered(span, overwritten) for span in item.writes
        ):
            continue
        alive.append(item)
        overwritten = _merge_spans([*overwritten, *item.writes])
        for span in item.reads:
            overwritten = _cut(overwritten, span)
    return alive[::-1]


def _is_covered(span: Span, spans: Sequence[Span]) -> bool:
    return span[0] == span[1] or any(
        low <= span[0] and span[1] <= high for low, high in spans
    )


def _merge_spans(spans: list[Span]) -> list[Span]:
    """Return disjoint spans of the same bytes, in order."""
    result: list[Span] = []
    for low, high in sorted(spans):
        if result and low <= result[-1][1]:
            result[-1] = result[-1][0], max(result[-1][1], high)
        else:
            result.append((low, high))
    return result


def _cut(spans: Sequence[Span], without: Span) -> list[Span]:
    """Return spans without the bytes of another one."""
    low, high = without
    parts = [
        part for a, b in spans for part in ((a, min(b, low)), (max(a, high), b))
    ]
    return [part for part in parts if part[0] < part[1]]


def as_elements(data: NDArray[np.uint8], storage: Any) -> NDArray[Any]:
    """Return bytes as elements."""
    return data.view(storage)
