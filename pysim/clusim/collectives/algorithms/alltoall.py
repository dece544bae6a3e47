"""All-to-all: every rank sends a block to every other.

**Hardware**: NCCL's send/recv kernels under ``ncclAlltoAll``: in each round a rank sends to the
peer ``d`` places on and receives from the one ``d`` places back, sending and receiving in different
warps (``src/enqueue.cc``, ``sendrecv.h``). **Model**: per rank and channel a sending and a
receiving program that go through the peers in rounds; every channel carries a part of every block
and begins with another round, so channels of a rank are with different peers.
**Not modelled**: NCCL's choice of channels per peer. **Parameters**: `Shape`.
"""

from __future__ import annotations

from dataclasses import replace

from clusim.collectives.algorithms.direct import Pairs
from clusim.collectives.entry import algorithm
from clusim.schedule.builder import CollectiveWriter
from clusim.schedule.ir import Prim
from clusim.topology.model import Fabric


@algorithm("alltoall", "direct", default=True, channels="p2p", many_peers=True, growth="exchange")
def write_alltoall(writer: CollectiveWriter, fabric: Fabric | None) -> None:
    """Write block `d` of source `s` to block `s` of destination `d`, all pairs in rounds."""
    for part in writer.parts(blocked=True):
        pairs = Pairs(writer, part.channel)
        send = [Prim("copy", coef=1), *pairs.sends]
        receive = [replace(prim, base=0, dst_base=prim.base, dst_coef=1) for prim in pairs.takes]
        for position in range(writer.size):
            out, into = pairs.sent(position), pairs.received(position)
            writer.rotated(position, part, send, out, mode="blocked")
            writer.rotated(
                position, part, receive, into, mode="blocked", sm=0, name="alltoall/receive"
            )
