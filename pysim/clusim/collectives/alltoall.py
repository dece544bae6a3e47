"""All-to-all: every rank sends a block to every other.

**Hardware**: NCCL's send/recv kernels under ``ncclAlltoAll``: in each round a rank sends to the
peer ``d`` places on and receives from the one ``d`` places back, sending and receiving in different
warps (``src/enqueue.cc``, ``sendrecv.h``). **Model**: per rank and channel a sending and a
receiving program that go through the peers in rounds; every channel carries a part of every block.
**Not modelled**: NCCL's choice of channels per peer. **Parameters**: `Shape`.
"""

from __future__ import annotations

from clusim.collectives.common import connect_all
from clusim.fabric.model import Fabric
from clusim.schedule.builder import Plan
from clusim.schedule.ir import Prim

__all__ = ["write_alltoall"]


def write_alltoall(plan: Plan, fabric: Fabric | None) -> None:
    """Write block `d` of source `s` to block `s` of destination `d`, all pairs in rounds."""
    size = plan.size
    hops = range(1, size)
    send = [Prim("copy", coef=1)]
    send += [Prim("send", send=hop - 1, base=hop, coef=1) for hop in hops]
    receive = [Prim("recv", recv=hop - 1, coef=1, dst_base=-hop, dst_coef=1) for hop in hops]
    for part in plan.parts(blocked=True):
        pipes = connect_all(plan, range(size), range(size), part.channel)
        for position in range(size):
            outgoing = [pipes[position, (position + hop) % size] for hop in hops]
            incoming = [pipes[(position - hop) % size, position] for hop in hops]
            plan.program(
                position, part, send, outgoing, rotation=position, nchunks=size, mode="blocked"
            )
            plan.program(
                position,
                part,
                receive,
                incoming,
                rotation=position,
                nchunks=size,
                mode="blocked",
                sm=0,
                name="alltoall/receive",
            )
