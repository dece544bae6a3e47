"""PAT: all-gather and reduce-scatter in logarithmic steps for one rank per node.

**Hardware** Every block travels down a separate binomial tree, from the far peers (half of all ranks away) to the
near ones, so that long distances carry few blocks; reduce-scatter is the mirror image, near peers first
(``src/device/all_gather.h`` and ``reduce_scatter.h`` since NCCL 2.23). Several blocks for a peer share a buffer step.
**Model** The same trees and order; per channel one program that receives and one that sends, joined by flags.
**Not modelled** Blocks that share a step: every block is a separate message. **Parameters** Chunks of 64 KiB or more.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from clusim.collectives.entry import hop_fields
from clusim.collectives.rings_and_trees import Hop
from clusim.schedule.collective_writer import Part
from clusim.schedule.ir import Prim

if TYPE_CHECKING:
    from clusim.nccl.programs.context import Context

FLAG_SLOTS = (8, 64)
"""Flags that may be on their way between the two programs of a position: one per rank, within these bounds.

**Assumed**: in hardware both are warps of one CTA and share its memory.
"""


def _distances(size: int) -> list[int]:
    """Return the distances of peers, the farthest first: 4, 2, 1 for five to eight ranks."""
    return [1 << bit for bit in reversed(range((size - 1).bit_length()))]


def _held_blocks(size: int, distance: int) -> Iterator[tuple[int, bool]]:
    """Yield the offsets of blocks held before the step of `distance`, and True if a peer needs them."""
    for offset in range(0, size, 2 * distance):
        yield offset, offset + distance < size


class _Writer:
    """The peers of all positions on one channel."""

    def __init__(self, context: Context, part: Part) -> None:
        self.context, self.part = context, part
        self.writer, self.size = context.writer, context.writer.size
        self.distances = _distances(self.size)
        slots = min(max(FLAG_SLOTS[0], self.size), FLAG_SLOTS[1])
        # The connection of a position towards the peer at a distance; and the flags inside the position.
        self.flags = [
            self.writer.connect(p, p, part.channel, kind="flag", slots=slots)
            for p in range(self.size)
        ]

    def connect(self, sign: int) -> dict[tuple[int, int], int]:
        """Return the connection on which every position sends, by distance, up or down the ranks."""
        channel = self.context.channel(self.part.channel)
        result = {}
        for src in range(self.size):
            for distance in self.distances:
                dst = (src + sign * distance) % self.size
                ends = self.context.ring_rails(channel, self.part.channel, src, dst)
                fields = hop_fields(Hop(rail_out=ends[0], rail_in=ends[1]))
                pipe = self.writer.connect(src, dst, self.part.channel, **fields)
                result[src, distance] = pipe
        return result

    def program(
        self, position: int, prims: list[Prim], pipes: list[int], name: str, sm: int
    ) -> None:
        """Write a program on blocks, which are numbered relative to the rank's block."""
        common: dict[str, Any] = {
            "rotation": position,
            "nchunks": self.size,
            "mode": "blocked",
        }
        self.writer.program(
            position, self.part, prims, pipes, name=f"pat/{name}", sm=sm, **common
        )


def _gather_send(size: int) -> list[Prim]:
    """Return the sends of an all-gather; the flag's index follows the connections."""
    distances = _distances(size)
    flag = len(distances)
    prims: list[Prim] = []
    held_offsets = {0}
    for slot, distance in enumerate(distances):
        for offset, is_needed in _held_blocks(size, distance):
            if offset not in held_offsets:
                prims.append(Prim("waitSignal", recv=flag, base=offset, coef=1))
                held_offsets.add(offset)
            if not is_needed:
                continue
            if offset == 0:
                op = "send" if slot else "copySend"
                prims.append(Prim(op, send=slot, coef=1))
            else:
                prims.append(
                    Prim("send", send=slot, base=offset, coef=1, src="output")
                )
    return prims


def _gather_receive(size: int) -> list[Prim]:
    distances = _distances(size)
    prims: list[Prim] = []
    for slot, distance in enumerate(distances):
        for offset in range(distance, size, 2 * distance):
            prims.append(Prim("recv", recv=slot, base=offset, coef=1))
            if distance > 1:
                prims.append(
                    Prim("signal", send=len(distances), base=offset, coef=1)
                )
    return prims


def write_all_gather(context: Context) -> None:
    """Write PAT all-gather: blocks move down the ranks."""
    size = context.writer.size
    send, receive = _gather_send(size), _gather_receive(size)
    for part in context.parts:
        writer = _Writer(context, part)
        pipes = writer.connect(-1)
        for position in range(size):
            outgoing = [pipes[position, d] for d in writer.distances]
            writer.program(
                position, send, [*outgoing, writer.flags[position]], "send", 1
            )
            peers = [pipes[(position + d) % size, d] for d in writer.distances]
            writer.program(
                position, receive, [*peers, writer.flags[position]], "receive", 0
            )


def _has_children(size: int, offset: int) -> bool:
    """Return True if a rank receives partial sums of the block at an offset before it sends its sum."""
    return offset % 2 == 0 and offset + 1 < size


def _scatter_send(size: int) -> list[Prim]:
    distances = _distances(size)[::-1]
    prims: list[Prim] = []
    for slot, distance in enumerate(distances):
        for offset in range(distance, size, 2 * distance):
            if not _has_children(size, offset):
                prims.append(Prim("send", send=slot, base=offset, coef=1))
                continue
            prims.append(
                Prim("waitSignal", recv=len(distances), base=offset, coef=1)
            )
            prims.append(Prim("send", send=slot, base=offset, coef=1, src="scratch"))
    return prims


def _scatter_receive(size: int) -> list[Prim]:
    distances = _distances(size)[::-1]
    prims: list[Prim] = []
    for slot, distance in enumerate(distances):
        for offset, is_needed in _held_blocks(size, distance):
            last = offset == 0 and slot == len(distances) - 1
            if is_needed:
                prims.append(
                    Prim(
                        "recvReduceCopy",
                        recv=slot,
                        base=offset,
                        coef=1,
                        src="scratch" if slot else "input",
                        dst="output" if last else "scratch",
                    )
                )
            handed_on = offset % (4 * distance) == 2 * distance
            if handed_on and _has_children(size, offset):
                prims.append(
                    Prim("signal", send=len(distances), base=offset, coef=1)
                )
    return prims


def write_reduce_scatter(context: Context) -> None:
    """Write PAT reduce-scatter: partial sums move up the ranks, from near to far."""
    size = context.writer.size
    send, receive = _scatter_send(size), _scatter_receive(size)
    for part in context.parts:
        writer = _Writer(context, part)
        pipes = writer.connect(1)
        near_first = writer.distances[::-1]
        for position in range(size):
            outgoing = [pipes[position, d] for d in near_first]
            writer.program(
                position, send, [*outgoing, writer.flags[position]], "send", 1
            )
            peers = [pipes[(position - d) % size, d] for d in near_first]
            writer.program(
                position, receive, [*peers, writer.flags[position]], "receive", 0
            )
