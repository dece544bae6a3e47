"""Barrier: no rank leaves before every rank has entered.

**Hardware**: dissemination barrier (Hensgen, Finkel, Manber 1988) over flags in peers' memory, as
NCCL's symmetric kernels use between GPUs. **Model**: in round ``k`` a signal to the rank ``2^k``
positions ahead and a wait for the rank ``2^k`` positions back. **Not modelled**: the flags' packets; flags
have the latency of a header. **Parameters**: the protocol's fixed cost and fences.
"""

from __future__ import annotations

from clusim.collectives.entry import algorithm
from clusim.schedule.collective_writer import CollectiveWriter, Part
from clusim.schedule.ir import Prim
from clusim.topology.model import Fabric


@algorithm("barrier", "dissemination", default=True, drop_channels=False)
def write_barrier(writer: CollectiveWriter, fabric: Fabric | None) -> None:
    """Write ceil(log2 n) rounds of signals on one channel."""
    size = writer.size
    hops = [1 << bit for bit in range((size - 1).bit_length())]
    prims = []
    for index in range(len(hops)):
        prims.append(Prim("signal", send=2 * index, sync=True))
        prims.append(Prim("waitSignal", recv=2 * index + 1, sync=True))
    pipes = {
        (src, hop): writer.connect(src, (src + hop) % size, 0, kind="flag")
        for hop in hops
        for src in range(size)
    }
    for position in range(size):
        used = []
        for hop in hops:
            used += [pipes[position, hop], pipes[(position - hop) % size, hop]]
        writer.program(position, Part(0, 0, 0), prims, used)
