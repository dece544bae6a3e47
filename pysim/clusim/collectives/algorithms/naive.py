"""Textbook all-reduces, the reference for comparisons.

**Hardware**: not used in practice; first exercises of parallel programming. **Model**: messages
are sent undivided, and every rank does one operation at a time. ``naive``: in round ``d`` every rank sends
its vector ``d`` positions ahead, receives the one from ``d`` positions back and adds it; sums of floating-point
numbers differ in their last bits from rank to rank. ``driver``: every rank sends its vector to the first rank,
which adds them one after another and sends the sum back to each. Channels process parts of the vector
concurrently; each begins with another peer. **Not modelled**: pipelining. **Parameters**: channels.
"""

from __future__ import annotations

from itertools import chain

from clusim.collectives.algorithms.direct import Pairs, all_hops
from clusim.collectives.entry import algorithm, message_shape
from clusim.schedule.collective_writer import CollectiveWriter
from clusim.schedule.ir import Buffer, Prim
from clusim.topology.model import Fabric


@algorithm("allreduce", "naive", message_shape)
def write_naive(writer: CollectiveWriter, fabric: Fabric | None) -> None:
    """Write the all-pairs exchange: n-1 rounds of full vectors."""
    size = writer.size
    prims = []
    for number in range(size - 1):
        prims.append(Prim("send", send=2 * number))
        source: Buffer = "output" if number else "input"
        prims.append(Prim("recvReduceCopy", recv=2 * number + 1, src=source))
    for part in writer.parts():
        pairs = Pairs(writer, part.channel)
        for position in range(size):
            both = zip(
                pairs.sent(position), pairs.connections_to(position), strict=True
            )
            writer.program(position, part, prims, tuple(chain(*both)))


@algorithm("allreduce", "driver", message_shape)
def write_driver(writer: CollectiveWriter, fabric: Fabric | None) -> None:
    """Write the reduction at the first position of the group, followed by its broadcast."""
    count = writer.size - 1
    prims = []
    for slot in range(count):
        source: Buffer = "output" if slot else "input"
        prims.append(Prim("recvReduceCopy", recv=slot, src=source))
    prims += [Prim("send", send=count + slot, src="output") for slot in range(count)]
    exchange = [Prim("send", send=0), Prim("recv", recv=1)]
    for part in writer.parts():
        peers = all_hops(writer.size, part.channel, writer.call.channels)
        up = [writer.connect(peer, 0, part.channel) for peer in peers]
        down = [writer.connect(0, peer, part.channel) for peer in peers]
        writer.program(0, part, prims, [*up, *down], name="driver")
        for peer, ends in zip(peers, zip(up, down, strict=True), strict=True):
            writer.program(peer, part, exchange, ends, name="driver/peer")
