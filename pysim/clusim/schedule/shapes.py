"""Cuts of data by protocol: chunk, slices and slots of a connection.

**Hardware**: NCCL gives every connection and channel a buffer of 8 steps: 4 MiB for Simple (512 KiB
a step), 32 KiB of data a step for LL, 576 000 B for LL128; rings of all-reduce, all-gather and
reduce-scatter use chunks of 4 steps in 2 slices, everything else chunks of one step (NCCL 2.30,
``src/include/collectives.h`` and ``src/init.cc``). A slice is at least 1/32 of its nominal size
(``prims_simple.h``). **Model**: the same; LL and LL128, whose flags travel in every line, are
pipelined inside a chunk by cutting it into slices of about the data of one round of all threads
(LL: 512 threads x 8 B). **Not modelled**: LL's periodic flag clean-up. **Parameters**: `Shape`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

from clusim.base.errors import InputError
from clusim.base.records import dataclass
from clusim.base.terms.operations import PROTOCOL_NAMES
from clusim.hardware.ctas import cta_figure
from clusim.topology.packets import Protocol

KIB = 1024
MIB = 1024 * KIB

MAX_SLOTS = 64
"""Most slots a connection can have."""


@dataclass(frozen=True, slots=True)
class Shape:
    """Chunk, slice and slot sizes of a program's connections.

    Attributes
    ----------
    chunk_bytes : int
        Nominal chunk [bytes], a multiple of 16.
    slices : int
        Slices per chunk.
    slots : int
        Slots of a connection's FIFO.
    slots_per_slice : int
        Slots per slice.
    slice_min : int
        Least slice [bytes], a multiple of 16.
    """

    chunk_bytes: int
    slices: int = 1
    slots: int = 8
    slots_per_slice: int = 1
    slice_min: int = 16

    def __post_init__(self) -> None:
        """Check that no element can be cut and that rings can move: a chunk and a slice fit."""
        for name in ("chunk_bytes", "slice_min"):
            if getattr(self, name) < 16 or getattr(self, name) % 16:
                raise InputError(
                    f"shape: {name}={getattr(self, name)}; must be a positive multiple of 16"
                )
        if min(self.slices, self.slots_per_slice) < 1:
            raise InputError(
                f"shape: slices={self.slices}, slots_per_slice={self.slots_per_slice}; must be >= 1"
            )
        if self.slots < 2 * self.slices * self.slots_per_slice:
            raise InputError(
                f"shape: {self.slots} slots hold no two chunks of {self.slices} x {self.slots_per_slice},"
                " so rings would deadlock; use more slots"
            )

    def with_chunk(self, chunk_bytes: int) -> Shape:
        """Return this shape with another chunk size; the least slice is at most one slice of the new chunk."""
        chunk = max(16, chunk_bytes // 16 * 16)
        return replace(
            self,
            chunk_bytes=chunk,
            slice_min=max(16, min(self.slice_min, chunk // self.slices // 16 * 16)),
        )


class _Cut(NamedTuple):
    """Cut of a protocol: slices per step where flags travel in the data, the least slice [bytes of data].

    `threads` move the data of a channel, each `thread_bytes` at least [bytes].
    """

    pieces: int
    least: int
    threads: int
    thread_bytes: int


_CUTS = {
    "simple": _Cut(1, 0, 512, 64),
    "ll": _Cut(8, 4 * KIB, 512, 8),
    "ll128": _Cut(8, 15_360, 640, 8),
}

_STANDARD = {
    item.name: item
    for item in (
        Protocol("simple"),
        Protocol(
            "ll",
            expand_120=240,
            buffer_bytes=512 * KIB,
            chunk_steps=1,
            slice_steps=1,
        ),
        Protocol(
            "ll128",
            expand_120=128,
            buffer_bytes=4_915_200,
            chunk_steps=1,
            slice_steps=1,
        ),
    )
}


def shape_of(
    name: str, *, ring: bool = False, protocols: Mapping[str, Protocol] | None = None
) -> Shape:
    """Return the shape of protocol `name`: one of a topology's `protocols`, or NCCL's without any.

    `ring` is for rings of all-reduce, all-gather and reduce-scatter, which use larger chunks.
    """
    protocol = (protocols or _STANDARD).get(name)
    if name not in PROTOCOL_NAMES or protocol is None:
        listing = ", ".join(protocols or PROTOCOL_NAMES)
        raise InputError(f"protocol {name!r}: not known here; use one of {listing}")
    step = protocol.step_bytes // 16 * 16
    cut = _CUTS[name]
    pieces = max(1, min(cut.pieces, MAX_SLOTS // protocol.slots))
    if cut.least:
        return Shape(step, pieces, protocol.slots * pieces, 1, min(step, cut.least))
    chunk_steps, slice_steps = (
        (protocol.chunk_steps, protocol.slice_steps) if ring else (1, 1)
    )
    min_chunk = max(16, step * slice_steps // 32 // 16 * 16)
    return Shape(
        step * chunk_steps,
        chunk_steps // slice_steps,
        protocol.slots,
        slice_steps,
        min_chunk,
    )


def whole_shape(length: int) -> Shape:
    """Return the shape of the textbook algorithms: one slice holds the complete message."""
    return Shape(
        max(16, (length + 15) // 16 * 16),
        slices=1,
        slots=8,
        slots_per_slice=1,
        slice_min=16,
    )


def default_channels(
    size_bytes: int, limit: int, protocol: str, num_ranks: int
) -> int:
    """Return the number of useful channels, at most `limit`: each thread should get enough bytes.

    NCCL 2.30, ``src/enqueue.cc``: channels are dropped while ``bytes < channels * threads * threshold``; the
    threshold is 64 B per thread for Simple, 8 for LL128 and 8 per rank for LL.
    """
    cut = _CUTS[protocol]
    threshold = cut.thread_bytes * (num_ranks if protocol == "ll" else 1)
    return max(1, min(limit, size_bytes // (cut.threads * threshold)))


NVLS_WARPS = 20
"""Warps of a CTA of NVLS (NCCL ``NCCL_MAX_NTHREADS``)."""


class NvlsWarps(NamedTuple):
    """Warps of a CTA of NVLS by work; without a parent the same warps reduce and broadcast."""

    scatter: int
    gather: int
    reduce: int
    broadcast: int

    def senders(self, work: str) -> float:
        """Return the warps that send over NVLink at the rate of the copies of `work`.

        Both ends of a copy, and the buffers of NICs, are in local GPU memory, so the throughput per warp is higher.
        """
        warps: int = getattr(self, work)
        return warps * cta_figure("local copy")


def nvls_warps(num_ranks: int, *, sends_up: bool = False) -> NvlsWarps:
    """Return the division of a CTA of NVLS or, if a rank `sends_up` to a parent, of NVLSTree.

    NCCL ``all_reduce.h``: 5 of 20 warps reduce, 7 in groups of up to 6 ranks; below a parent 4 broadcast; the others
    copy.
    """
    reduce = 5 if sends_up or num_ranks > 6 else 7
    copying = NVLS_WARPS - reduce - (4 if sends_up else 0)
    return NvlsWarps(
        (copying + 1) // 2, copying // 2, reduce, 4 if sends_up else reduce
    )
