"""Recursive halving and doubling (butterfly) all-reduce.

**Hardware**: MPI's Rabenseifner algorithm (Thakur, Rabenseifner, Gropp 2005). **Model**: with ``p``
the largest power of two of ranks, the others first fold their data into a partner; then halves,
quarters, ... are exchanged and reduced, and gathered back in the opposite order; at last the
partners send the result back. One program per rank and channel; sends and receives of a step
alternate chunk by chunk, so FIFOs of one chunk suffice. **Not modelled**: -. **Parameters**:
`Shape`.
"""

from __future__ import annotations

from clusim.fabric.model import Fabric
from clusim.schedule.builder import Part, Plan
from clusim.schedule.ir import Buffer, Prim

__all__ = ["write_allreduce"]


def _half(position: int, distance: int) -> int:
    """Return the first of the `distance` chunks of the half that holds chunk `position`."""
    return position & ~(distance - 1)


def _halve(position: int, distance: int, slots: tuple[int, int], source: Buffer) -> list[Prim]:
    """Send the partner's half chunk by chunk and reduce the own one."""
    theirs, own = _half(position ^ distance, distance), _half(position, distance)
    prims = []
    for chunk in range(distance):
        prims.append(Prim("send", send=slots[0], base=theirs + chunk, src=source))
        prims.append(Prim("recvReduceCopy", recv=slots[1], base=own + chunk, src=source))
    return prims


def _double(position: int, distance: int, slots: tuple[int, int]) -> list[Prim]:
    """Send the own half chunk by chunk and receive the partner's."""
    theirs, own = _half(position ^ distance, distance), _half(position, distance)
    prims = []
    for chunk in range(distance):
        prims.append(Prim("send", send=slots[0], base=own + chunk, src="output"))
        prims.append(Prim("recv", recv=slots[1], base=theirs + chunk))
    return prims


def _core(
    plan: Plan,
    part: Part,
    position: int,
    pipes: dict[tuple[int, int], int],
    fold: tuple[int, int] | None,
) -> None:
    """Write a core position's program; `fold` are the connections from and to its extra rank, if any."""
    distances = sorted({distance for _, distance in pipes})
    used: list[int] = []
    slots = {}
    for distance in distances:
        used += [pipes[position, distance], pipes[position ^ distance, distance]]
        slots[distance] = (len(used) - 2, len(used) - 1)
    chunks = 1 << len(distances)
    prims: list[Prim] = []
    if fold is not None:
        prims.append(Prim("recvReduceCopy", recv=len(used), step=1, repeat=chunks))
    source: Buffer = "input" if fold is None else "output"
    for distance in reversed(distances):
        prims += _halve(position, distance, slots[distance], source)
        source = "output"
    for distance in distances:
        prims += _double(position, distance, slots[distance])
    if fold is not None:
        prims.append(Prim("send", send=len(used) + 1, step=1, repeat=chunks, src="output"))
    plan.program(position, part, prims, [*used, *(fold or ())], nchunks=chunks)


def write_allreduce(plan: Plan, fabric: Fabric | None) -> None:
    """Write folding, halving, doubling and unfolding for any number of ranks."""
    core = 1 << (plan.size.bit_length() - 1)
    distances = [1 << bit for bit in range(core.bit_length() - 1)]
    for part in plan.parts():
        channel = part.channel
        pipes = {
            (position, distance): plan.connect(position, position ^ distance, channel)
            for distance in distances
            for position in range(core)
        }
        for position in range(core):
            fold = None
            extra = position + core
            if extra < plan.size:
                fold = (
                    plan.connect(extra, position, channel),
                    plan.connect(position, extra, channel),
                )
                prims = [
                    Prim("send", send=0, step=1, repeat=core),
                    Prim("recv", recv=1, step=1, repeat=core),
                ]
                plan.program(extra, part, prims, fold, nchunks=core, name="butterfly/extra")
            _core(plan, part, position, pipes, fold)
