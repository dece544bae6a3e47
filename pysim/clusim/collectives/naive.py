"""The textbook all-reduces that everything else is compared with.

**Hardware**: none does it this way; first exercises of parallel programming do. **Model**: messages
are sent whole, and every rank does one thing at a time. ``naive``: in round ``d`` everybody sends
its whole vector ``d`` places on, receives the one from ``d`` places back and adds it. ``driver``:
everybody sends its vector to the first rank, which adds them one after another and sends the sum
back to each. **Not modelled**: pipelining. **Parameters**: channels (parts of the vector that are
worked on side by side).
"""

from __future__ import annotations

from clusim.fabric.model import Fabric
from clusim.schedule.builder import Plan
from clusim.schedule.ir import Buffer, Prim

__all__ = ["write_driver", "write_naive"]


def write_naive(plan: Plan, fabric: Fabric | None) -> None:
    """Write the all-pairs exchange: n-1 rounds of whole vectors."""
    size = plan.size
    prims = []
    for hop in range(1, size):
        prims.append(Prim("send", send=2 * hop - 2))
        prims.append(
            Prim("recvReduceCopy", recv=2 * hop - 1, src="input" if hop == 1 else "output")
        )
    for part in plan.parts():
        pipes = {
            (src, hop): plan.connect(src, (src + hop) % size, part.channel)
            for hop in range(1, size)
            for src in range(size)
        }
        for position in range(size):
            own = []
            for hop in range(1, size):
                own += [pipes[position, hop], pipes[(position - hop) % size, hop]]
            plan.program(position, part, prims, own)


def write_driver(plan: Plan, fabric: Fabric | None) -> None:
    """Write the reduction at the first position of the group, followed by its broadcast."""
    peers = range(1, plan.size)
    for part in plan.parts():
        up = [plan.connect(peer, 0, part.channel) for peer in peers]
        down = [plan.connect(0, peer, part.channel) for peer in peers]
        prims = []
        for slot in range(len(up)):
            source: Buffer = "input" if slot == 0 else "output"
            prims.append(Prim("recvReduceCopy", recv=slot, src=source))
        prims += [Prim("send", send=len(up) + slot, src="output") for slot in range(len(down))]
        plan.program(0, part, prims, [*up, *down], name="driver")
        for peer in peers:
            own = [Prim("send", send=0), Prim("recv", recv=1)]
            plan.program(peer, part, own, [up[peer - 1], down[peer - 1]], name="driver/peer")
