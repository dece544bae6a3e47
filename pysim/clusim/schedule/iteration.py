"""Bytes of each slice of an instance: the arithmetic of contract section 7, in one place."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import lru_cache
from itertools import accumulate
from typing import NamedTuple

from clusim.schedule.ir import Instance, Prim, Template


class Slice(NamedTuple):
    """One slice: primitive, source and destination positions, size [bytes], FIFO slots.

    All slices of a chunk together occupy the slots of `Instance.slices`; the last one includes those of absent slices.
    """

    prim: Prim
    src_offset: int
    dst_offset: int
    size: int
    slots: int


class _Cut(NamedTuple):
    """Inputs of an instance's piece sizes, as in `Instance` and `Template`; many instances share them."""

    interleaved: bool
    nchunks: int
    offset: int
    length: int
    chunk_bytes: int
    stride: int
    limit: int
    align: int
    slices: int
    slice_min: int

    @classmethod
    def of(cls, instance: Instance, template: Template) -> _Cut:
        """Return the cut of an instance."""
        return cls(
            template.mode == "interleaved",
            template.nchunks,
            instance.offset,
            instance.length,
            instance.chunk_bytes,
            instance.stride,
            instance.limit,
            instance.align,
            instance.slices,
            instance.slice_min,
        )

    @property
    def loops(self) -> int:
        """Loops that move data."""
        return -(
            -self.length
            // (self.chunk_bytes * (self.nchunks if self.interleaved else 1))
        )

    def piece(self, loop: int, chunk: int) -> tuple[int, int]:
        """Return (offset, size) of the piece of chunk number `chunk` in a loop."""
        if not self.interleaved:
            low = chunk * self.stride + self.offset + loop * self.chunk_bytes
            end = min(chunk * self.stride + self.offset + self.length, self.limit)
            return low, max(0, min(low + self.chunk_bytes, end) - low)
        span = self.nchunks * self.chunk_bytes
        remaining, size = self.length - loop * span, self.chunk_bytes
        if remaining < span:
            even = -(-remaining // self.nchunks)
            size = min(size, -(-even // self.align) * self.align)
        chunk_bytes_left = min(remaining, span) - chunk * size
        return self.offset + loop * span + chunk * size, min(
            max(chunk_bytes_left, 0), size
        )

    def slice_size(self, size: int) -> int:
        """Return the largest slice of a piece [bytes]."""
        even = -(-size // self.slices)
        return max(-(-even // 16) * 16, self.slice_min)

    def total(self, chunk: int) -> tuple[int, int]:
        """Return the bytes and slices of a chunk number over all loops, without iterating over the loops."""
        if self.length == 0:
            return 0, 0
        if self.interleaved:
            sizes = [
                (self.piece(self.loops - 1, chunk)[1], 1),
                (self.chunk_bytes, self.loops - 1),
            ]
        else:
            block = chunk * self.stride + self.offset
            moved = max(0, min(block + self.length, self.limit) - block)
            full, remainder = divmod(moved, self.chunk_bytes)
            sizes = [(self.chunk_bytes, full), (remainder, 1)]
        slices = sum(
            -(-size // self.slice_size(size)) * count
            for size, count in sizes
            if size
        )
        return sum(size * count for size, count in sizes), slices


def chunk_of(prim: Prim, rotation: int, index: int, nchunks: int) -> int:
    """Return the number of the chunk that repetition `index` of `prim` works on."""
    return (prim.base + prim.coef * rotation + prim.step * index) % nchunks


def _target_of(prim: Prim, rotation: int, index: int, nchunks: int) -> int:
    if prim.dst_base is None:
        return chunk_of(prim, rotation, index, nchunks)
    return (
        prim.dst_base + prim.dst_coef * rotation + prim.dst_step * index
    ) % nchunks


def loop_count(instance: Instance, template: Template) -> int:
    """Return the number of loops of an instance."""
    return max(_Cut.of(instance, template).loops, 1 if template.has_sync else 0)


def iter_slices(instance: Instance, template: Template) -> Iterator[Slice]:
    """Yield the non-empty slices of an instance in execution order."""
    cut = _Cut.of(instance, template)
    for loop in range(loop_count(instance, template)):
        for prim in template.prims:
            for index in range(prim.repeat):
                if prim.sync:
                    yield Slice(prim, 0, 0, 0, instance.slots_per_slice)
                    continue
                chunk = chunk_of(prim, instance.rotation, index, template.nchunks)
                offset, size = cut.piece(loop, chunk)
                if size == 0:
                    continue
                target = _target_of(prim, instance.rotation, index, template.nchunks)
                shift = cut.piece(loop, target)[0] - offset if target != chunk else 0
                step = cut.slice_size(size)
                for place, start in enumerate(range(0, size, step)):
                    where, remaining = offset + start, size - start
                    count = 1 if remaining > step else instance.slices - place
                    slots = count * instance.slots_per_slice
                    yield Slice(
                        prim, where, where + shift, min(step, remaining), slots
                    )


class ChunkTotals:
    """Traffic of every chunk number over all loops of an instance.

    Attributes
    ----------
    each : tuple of (int, int)
        Bytes and slices of every chunk number.
    even : bool
        True if all chunk numbers have equal traffic.
    """

    __slots__ = ("_before", "each", "even")

    def __init__(self, totals: tuple[tuple[int, int], ...]) -> None:
        self.each = totals
        self.even = len(set(totals)) == 1
        sizes, slices = zip(*totals, strict=True)
        self._before = tuple(
            zip(
                accumulate(sizes, initial=0),
                accumulate(slices, initial=0),
                strict=True,
            )
        )

    def wrapped_sum(self, first: int, count: int) -> tuple[int, int]:
        """Return (bytes, slices) of `count` chunks from `first` on, chunk 0 following the last."""
        laps, remainder = divmod(first + count, len(self.each))
        total, end, start = (
            self._before[-1],
            self._before[remainder],
            self._before[first],
        )
        return laps * total[0] + end[0] - start[0], laps * total[1] + end[1] - start[
            1
        ]


@lru_cache(maxsize=4096)
def _totals(cut: _Cut) -> ChunkTotals:
    return ChunkTotals(tuple(map(cut.total, range(cut.nchunks))))


def chunk_totals(instance: Instance, template: Template) -> ChunkTotals:
    """Return the traffic of every chunk number over all loops of an instance."""
    cut = _Cut.of(instance, template)
    return _totals(cut._replace(offset=0) if cut.interleaved else cut)


def prim_totals(
    instance: Instance, template: Template, prim: Prim
) -> tuple[int, int]:
    """Return (bytes, slices) that `prim` moves over all loops of an instance."""
    if prim.sync:
        return 0, prim.repeat * loop_count(instance, template)
    return sum_chunks(chunk_totals(instance, template), (prim,), instance.rotation)


def sum_chunks(
    totals: ChunkTotals, prims: Iterable[Prim], rotation: int
) -> tuple[int, int]:
    """Return (bytes, slices) that `prims` move, from the totals of every chunk.

    Primitives that step from a chunk to its neighbour, as in rings, are summed at once: `repeat` equals the number
    of ranks there, which is also the number of rotations.
    """
    total_bytes = slices = 0
    for prim in prims:
        for own_bytes, own_slices in _moved_parts(totals, prim, rotation):
            total_bytes += own_bytes
            slices += own_slices
    return total_bytes, slices


def _moved_parts(
    totals: ChunkTotals, prim: Prim, rotation: int
) -> Iterator[tuple[int, int]]:
    """Yield (bytes, slices) of the parts that `prim` moves."""
    count = len(totals.each)
    first = chunk_of(prim, rotation, 0, count)
    if prim.step % count == 1 % count:
        yield totals.wrapped_sum(first, prim.repeat)
    elif prim.step % count == count - 1:
        yield totals.wrapped_sum((first - prim.repeat + 1) % count, prim.repeat)
    else:
        for index in range(prim.repeat):
            yield totals.each[chunk_of(prim, rotation, index, count)]
