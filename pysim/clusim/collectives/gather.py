"""Gather and scatter: blocks of all ranks to, or from, one root, directly.

**Hardware**: NCCL builds ``ncclGather`` and ``ncclScatter`` from send/recv between the root and
everybody. **Model**: one program per rank and channel; the root serves its peers in turn, chunk by
chunk, and begins with another one on every channel. **Not modelled**: trees of binomial gathers.
**Parameters**: `Shape`.
"""

from __future__ import annotations

from clusim.collectives.direct import all_hops
from clusim.schedule.builder import Plan
from clusim.schedule.ir import Prim
from clusim.topology.model import Fabric


def _write(plan: Plan, *, to_root: bool) -> None:
    root, size = plan.call.ranks.index(plan.call.root), plan.size
    for part in plan.parts(blocked=True):
        pipes = []
        prims = [Prim("copy", coef=1)]
        for slot, hop in enumerate(all_hops(size, part.channel, plan.call.channels)):
            peer = (root + hop) % size
            if to_root:
                pipes.append(plan.connect(peer, root, part.channel))
                prims.append(Prim("recv", recv=slot, base=hop, coef=1))
                own = Prim("send", send=0, coef=1)
            else:
                pipes.append(plan.connect(root, peer, part.channel))
                prims.append(Prim("send", send=slot, base=hop, coef=1))
                own = Prim("recv", recv=0, coef=1)
            plan.program(peer, part, [own], pipes[-1:], rotation=peer, nchunks=size, mode="blocked")
        plan.program(root, part, prims, pipes, rotation=root, nchunks=size, mode="blocked")


def write_gather(plan: Plan, fabric: Fabric | None) -> None:
    """Write every rank's block to the root."""
    _write(plan, to_root=True)


def write_scatter(plan: Plan, fabric: Fabric | None) -> None:
    """Write every rank's block from the root."""
    _write(plan, to_root=False)
