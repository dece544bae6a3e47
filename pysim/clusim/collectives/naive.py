"""The textbook all-reduces that everything else is compared with.

**Hardware**: none does it this way; first exercises of parallel programming do. **Model**: messages
are sent whole, and every rank does one thing at a time. ``naive``: in round ``d`` everybody sends
its whole vector ``d`` places on, receives the one from ``d`` places back and adds it; sums of floating-point
numbers differ in their last bits from rank to rank. ``driver``: everybody sends its vector to the first rank,
which adds them one after another and sends the sum back to each. Channels are parts of the vector that are worked on
side by side; each begins with another peer. **Not modelled**: pipelining. **Parameters**: channels.
"""

from __future__ import annotations

from clusim.collectives.common import connect_all
from clusim.collectives.direct import all_hops
from clusim.schedule.builder import Plan
from clusim.schedule.ir import Buffer, Prim
from clusim.topology.model import Fabric


def write_naive(plan: Plan, fabric: Fabric | None) -> None:
    """Write the all-pairs exchange: n-1 rounds of whole vectors."""
    size = plan.size
    prims = []
    for number in range(size - 1):
        prims.append(Prim("send", send=2 * number))
        source: Buffer = "output" if number else "input"
        prims.append(Prim("recvReduceCopy", recv=2 * number + 1, src=source))
    for part in plan.parts():
        hops = all_hops(size, part.channel, plan.call.channels)
        pipes = connect_all(plan, range(size), range(size), part.channel)
        for position in range(size):
            own = []
            for hop in hops:
                own.append(pipes[position, (position + hop) % size])
                own.append(pipes[(position - hop) % size, position])
            plan.program(position, part, prims, own)


def write_driver(plan: Plan, fabric: Fabric | None) -> None:
    """Write the reduction at the first position of the group, followed by its broadcast."""
    count = plan.size - 1
    prims = []
    for slot in range(count):
        source: Buffer = "output" if slot else "input"
        prims.append(Prim("recvReduceCopy", recv=slot, src=source))
    prims += [Prim("send", send=count + slot, src="output") for slot in range(count)]
    own = [Prim("send", send=0), Prim("recv", recv=1)]
    for part in plan.parts():
        peers = all_hops(plan.size, part.channel, plan.call.channels)
        up = [plan.connect(peer, 0, part.channel) for peer in peers]
        down = [plan.connect(0, peer, part.channel) for peer in peers]
        plan.program(0, part, prims, [*up, *down], name="driver")
        for peer, ends in zip(peers, zip(up, down, strict=True), strict=True):
            plan.program(peer, part, own, ends, name="driver/peer")
