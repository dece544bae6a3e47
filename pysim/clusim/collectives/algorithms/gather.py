"""Gather and scatter: blocks of all ranks to, or from, one root, directly.

**Hardware**: NCCL builds ``ncclGather`` and ``ncclScatter`` from send/recv between the root and
everybody. **Model**: one program per rank and channel; the root serves its peers in turn, chunk by
chunk, and begins with another one on every channel. **Not modelled**: trees of binomial gathers.
**Parameters**: `Shape`.
"""

from __future__ import annotations

from clusim.collectives.algorithms.direct import all_hops
from clusim.collectives.entry import algorithm
from clusim.schedule.builder import CollectiveWriter
from clusim.schedule.ir import Prim
from clusim.topology.model import Fabric


def _write(writer: CollectiveWriter, *, to_root: bool) -> None:
    root, size = writer.call.ranks.index(writer.call.root), writer.size
    for part in writer.parts(blocked=True):
        pipes = []
        prims = [Prim("copy", coef=1)]
        for slot, hop in enumerate(all_hops(size, part.channel, writer.call.channels)):
            peer = (root + hop) % size
            if to_root:
                pipes.append(writer.connect(peer, root, part.channel))
                prims.append(Prim("recv", recv=slot, base=hop, coef=1))
                prim = Prim("send", send=0, coef=1)
            else:
                pipes.append(writer.connect(root, peer, part.channel))
                prims.append(Prim("send", send=slot, base=hop, coef=1))
                prim = Prim("recv", recv=0, coef=1)
            writer.rotated(peer, part, [prim], pipes[-1:], mode="blocked")
        writer.rotated(root, part, prims, pipes, mode="blocked")


@algorithm("gather", "direct", default=True, channels="p2p", many_peers=True, growth="exchange")
def write_gather(writer: CollectiveWriter, fabric: Fabric | None) -> None:
    """Write every rank's block to the root."""
    _write(writer, to_root=True)


@algorithm("scatter", "direct", default=True, channels="p2p", many_peers=True, growth="exchange")
def write_scatter(writer: CollectiveWriter, fabric: Fabric | None) -> None:
    """Write every rank's block from the root."""
    _write(writer, to_root=False)
