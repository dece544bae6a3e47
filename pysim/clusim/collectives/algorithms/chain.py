"""Chains along a ring: broadcast and reduce as pipelines.

**Hardware**: NCCL's ``broadcast.h`` and ``reduce.h``: the ring is cut before the root and
chunks of one step flow along it. **Model**: the same. **Parameters**: `Shape`, the rings of
`find_rings`.
"""

from __future__ import annotations

from clusim.collectives.entry import algorithm, connect_ring
from clusim.collectives.rings_and_trees import Ways, find_rings
from clusim.schedule.collective_writer import CollectiveWriter
from clusim.schedule.ir import Prim
from clusim.topology.model import Fabric


def _find(writer: CollectiveWriter, fabric: Fabric | None) -> Ways:
    rings = find_rings(fabric, writer.call.ranks, writer.call.channels)
    return Ways(rings, parts=writer.parts())


@algorithm("broadcast", "ring", default=True, growth="steps")
def write_broadcast(
    writer: CollectiveWriter, fabric: Fabric | None, routes: Ways | None = None
) -> None:
    """Write the pipeline from the root along the ring to the root's predecessor."""
    root = writer.call.ranks.index(writer.call.root)
    routes = routes or _find(writer, fabric)
    for part in routes.parts:
        ring = routes.rings[part.route].rotate(root)
        pipes = connect_ring(writer, ring, part.channel)[:-1]
        writer.program(root, part, [Prim("copySend", send=0)], pipes[:1])
        for index, position in enumerate(ring.order[1:-1], 1):
            prims = [Prim("recvCopySend", recv=0, send=1)]
            writer.program(position, part, prims, pipes[index - 1 : index + 1])
        writer.program(ring.order[-1], part, [Prim("recv", recv=0)], pipes[-1:])


@algorithm("reduce", "ring", default=True, growth="steps")
def write_reduce(
    writer: CollectiveWriter, fabric: Fabric | None, routes: Ways | None = None
) -> None:
    """Write the pipeline from the root's successor along the ring to the root."""
    root = writer.call.ranks.index(writer.call.root)
    routes = routes or _find(writer, fabric)
    for part in routes.parts:
        ring = routes.rings[part.route].rotate(root)
        pipes = connect_ring(writer, ring, part.channel)[1:]
        writer.program(ring.order[1], part, [Prim("send", send=0)], pipes[:1])
        for index, position in enumerate(ring.order[2:]):
            prims = [Prim("recvReduceSend", recv=0, send=1)]
            writer.program(position, part, prims, pipes[index : index + 2])
        writer.program(root, part, [Prim("recvReduceCopy", recv=0)], pipes[-1:])
