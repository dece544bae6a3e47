"""One-shot and two-shot all-reduce with flags in the data, as inference engines have them for small messages.

**Hardware**: the low-latency kernels of TensorRT-LLM, FlashInfer and MSCCL++, which vLLM uses, too: every GPU stores
packets of data and flag (NCCL's LL lines) right into buffers of all its peers and polls its own buffer for theirs.
There is no handshake: the buffers take the whole message, and consecutive calls alternate between two sets.
**Model**: per rank and channel a program that stores each piece to all peers, one fixed cost for all of them, and one
that polls and reduces all peers' pieces in group order. A connection has a slot for every piece, so nobody ever waits
for room. **Not modelled**: buffers that the message exceeds; clearing of the old set of buffers. **Parameters**:
the fabric's protocol ``ll``.
"""

from __future__ import annotations

from clusim.collectives.common import connect_all
from clusim.collectives.direct import (
    all_hops,
    reduce_arrivals,
    reduce_in_order,
    source_order,
)
from clusim.fabric.model import Fabric
from clusim.schedule.builder import Part, Plan
from clusim.schedule.ir import CollectiveCall, Prim
from clusim.schedule.shapes import MAX_SLOTS, Shape

__all__ = ["oneshot_shape", "twoshot_shape", "write_oneshot", "write_twoshot"]

PASS_BYTES = 4096
"""What 512 threads store at once, 8 bytes of data each [bytes]."""


def _shape(call: CollectiveCall, pieces: int) -> Shape:
    """Return the shape for which a channel's part, cut into `pieces` chunks a loop, fits into the slots."""
    part = -(-call.bytes // (16 * call.channels)) * 16
    least = -(-part // (16 * pieces * MAX_SLOTS)) * 16
    return Shape(max(PASS_BYTES, least), slots=MAX_SLOTS)


def oneshot_shape(call: CollectiveCall, fabric: Fabric | None) -> Shape:
    """Return the shape of the one-shot kernel."""
    return _shape(call, 1)


def twoshot_shape(call: CollectiveCall, fabric: Fabric | None) -> Shape:
    """Return the shape of the two-shot kernel, whose ranks own a chunk of every loop each."""
    return _shape(call, len(call.ranks))


def write_oneshot(plan: Plan, fabric: Fabric | None) -> None:
    """Write all-reduce in one step: everybody pushes everything to everybody."""
    size, channels = plan.size, plan.call.channels
    push = [Prim("send", send=slot) for slot in range(size - 1)]
    for part in plan.parts():
        pipes = connect_all(plan, range(size), range(size), part.channel)
        hops = all_hops(size, part.channel, channels)
        order = source_order(size, part.channel, channels)
        for position in range(size):
            out = [pipes[position, (position + hop) % size] for hop in hops]
            plan.program(position, part, push, out, name="oneshot-ll/push", fixed_div=size - 1)
            into = [pipes[peer, position] for peer in order if peer != position]
            poll = reduce_in_order(order, position)
            plan.program(
                position, part, poll, into, sm=0, fixed_div=len(poll), name="oneshot-ll/reduce"
            )


def write_twoshot(plan: Plan, fabric: Fabric | None) -> None:
    """Write all-reduce in two steps: everybody reduces one chunk and pushes the result to everybody."""
    for part in plan.parts():
        first = connect_all(plan, range(plan.size), range(plan.size), part.channel)
        second = connect_all(plan, range(plan.size), range(plan.size), part.channel)
        for position in range(plan.size):
            _two_steps(plan, part, position, first, second)


def _two_steps(
    plan: Plan,
    part: Part,
    position: int,
    first: dict[tuple[int, int], int],
    second: dict[tuple[int, int], int],
) -> None:
    """Write a rank's three programs: push everybody's chunk, reduce the own one and push it, take the results."""
    size, last = plan.size, plan.size - 1
    hops = all_hops(size, part.channel, plan.call.channels)
    ahead = [(position + hop) % size for hop in hops]
    behind = [(position - hop) % size for hop in hops]

    def program(prims: list[Prim], pipes: list[int], name: str, sm: int, shared: int) -> None:
        plan.program(
            position,
            part,
            prims,
            pipes,
            rotation=position,
            nchunks=size,
            sm=sm,
            fixed_div=shared,
            name=f"twoshot-ll/{name}",
        )

    push = [Prim("send", send=slot, base=hop, coef=1) for slot, hop in enumerate(hops)]
    program(push, [first[position, peer] for peer in ahead], "push", 1, last)
    pipes = [first[peer, position] for peer in behind]
    pipes += [second[position, peer] for peer in ahead]
    spread = [Prim("send", send=last + slot, coef=1, src="output") for slot in range(last)]
    program([*reduce_arrivals(last, 0), *spread], pipes, "reduce", 0, last)
    take = [Prim("recv", recv=slot, base=-hop, coef=1) for slot, hop in enumerate(hops)]
    program(take, [second[peer, position] for peer in behind], "take", 0, last)
