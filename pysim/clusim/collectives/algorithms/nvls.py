"""NVLS: all-reduce, all-gather and reduce-scatter by the switches of one node.

**Hardware**: NCCL's ``all_reduce.h`` (``RunWorkColl<..., NCCL_ALGO_NVLS, NCCL_PROTO_SIMPLE>``):
every rank is the head of one chunk per loop. Scatter warps copy the user's data into the multicast
buffer; the head's reduce warps wait until all members have, read the sum through the switch
(``multimem.ld_reduce``), and store it to all (``multimem.st``); gather warps copy it back. Flags of
all members are polled with one load (``NVLS_MIN_POLL``). **Model**: three programs per rank and
channel that hand over by flags, with FIFOs of 8 slots for the buffer; one fixed cost per chunk for
all of the reducer's flags together, a part of one for the copy of each head's chunk: scatter and gather
serve the heads in turn. In all-reduce scatter, reduce and gather each have their share of the CTA's
warps. A warp of its own fences and posts: the flags of a multicast store wait until all members have it, and the
next store begins meanwhile, but is not done before. A reduction's multicast is done when all members have it.
**Not modelled**: the flag accesses' own packets; the buffer is as large as the data, and only the flags keep it from
being overrun. **Parameters**: `Shape`, 128 KiB chunks.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache, partial
from typing import Any

from clusim.base.errors import InputError
from clusim.base.records import dataclass
from clusim.collectives.entry import algorithm, connect_flags
from clusim.hardware.ctas import cta_figure
from clusim.schedule.collective_writer import CollectiveWriter, Part
from clusim.schedule.ir import CollectiveCall, Prim
from clusim.schedule.shapes import Shape, nvls_warps
from clusim.topology.arrays import arrays_of
from clusim.topology.model import Fabric

KIB = 1024

KEPT = 64
"""Numbers of ranks whose primitives are kept: programs of one collective share them."""

_SHRINK = ((64, 64 * KIB), (8, 32 * KIB), (2, 16 * KIB))
"""Chunks for sizes below so many times channels x heads x chunk (NCCL 2.30, ``src/enqueue.cc``)."""


def nvls_shape(size_bytes: int, channels: int, heads: int) -> Shape:
    """Return the shape for an all-reduce of `size_bytes` with one head per rank."""
    chunk = 128 * KIB
    for factor, smaller in _SHRINK:
        if size_bytes < factor * channels * heads * chunk:
            chunk = min(chunk, smaller)
    return Shape(chunk)


def check_units(fabric: Fabric, ranks: tuple[int, ...], name: str = "nvls") -> None:
    """Raise `InputError` unless all ranks of a group hang on switches with a reduction unit, in one node."""
    arrays = arrays_of(fabric)
    if len({arrays.zone_of(rank) for rank in ranks}) > 1:
        raise InputError(
            f"{name}: the ranks are in several nodes of {fabric.name}, its switches in one; use sharp, ring or tree"
        )
    for rank in ranks:
        if not arrays.unit_wires(rank):
            raise InputError(
                f"{name}: {fabric.name} lacks reduction units in its switches (rank {rank});"
                " use ring or tree, or a fabric with NVSwitch 3 or later, such as dgx-h100"
            )


@dataclass(frozen=True, slots=True)
class SwitchFlags:
    """Flag connections of one channel: input is in the buffer; result is in the buffer."""

    ready: dict[tuple[int, int], int]
    done: dict[tuple[int, int], int]

    @classmethod
    def connect(
        cls,
        writer: CollectiveWriter,
        channel: int,
        positions: Sequence[int] | None = None,
    ) -> SwitchFlags:
        """Connect the positions, by default all."""
        return cls(*(connect_flags(writer, channel, positions) for _ in range(2)))


def _shape(call: CollectiveCall, fabric: Fabric | None) -> Shape:
    return nvls_shape(call.bytes, call.channels, len(call.ranks))


by_switches = partial(
    algorithm, channels="nvls", drop_channels=False, protocols=("simple",)
)
"""Decorator of an algorithm with reductions in switches."""

_by_switches = partial(by_switches, shape=_shape)


@_by_switches("allreduce", "nvls")
def write_allreduce(writer: CollectiveWriter, fabric: Fabric | None) -> None:
    """Write scatter, reduce and gather programs for every rank and channel."""
    if fabric is not None:
        check_units(fabric, writer.call.ranks)
    for part in writer.parts():
        flags = SwitchFlags.connect(writer, part.channel)
        for position in range(writer.size):
            _scatter(writer, part, position, flags)
            _reduce(writer, part, position, flags)
            _gather(writer, part, position, flags)


def copies_per_cost(side: str) -> int:
    """Return the number of copies of heads' chunks by a side, scatter or gather, for the fixed cost of a slice."""
    return round(cta_figure(f"nvls {side}"))


@lru_cache(KEPT)
def copies(size: int) -> tuple[Prim, ...]:
    """Return primitives that copy every head's chunk into the multicast buffer."""
    return tuple(
        Prim("copySend", send=s, base=s, coef=1, dst="scratch") for s in range(size)
    )


@lru_cache(KEPT)
def takes(size: int) -> tuple[Prim, ...]:
    """Return primitives that copy every head's result to the output."""
    return tuple(
        Prim("recvCopy", recv=s, base=s, coef=1, src="scratch") for s in range(size)
    )


@lru_cache(KEPT)
def _reductions(size: int) -> tuple[Prim, ...]:
    """Return primitives that wait for all members, reduce and multicast their chunk, and signal them."""
    wait = [Prim("waitSignal", recv=slot, coef=1) for slot in range(size)]
    reduce = Prim(
        "reduceLoadStore", send=2 * size, coef=1, src="scratch", dst="scratch"
    )
    tell = [Prim("signal", send=size + slot, coef=1) for slot in range(size)]
    return (*wait, reduce, *tell)


def _scatter(
    writer: CollectiveWriter, part: Part, position: int, flags: SwitchFlags
) -> None:
    """Copy every head's chunk into the multicast buffer and signal the head."""
    pipes = [flags.ready[position, head] for head in _heads(writer, position)]
    # The figure of local copies was calibrated with whole warps.
    fields: dict[str, Any] = {
        "sm": 1,
        "warps": round(nvls_warps(writer.size).senders("scatter")),
        "name": "nvls/scatter",
    }
    prims, div = copies(writer.size), copies_per_cost("scatter")
    writer.add_rotated(position, part, prims, pipes, fixed_div=div, **fields)


def _reduce(
    writer: CollectiveWriter, part: Part, position: int, flags: SwitchFlags
) -> None:
    """Wait for all members' chunk of this head, reduce it in the switch, multicast it, signal the members."""
    size = writer.size
    pipes = [flags.ready[member, position] for member in range(size)]
    pipes += [flags.done[position, member] for member in range(size)]
    pipes.append(connect_switch(writer, position, part.channel))
    fields: dict[str, Any] = {
        "sm": 0,
        "fixed_div": 2 * size + 1,
        "name": "nvls/reduce",
    }
    writer.add_rotated(position, part, _reductions(size), pipes, **fields)


def _gather(
    writer: CollectiveWriter, part: Part, position: int, flags: SwitchFlags
) -> None:
    """Wait for every head's result and copy it to the output."""
    pipes = [flags.done[head, position] for head in _heads(writer, position)]
    fields: dict[str, Any] = {
        "sm": 0,
        "warps": round(nvls_warps(writer.size).senders("gather")),
        "name": "nvls/gather",
    }
    prims, div = takes(writer.size), copies_per_cost("gather")
    writer.add_rotated(position, part, prims, pipes, fixed_div=div, **fields)


def _heads(writer: CollectiveWriter, position: int) -> list[int]:
    """Return all heads, beginning with the position itself."""
    return [(position + hop) % writer.size for hop in range(writer.size)]


@_by_switches("all_gather", "nvls")
def write_all_gather(
    writer: CollectiveWriter,
    fabric: Fabric | None,
    parts: Sequence[Part] | None = None,
) -> None:
    """Write all-gather: each rank stores its block to all by multicast, and copies all blocks to its output."""
    if fabric is not None:
        check_units(fabric, writer.call.ranks)
    size = writer.size
    for part in writer.parts(blocked=True) if parts is None else parts:
        done = connect_flags(writer, part.channel)
        for position in range(size):
            store = Prim("multicastStore", send=size, coef=1, dst="scratch")
            tell = [Prim("signal", send=slot, coef=1) for slot in range(size)]
            pipes = [done[position, member] for member in range(size)]
            pipes.append(connect_switch(writer, position, part.channel))
            stores = [store, *tell]
            fields: dict[str, Any] = {
                "mode": "blocked",
                "fixed_div": len(stores),
                "sm": 1,
            }
            writer.add_rotated(
                position, part, stores, pipes, name="nvls/store", **fields
            )
            pipes = [done[head, position] for head in _heads(writer, position)]
            fields = {"mode": "blocked", "fixed_div": size, "sm": 0}
            writer.add_rotated(
                position, part, takes(size), pipes, name="nvls/gather", **fields
            )


@_by_switches("reduce_scatter", "nvls")
def write_reduce_scatter(
    writer: CollectiveWriter,
    fabric: Fabric | None,
    parts: Sequence[Part] | None = None,
) -> None:
    """Write reduce-scatter: everybody copies its data to the buffer, each rank loads the sum of its block."""
    if fabric is not None:
        check_units(fabric, writer.call.ranks)
    size = writer.size
    for part in writer.parts(blocked=True) if parts is None else parts:
        ready = connect_flags(writer, part.channel)
        for position in range(size):
            pipes = [ready[position, head] for head in _heads(writer, position)]
            fields: dict[str, Any] = {"mode": "blocked", "fixed_div": size, "sm": 1}
            writer.add_rotated(
                position, part, copies(size), pipes, name="nvls/scatter", **fields
            )
            wait = [Prim("waitSignal", recv=slot, coef=1) for slot in range(size)]
            load = Prim("reduceLoad", send=size, coef=1, src="scratch")
            pipes = [ready[member, position] for member in range(size)]
            pipes.append(connect_switch(writer, position, part.channel))
            fields = {"mode": "blocked", "fixed_div": size + 1, "sm": 0}
            writer.add_rotated(
                position, part, [*wait, load], pipes, name="nvls/reduce", **fields
            )


def connect_switch(writer: CollectiveWriter, position: int, channel: int) -> int:
    """Return the connection of a position to the multicast address of its group."""
    members = writer.call.ranks
    return writer.connect(
        position, position, channel, kind="multimem", members=members
    )
