"""Send and receive, their ring as in nccl-tests, all-to-all, gather and scatter: blocks sent directly.

**Hardware**: NCCL's ``sendrecv.h``: chunks of one step, sending and receiving in different warps of a CTA, a message
spread over several channels. ``ncclAlltoAll`` sends in each round to the peer ``d`` places on and receives from the one
``d`` places back (``src/enqueue.cc``); ``ncclGather`` and ``ncclScatter`` are send/recv between the root and everybody.
**Model**: per rank and channel a sending and a receiving program, which go through the peers in rounds; every channel
carries a part of every block and begins with another round. A root serves its peers in turn, chunk by chunk.
**Not modelled**: NCCL's choice of channels per peer; trees of binomial gathers. **Parameters**: `Shape`.
"""

from __future__ import annotations

from dataclasses import replace

from clusim.collectives.algorithms.direct import Pairs, all_hops
from clusim.collectives.entry import algorithm
from clusim.schedule.collective_writer import CollectiveWriter
from clusim.schedule.ir import Prim
from clusim.topology.model import Fabric

SEND = Prim("send", send=0)
RECV = Prim("recv", recv=0)


@algorithm("send", "direct", default=True, channels="p2p")
def write_send(writer: CollectiveWriter, fabric: Fabric | None) -> None:
    """Write a message from position 0 to position 1."""
    for part in writer.parts():
        pipe = writer.connect(0, 1, part.channel)
        writer.program(0, part, [SEND], [pipe], name="send")
        writer.program(1, part, [RECV], [pipe], name="recv")


@algorithm("sendrecv", "direct", default=True, channels="p2p", growth="steps")
def write_sendrecv(writer: CollectiveWriter, fabric: Fabric | None) -> None:
    """Write everybody's message to the next position."""
    size = writer.size
    for part in writer.parts():
        pipes = [
            writer.connect(src, (src + 1) % size, part.channel)
            for src in range(size)
        ]
        for position in range(size):
            writer.program(position, part, [SEND], [pipes[position]], name="send")
            writer.program(
                position, part, [RECV], [pipes[position - 1]], sm=0, name="recv"
            )


@algorithm(
    "alltoall",
    "direct",
    default=True,
    channels="p2p",
    many_peers=True,
    growth="exchange",
)
def write_alltoall(writer: CollectiveWriter, fabric: Fabric | None) -> None:
    """Write block `d` of source `s` to block `s` of destination `d`, all pairs in rounds."""
    for part in writer.parts(blocked=True):
        pairs = Pairs(writer, part.channel)
        send = [Prim("copy", coef=1), *pairs.sends]
        receive = [
            replace(prim, base=0, dst_base=prim.base, dst_coef=1)
            for prim in pairs.takes
        ]
        for position in range(writer.size):
            out, into = pairs.sent(position), pairs.connections_to(position)
            writer.add_rotated(position, part, send, out, mode="blocked")
            writer.add_rotated(
                position,
                part,
                receive,
                into,
                mode="blocked",
                sm=0,
                name="alltoall/receive",
            )


def _write(writer: CollectiveWriter, *, to_root: bool) -> None:
    root, size = writer.call.ranks.index(writer.call.root), writer.size
    for part in writer.parts(blocked=True):
        pipes = []
        prims = [Prim("copy", coef=1)]
        for slot, hop in enumerate(
            all_hops(size, part.channel, writer.call.channels)
        ):
            peer = (root + hop) % size
            if to_root:
                pipes.append(writer.connect(peer, root, part.channel))
                prims.append(Prim("recv", recv=slot, base=hop, coef=1))
                prim = Prim("send", send=0, coef=1)
            else:
                pipes.append(writer.connect(root, peer, part.channel))
                prims.append(Prim("send", send=slot, base=hop, coef=1))
                prim = Prim("recv", recv=0, coef=1)
            writer.add_rotated(peer, part, [prim], pipes[-1:], mode="blocked")
        writer.add_rotated(root, part, prims, pipes, mode="blocked")


@algorithm(
    "gather",
    "direct",
    default=True,
    channels="p2p",
    many_peers=True,
    growth="exchange",
)
def write_gather(writer: CollectiveWriter, fabric: Fabric | None) -> None:
    """Write every rank's block to the root."""
    _write(writer, to_root=True)


@algorithm(
    "scatter",
    "direct",
    default=True,
    channels="p2p",
    many_peers=True,
    growth="exchange",
)
def write_scatter(writer: CollectiveWriter, fabric: Fabric | None) -> None:
    """Write every rank's block from the root."""
    _write(writer, to_root=False)
