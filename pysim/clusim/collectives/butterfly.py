"""Recursive halving and doubling (butterfly) all-reduce.

**Hardware**: MPI's Rabenseifner algorithm (Thakur, Rabenseifner, Gropp 2005). **Model**: with ``p``
the largest power of two of ranks, the others first fold their data into a partner; then halves,
quarters, ... are exchanged and reduced, and gathered back in the opposite order; at last the
partners send the result back. One program per rank and channel. In a step a rank sends as many chunks as
the FIFO holds before it receives the first, so up to twice as many ranks as there are slots take two steps per
doubling of their number. Each channel begins with another dimension and folds into another partner,
so the links of a mesh share the halves. **Not modelled**: -. **Parameters**: `Shape`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from clusim.collectives.common import in_turn
from clusim.fabric.model import Fabric
from clusim.schedule.builder import Part, Plan
from clusim.schedule.ir import Buffer, Prim
from clusim.schedule.shapes import MAX_SLOTS, Shape

__all__ = ["butterfly_shape", "write_allreduce"]


def butterfly_shape(shape: Shape, size: int) -> Shape:
    """Return a shape whose FIFO, as large as that of `shape`, holds the largest half of a loop, if slots allow it."""
    chunks = 1 << max(0, size.bit_length() - 2)
    per_chunk = shape.slices * shape.slots_per_slice
    slots = min(MAX_SLOTS // per_chunk, chunks) * per_chunk
    if slots <= shape.slots:
        return shape
    return replace(shape.with_chunk(shape.chunk_bytes * shape.slots // slots), slots=slots)


class _Core(NamedTuple):
    """The power of two of ranks of one channel: `members[label]` is the position that plays a label of the cube."""

    members: list[int]
    window: int

    @property
    def distances(self) -> list[int]:
        """Return the distances of labels, nearest first."""
        return [1 << bit for bit in range(len(self.members).bit_length() - 1)]


def _half(label: int, distance: int) -> int:
    """Return the first of the `distance` chunks of the half that holds chunk `label`."""
    return label & ~(distance - 1)


def _step(send: Prim, receive: Prim, distance: int, window: int) -> list[Prim]:
    """Return the exchange of `distance` chunks in which sends are ahead of receives by what the FIFO holds."""
    ahead = min(window, distance)
    prims = [replace(send, step=1, repeat=ahead)]
    for chunk in range(distance - ahead):
        prims.append(replace(receive, base=receive.base + chunk))
        prims.append(replace(send, base=send.base + ahead + chunk))
    first = receive.base + distance - ahead
    return [*prims, replace(receive, base=first, step=1, repeat=ahead)]


def _exchanges(label: int, core: _Core, source: Buffer) -> list[Prim]:
    """Return halving and doubling; connections `2i` and `2i + 1` go to and come from the partner at distance `i`."""
    prims: list[Prim] = []
    for index, distance in reversed(list(enumerate(core.distances))):
        send = Prim("send", send=2 * index, base=_half(label ^ distance, distance), src=source)
        base = _half(label, distance)
        receive = Prim("recvReduceCopy", recv=2 * index + 1, base=base, src=source)
        prims += _step(send, receive, distance, core.window)
        source = "output"
    for index, distance in enumerate(core.distances):
        send = Prim("send", send=2 * index, base=_half(label, distance), src="output")
        receive = Prim("recv", recv=2 * index + 1, base=_half(label ^ distance, distance))
        prims += _step(send, receive, distance, core.window)
    return prims


def _write_core(plan: Plan, part: Part, core: _Core, folds: dict[int, tuple[int, int]]) -> None:
    """Write the programs of the core; `folds` are the connections from and to an extra rank, by position."""
    members, chunks = core.members, len(core.members)
    pipes = {
        (label, distance): plan.connect(members[label], members[label ^ distance], part.channel)
        for distance in core.distances
        for label in range(chunks)
    }
    for label, position in enumerate(members):
        own: list[int] = []
        for distance in core.distances:
            own += [pipes[label, distance], pipes[label ^ distance, distance]]
        fold = folds.get(position, ())
        prims = _exchanges(label, core, "output" if fold else "input")
        if fold:
            into = Prim("recvReduceCopy", recv=len(own), step=1, repeat=chunks)
            back = Prim("send", send=len(own) + 1, step=1, repeat=chunks, src="output")
            prims = [into, *prims, back]
        plan.program(position, part, prims, [*own, *fold], nchunks=chunks)


def _members(bits: int, first: int) -> list[int]:
    """Return the position of every label: the bits of a label turned by `first` places."""
    mask = (1 << bits) - 1
    return [(label << first | label >> (bits - first)) & mask for label in range(1 << bits)]


def write_allreduce(plan: Plan, fabric: Fabric | None) -> None:
    """Write folding, halving, doubling and unfolding for any number of ranks."""
    bits = plan.size.bit_length() - 1
    count, shape = 1 << bits, plan.shape
    window = max(1, shape.slots // (shape.slices * shape.slots_per_slice))
    whole = [Prim("send", send=0, step=1, repeat=count), Prim("recv", recv=1, step=1, repeat=count)]
    for part in plan.parts():
        channel = part.channel
        core = _Core(_members(bits, in_turn(bits, channel, plan.call.channels)[0]), window)
        partners = in_turn(count, channel, plan.call.channels)
        folds = {}
        for extra, partner in zip(range(count, plan.size), partners, strict=False):
            fold = (plan.connect(extra, partner, channel), plan.connect(partner, extra, channel))
            plan.program(extra, part, whole, fold, nchunks=count, name="butterfly/extra")
            folds[partner] = fold
        _write_core(plan, part, core, folds)
