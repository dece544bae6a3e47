"""Direct exchange between all pairs: one-shot and two-shot all-reduce, all-gather, reduce-scatter.

**Hardware**: the small-message kernels of TensorRT-LLM, vLLM and MSCCL++, and NCCL's
symmetric-memory kernels, in which every GPU communicates with all others at once through a full crossbar.
**Model**: per rank and channel a program that sends to all peers in turn, and one that receives in
the order in which the peers send. Each channel begins with another peer, so all links of a mesh work
at the same time. A chunk that one rank reduces for all (two-shot, reduce-scatter) is reduced in that
order, the order of arrival. In a one-shot every rank reduces the complete vector. All ranks use the same order,
which begins with another rank in every channel, so all results are bit-identical. **Not modelled**:
stores to several peers in one instruction loop; the primitives are executed one after another.
**Parameters**: `Shape`.

Orders are fixed by rank, channel and number of channels: a run is repeatable to the bit, but sums of floating-point
numbers differ in their last bits between algorithms, numbers of channels and sizes.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from clusim.collectives.entry import algorithm, connect_all, in_turn
from clusim.schedule.collective_writer import CollectiveWriter, Part
from clusim.schedule.ir import Buffer, Mode, Prim
from clusim.topology.model import Fabric


def all_hops(size: int, channel: int, channels: int) -> list[int]:
    """Return the distances to all other positions, in the order in which a channel visits them."""
    return [1 + index for index in in_turn(size - 1, channel, channels)]


class Pairs:
    """Connections between all pairs of ranks on a channel, in the order in which it visits the peers of a rank.

    Attributes
    ----------
    hops : list of int
        Distances to the peers in this order.
    sends, takes : tuple of Prim
        Primitives that send every peer its chunk, and that receive the chunk of every peer.
    """

    def __init__(
        self, writer: CollectiveWriter, channel: int, **fields: Any
    ) -> None:
        every = range(writer.size)
        self.size = writer.size
        self.hops = all_hops(writer.size, channel, writer.call.channels)
        self.pipes = connect_all(writer, every, every, channel, **fields)
        slots = list(enumerate(self.hops))
        self.sends = tuple(
            Prim("send", send=slot, base=hop, coef=1) for slot, hop in slots
        )
        self.takes = tuple(
            Prim("recv", recv=slot, base=-hop, coef=1) for slot, hop in slots
        )

    def sent(self, position: int) -> list[int]:
        """Return the connections from a position to its peers."""
        return [
            self.pipes[position, (position + hop) % self.size] for hop in self.hops
        ]

    def connections_to(self, position: int) -> list[int]:
        """Return the connections to a position from the peers that send to it in this order."""
        return [
            self.pipes[(position - hop) % self.size, position] for hop in self.hops
        ]


def source_order(size: int, channel: int, channels: int) -> list[int]:
    """Return all positions in the order in which every rank reduces their data on a channel."""
    return in_turn(size, channel, channels)


def reduce_in_order(order: list[int], position: int) -> list[Prim]:
    """Return primitives that reduce a chunk of all ranks, in a given order, into the output.

    Data of the other ranks arrive over connections 0, 1, ... in the same order; the local data are the input.
    """
    place = order.index(position)
    prims = []
    if place > 1:
        prims.append(Prim("recvCopy", recv=0))
    source: Buffer = "output" if place > 1 else "input"
    for slot in range(len(prims), len(order) - 1):
        if slot == place > 1:
            prims.append(Prim("reduce"))
        prims.append(Prim("recvReduceCopy", recv=slot, src=source))
        source = "output"
    if place == len(order) - 1 > 1:
        prims.append(Prim("reduce"))
    return prims


def reduce_arrivals(count: int, base: int, send: int | None = None) -> list[Prim]:
    """Return primitives that add data of connections 0 .. `count` - 1 to the local data, in this order.

    With `send` the last primitive also sends the result over that connection.
    """
    prims = []
    for slot in range(count):
        source: Buffer = "output" if slot else "input"
        if send is not None and slot == count - 1:
            prims.append(
                Prim(
                    "recvReduceCopySend",
                    recv=slot,
                    send=send,
                    base=base,
                    coef=1,
                    src=source,
                )
            )
        else:
            prims.append(
                Prim("recvReduceCopy", recv=slot, base=base, coef=1, src=source)
            )
    return prims


def send_own(count: int) -> list[Prim]:
    """Return primitives that send the local chunk over connections 0 .. `count` - 1 and copy it to the output."""
    first = Prim("copySend", send=0, coef=1)
    return [first, *(Prim("send", send=slot, coef=1) for slot in range(1, count))]


@algorithm("allreduce", "oneshot", many_peers=True)
def write_oneshot(writer: CollectiveWriter, fabric: Fabric | None) -> None:
    """Write all-reduce in one step: every rank sends its vector to all others and reduces all vectors."""
    send = [Prim("send", send=slot) for slot in range(writer.size - 1)]
    for part in writer.parts():
        pairs = Pairs(writer, part.channel)
        order = source_order(writer.size, part.channel, writer.call.channels)
        for position in range(writer.size):
            writer.program(
                position, part, send, pairs.sent(position), name="oneshot/send"
            )
            into = [
                pairs.pipes[source, position]
                for source in order
                if source != position
            ]
            prims = reduce_in_order(order, position)
            writer.program(position, part, prims, into, sm=0, name="oneshot/reduce")


def _exchange(
    writer: CollectiveWriter, part: Part, mode: Mode, *, gather: bool
) -> None:
    """Write a direct reduce-scatter of the chunks, with `gather` followed by a direct all-gather."""
    last = writer.size - 1
    first = Pairs(writer, part.channel)
    second = Pairs(writer, part.channel) if gather else None
    reduce = reduce_arrivals(last, 0, last if gather else None)
    if gather:
        spread = Prim("send", send=last, coef=1, src="output")
        reduce += [replace(spread, send=last + slot) for slot in range(1, last)]
    for position in range(writer.size):
        common: dict[str, Any] = {"mode": mode}
        out = first.sent(position)
        writer.add_rotated(
            position, part, first.sends, out, name="direct/scatter", **common
        )
        pipes = first.connections_to(position) + (
            second.sent(position) if second else []
        )
        writer.add_rotated(
            position, part, reduce, pipes, name="direct/reduce", sm=0, **common
        )
        if second:
            _collect(writer, part, second, position, mode)


def _collect(
    writer: CollectiveWriter, part: Part, pairs: Pairs, position: int, mode: Mode
) -> None:
    """Write the program that receives every other position's chunk in the order in which they send."""
    incoming = pairs.connections_to(position)
    writer.add_rotated(
        position, part, pairs.takes, incoming, mode=mode, sm=0, name="direct/collect"
    )


@algorithm("allreduce", "twoshot", many_peers=True, growth="exchange")
def write_twoshot(writer: CollectiveWriter, fabric: Fabric | None) -> None:
    """Write all-reduce in two steps: each rank reduces one chunk of everybody's, then hands it to everybody."""
    for part in writer.parts():
        _exchange(writer, part, "interleaved", gather=True)


@algorithm("reduce_scatter", "direct", many_peers=True, growth="exchange")
def write_reduce_scatter(writer: CollectiveWriter, fabric: Fabric | None) -> None:
    """Write reduce-scatter in one step."""
    for part in writer.parts(blocked=True):
        _exchange(writer, part, "blocked", gather=False)


@algorithm("all_gather", "direct", many_peers=True, growth="exchange")
def write_all_gather(writer: CollectiveWriter, fabric: Fabric | None) -> None:
    """Write all-gather in one step."""
    prims = send_own(writer.size - 1)
    for part in writer.parts(blocked=True):
        pairs = Pairs(writer, part.channel)
        for position in range(writer.size):
            writer.add_rotated(
                position, part, prims, pairs.sent(position), mode="blocked"
            )
            _collect(writer, part, pairs, position, "blocked")
