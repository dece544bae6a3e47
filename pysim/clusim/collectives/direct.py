"""Direct exchange between all pairs: one-shot and two-shot all-reduce, all-gather, reduce-scatter.

**Hardware**: the small-message kernels of TensorRT-LLM, vLLM and MSCCL++, and NCCL's
symmetric-memory kernels, in which every GPU talks to every other at once through a full crossbar.
**Model**: per rank and channel a program that sends to all peers in turn, starting with the next
one, and one that receives. All ranks reduce in the order of the group, so every rank gets the same
bits. **Not modelled**: stores to several peers in one instruction loop; the primitives are done one
after another. **Parameters**: `Shape`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from clusim.collectives.common import connect_all
from clusim.fabric.model import Fabric
from clusim.schedule.builder import Part, Plan
from clusim.schedule.ir import Mode, Prim

__all__ = [
    "reduce_in_order",
    "write_all_gather",
    "write_oneshot",
    "write_reduce_scatter",
    "write_twoshot",
]


def others(position: int, size: int) -> list[int]:
    """Return the other positions, starting with the next one."""
    return [(position + hop) % size for hop in range(1, size)]


def reduce_in_order(size: int, position: int, base: int, coef: int) -> list[Prim]:
    """Return primitives that reduce a chunk of all ranks, in group order, into the output.

    The data of rank ``p`` come over connection ``p`` without the own one; the own data are the input.
    """
    prims = []
    for source in range(size):
        slot = source - (source > position)
        if source == position:
            prim = Prim("copy" if source == 0 else "reduce")
        elif source == 0:
            prim = Prim("recvCopy", recv=slot)
        else:
            prim = Prim("recvReduceCopy", recv=slot, src="output")
        prims.append(replace(prim, base=base, coef=coef))
    return prims


def _send_own(
    plan: Plan, part: Part, pipes: dict[tuple[int, int], int], position: int, prim: Prim
) -> None:
    """Write the program that sends to every other position, next first; `prim` says what."""
    targets = others(position, plan.size)
    prims = [replace(prim, send=slot) for slot in range(len(targets))]
    plan.program(position, part, prims, [pipes[position, target] for target in targets])


def write_oneshot(plan: Plan, fabric: Fabric | None) -> None:
    """Write all-reduce in one step: everybody sends everything to everybody and reduces by itself."""
    for part in plan.parts():
        pipes = connect_all(plan, range(plan.size), range(plan.size), part.channel)
        for position in range(plan.size):
            _send_own(plan, part, pipes, position, Prim("send", send=0))
            own = [pipes[source, position] for source in range(plan.size) if source != position]
            prims = reduce_in_order(plan.size, position, 0, 0)
            plan.program(position, part, prims, own, sm=0, name="oneshot/reduce")


def _exchange(plan: Plan, part: Part, mode: Mode, *, gather: bool) -> None:
    """Write a direct reduce-scatter of the chunks, followed by a direct all-gather if asked for."""
    size = plan.size
    first = connect_all(plan, range(size), range(size), part.channel)
    second = connect_all(plan, range(size), range(size), part.channel) if gather else {}
    for position in range(size):
        targets = others(position, size)
        common: dict[str, Any] = {"rotation": position, "nchunks": size, "mode": mode}
        send = [Prim("send", send=slot, base=slot + 1, coef=1) for slot in range(size - 1)]
        plan.program(
            position,
            part,
            send,
            [first[position, peer] for peer in targets],
            name="direct/scatter",
            **common,
        )
        pipes = [first[peer, position] for peer in range(size) if peer != position]
        prims = reduce_in_order(size, position, 0, 1)
        if gather:
            pipes += [second[position, peer] for peer in targets]
            prims += [
                Prim("send", send=size - 1 + slot, coef=1, src="output") for slot in range(size - 1)
            ]
        plan.program(position, part, prims, pipes, name="direct/reduce", sm=0, **common)
        if gather:
            _collect(plan, part, second, position, mode)


def _collect(
    plan: Plan, part: Part, pipes: dict[tuple[int, int], int], position: int, mode: Mode
) -> None:
    """Write the program that receives every other position's chunk, the previous one's first."""
    size = plan.size
    sources = [(position - hop) % size for hop in range(1, size)]
    prims = [Prim("recv", recv=slot, base=-slot - 1, coef=1) for slot in range(size - 1)]
    own = [pipes[source, position] for source in sources]
    plan.program(
        position,
        part,
        prims,
        own,
        rotation=position,
        nchunks=size,
        mode=mode,
        sm=0,
        name="direct/collect",
    )


def write_twoshot(plan: Plan, fabric: Fabric | None) -> None:
    """Write all-reduce in two steps: each rank reduces one chunk of everybody's, then hands it to everybody."""
    for part in plan.parts():
        _exchange(plan, part, "interleaved", gather=True)


def write_reduce_scatter(plan: Plan, fabric: Fabric | None) -> None:
    """Write reduce-scatter in one step."""
    for part in plan.parts(blocked=True):
        _exchange(plan, part, "blocked", gather=False)


def write_all_gather(plan: Plan, fabric: Fabric | None) -> None:
    """Write all-gather in one step."""
    size = plan.size
    for part in plan.parts(blocked=True):
        pipes = connect_all(plan, range(size), range(size), part.channel)
        for position in range(size):
            own: Sequence[int] = [pipes[position, peer] for peer in others(position, size)]
            prims = [Prim("copySend", send=0, coef=1)]
            prims += [Prim("send", send=slot, coef=1) for slot in range(1, size - 1)]
            plan.program(
                position, part, prims, own, rotation=position, nchunks=size, mode="blocked"
            )
            _collect(plan, part, pipes, position, "blocked")
