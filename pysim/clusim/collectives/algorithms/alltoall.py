"""All-to-all: every rank sends a block to every other.

**Hardware**: NCCL's send/recv kernels under ``ncclAlltoAll``: in each round a rank sends to the
peer ``d`` places on and receives from the one ``d`` places back, sending and receiving in different
warps (``src/enqueue.cc``, ``sendrecv.h``). **Model**: per rank and channel a sending and a
receiving program that go through the peers in rounds; every channel carries a part of every block
and begins with another round, so channels of a rank are with different peers.
**Not modelled**: NCCL's choice of channels per peer. **Parameters**: `Shape`.
"""

from __future__ import annotations

from typing import Any

from clusim.collectives.algorithms.direct import all_hops
from clusim.collectives.entry import algorithm, connect_all
from clusim.schedule.builder import CollectiveWriter
from clusim.schedule.ir import Prim
from clusim.topology.model import Fabric


@algorithm("alltoall", "direct", default=True, channels="p2p", many_peers=True)
def write_alltoall(writer: CollectiveWriter, fabric: Fabric | None) -> None:
    """Write block `d` of source `s` to block `s` of destination `d`, all pairs in rounds."""
    size = writer.size
    for part in writer.parts(blocked=True):
        hops = all_hops(size, part.channel, writer.call.channels)
        send = [Prim("copy", coef=1)]
        send += [Prim("send", send=slot, base=hop, coef=1) for slot, hop in enumerate(hops)]
        receive = [
            Prim("recv", recv=slot, coef=1, dst_base=-hop, dst_coef=1)
            for slot, hop in enumerate(hops)
        ]
        pipes = connect_all(writer, range(size), range(size), part.channel)
        for position in range(size):
            common: dict[str, Any] = {"rotation": position, "nchunks": size, "mode": "blocked"}
            outgoing = [pipes[position, (position + hop) % size] for hop in hops]
            incoming = [pipes[(position - hop) % size, position] for hop in hops]
            writer.program(position, part, send, outgoing, **common)
            writer.program(
                position, part, receive, incoming, sm=0, name="alltoall/receive", **common
            )
