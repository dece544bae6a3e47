"""One-shot and two-shot push all-reduce of inference engines for small messages.

**Hardware**: the low-latency kernels of TensorRT-LLM, FlashInfer and MSCCL++, also used by vLLM: every GPU stores
packets of data and flag (NCCL's LL lines) directly into buffers of all its peers and polls its local buffer.
TensorRT-LLM's Lamport kernel stores plain data and polls until no value equals the initial minus zero. There
is no handshake: the buffers hold the complete message, and consecutive calls alternate between two sets.
**Model**: per rank and channel a program that stores each piece to all peers, one fixed cost for all of them, and one
that polls and reduces all peers' pieces in group order. A connection has a slot for every piece, so no rank waits
for a free slot. **Not modelled**: buffers that the message exceeds; clearing of the old set of buffers.
**Parameters**: the topology's protocol ``ll``.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from clusim.collectives.algorithms.direct import (
    Pairs,
    reduce_arrivals,
    reduce_in_order,
    send_own,
    source_order,
)
from clusim.collectives.entry import algorithm
from clusim.schedule.collective_writer import CollectiveWriter
from clusim.schedule.ir import CollectiveCall, Prim
from clusim.schedule.shapes import MAX_SLOTS, Shape
from clusim.topology.model import Fabric

PASS_BYTES = 4096
"""Bytes that 512 threads store at once, 8 bytes of data each."""

TOKEN_BYTES = 8192
"""Bytes that a CTA of the Lamport kernel stores at once: 16 bytes a thread, a token of 4096 elements of two bytes."""

LAMPORT_PRELUDE_PS = 1_600_000
"""Time of the Lamport kernel before its first data: it starts in clusters, reads buffer addresses, selects one of three
buffers, reads the size to clear [ps]. Rows of TensorRT-LLM with 256 B to 2 KiB on 2 H100 (aiconfigurator): 2.7 us,
of which 0.75 for data and 0.35 for the start of any kernel.
"""

MOST_TOKENS = 64
"""Largest number of CTAs modelled; the kernel has one per token, up to the number of SMs."""


def _shape(call: CollectiveCall, pieces: int) -> Shape:
    """Return the shape for which a channel's part, cut into `pieces` chunks a loop, fits into the slots."""
    part = -(-call.bytes // (16 * call.channels)) * 16
    min_chunk = -(-part // (16 * pieces * MAX_SLOTS)) * 16
    return Shape(max(PASS_BYTES, min_chunk), slots=MAX_SLOTS)


def oneshot_shape(call: CollectiveCall, fabric: Fabric | None) -> Shape:
    """Return the shape of the one-shot kernel."""
    return _shape(call, 1)


def lamport_shape(call: CollectiveCall, fabric: Fabric | None) -> Shape:
    """Return the shape of the Lamport kernel, whose threads store 16 bytes of data at once."""
    return _shape(call, 1).with_chunk(max(TOKEN_BYTES, _shape(call, 1).chunk_bytes))


def blocks_of_lamport(call_bytes: int, num_ranks: int) -> int:
    """Return the CTAs with which TensorRT-LLM launches it."""
    return max(1, min(MOST_TOKENS, -(-call_bytes // TOKEN_BYTES)))


def twoshot_shape(call: CollectiveCall, fabric: Fabric | None) -> Shape:
    """Return the shape of the two-shot kernel, in which each rank owns one chunk per loop."""
    return _shape(call, len(call.ranks))


_pushes = partial(algorithm, drop_channels=False, many_peers=True, protocols=("ll",))
_blocks = partial(_pushes, shape=twoshot_shape, channels="direct")


@_pushes("allreduce", "oneshot-ll", oneshot_shape, channels="oneshot")
def write_oneshot(writer: CollectiveWriter, fabric: Fabric | None) -> None:
    """Write all-reduce in one step: everybody pushes everything to everybody."""
    _one_step(writer, writer.call.protocol)


@algorithm(
    "allreduce",
    "oneshot-lamport",
    lamport_shape,
    channels="oneshot",
    many_peers=True,
    protocols=("simple",),
    blocks=blocks_of_lamport,
    prelude_ps=LAMPORT_PRELUDE_PS,
)
def write_lamport(writer: CollectiveWriter, fabric: Fabric | None) -> None:
    """Write the one-shot without flags: a value that no sum has marks data not yet arrived."""
    _one_step(writer, "direct")


def _one_step(writer: CollectiveWriter, protocol: str) -> None:
    size, name = writer.size, writer.call.algorithm
    push = [Prim("send", send=slot) for slot in range(size - 1)]
    for part in writer.parts():
        pairs = Pairs(writer, part.channel, protocol=protocol)
        order = source_order(size, part.channel, writer.call.channels)
        for position in range(size):
            common: dict[str, Any] = {"protocol": protocol, "fixed_div": size - 1}
            writer.program(
                position,
                part,
                push,
                pairs.sent(position),
                name=f"{name}/push",
                **common,
            )
            into = [
                pairs.pipes[peer, position] for peer in order if peer != position
            ]
            poll = reduce_in_order(order, position)
            common["fixed_div"] = len(poll)
            writer.program(
                position, part, poll, into, sm=0, name=f"{name}/reduce", **common
            )


@_pushes("allreduce", "twoshot-ll", twoshot_shape, channels="twoshot")
def write_twoshot(writer: CollectiveWriter, fabric: Fabric | None) -> None:
    """Write all-reduce in two steps: everybody reduces one chunk and pushes the result to everybody."""
    last = writer.size - 1
    for part in writer.parts():
        first, second = Pairs(writer, part.channel), Pairs(writer, part.channel)
        spread = [
            Prim("send", send=last + slot, coef=1, src="output")
            for slot in range(last)
        ]
        reduce = [*reduce_arrivals(last, 0), *spread]
        for position in range(writer.size):
            stages = (
                ("push", first.sends, first.sent(position)),
                (
                    "reduce",
                    reduce,
                    first.connections_to(position) + second.sent(position),
                ),
                ("take", second.takes, second.connections_to(position)),
            )
            for number, (name, prims, pipes) in enumerate(stages):
                fields: dict[str, Any] = {
                    "sm": int(not number),
                    "name": f"twoshot-ll/{name}",
                }
                writer.add_rotated(
                    position, part, prims, pipes, fixed_div=last, **fields
                )


@_blocks("reduce_scatter", "ll")
def write_reduce_scatter(writer: CollectiveWriter, fabric: Fabric | None) -> None:
    """Write reduce-scatter in one step: every rank pushes all blocks and reduces its block."""
    last = writer.size - 1
    fields: dict[str, Any] = {"mode": "blocked", "fixed_div": last}
    for part in writer.parts(blocked=True):
        pairs, adds = Pairs(writer, part.channel), reduce_arrivals(last, 0)
        for position in range(writer.size):
            out, into = pairs.sent(position), pairs.connections_to(position)
            writer.add_rotated(
                position, part, pairs.sends, out, name="ll/push", **fields
            )
            writer.add_rotated(
                position, part, adds, into, sm=0, name="ll/reduce", **fields
            )


@_blocks("all_gather", "ll")
def write_all_gather(writer: CollectiveWriter, fabric: Fabric | None) -> None:
    """Write all-gather in one step: everybody pushes its block to everybody."""
    last = writer.size - 1
    fields: dict[str, Any] = {"mode": "blocked", "fixed_div": last}
    for part in writer.parts(blocked=True):
        pairs, push = Pairs(writer, part.channel), send_own(last)
        for position in range(writer.size):
            out, into = pairs.sent(position), pairs.connections_to(position)
            writer.add_rotated(position, part, push, out, name="ll/push", **fields)
            writer.add_rotated(
                position, part, pairs.takes, into, sm=0, name="ll/take", **fields
            )
