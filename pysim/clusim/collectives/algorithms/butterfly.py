"""Recursive halving and doubling (butterfly) all-reduce.

**Hardware**: MPI's Rabenseifner algorithm (Thakur, Rabenseifner, Gropp 2005). **Model**: with ``p``
the largest power of two of ranks, the others first fold their data into a partner; then halves,
quarters, ... are exchanged and reduced, and gathered back in the opposite order; at last the
partners send the result back. One program per rank, channel and step: it sends its part and receives
the partner's, each in one primitive, and hands over to the next step by a flag, so that loops follow each
other through the steps. Each channel begins with another dimension and folds into other partners, so
that the links of a mesh share the halves. **Not modelled**: the cost of those flags, which stay inside
the rank. **Parameters**: `Shape`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from clusim.base.records import dataclass
from clusim.collectives.entry import algorithm, in_turn
from clusim.schedule.collective_writer import CollectiveWriter, Part
from clusim.schedule.ir import Buffer, Prim
from clusim.topology.model import Fabric

ALIGN = 16
"""Smallest parts are multiples of this [bytes]."""


@dataclass(frozen=True, slots=True)
class _Cube:
    """One channel: ``members[label]`` is the position that plays a label of the cube, and ends with that part.

    `fine` is the size of the smallest part in a loop [bytes].
    """

    writer: CollectiveWriter
    part: Part
    members: list[int]
    fine: int

    def program(
        self,
        position: int,
        prims: list[Prim],
        pipes: Sequence[int],
        parts: int,
        **fields: Any,
    ) -> None:
        """Add a program for a position whose loops are divided into the given number of chunks; flags are free."""
        coarse = len(self.members) // parts
        self.writer.program(
            position,
            self.part,
            prims,
            pipes,
            nchunks=parts,
            chunk_bytes=self.fine * coarse,
            align=ALIGN * coarse,
            fixed_div=2 if any(prim.sync for prim in prims) else 1,
            **fields,
        )

    def exchange(
        self, label: int, distance: int, step: tuple[int, int], pipes: list[int]
    ) -> None:
        """Write step `step[0]` of `step[1]`; `pipes` are to and from the partner, then flags in and out."""
        number, count = step
        parts = len(self.members) // distance
        half, theirs = label // distance, (label // distance) ^ 1
        halving = number < count // 2
        source: Buffer = "input" if pipes[2] < 0 and halving else "output"
        if halving:
            prims = [
                Prim("send", send=0, base=theirs, src=source),
                Prim("recvReduceCopy", recv=1, base=half, src=source),
            ]
        else:
            prims = [
                Prim("send", send=0, base=half, src="output"),
                Prim("recv", recv=1, base=theirs),
            ]
        used = pipes[:2]
        if pipes[2] >= 0:
            prims.insert(0, Prim("waitSignal", recv=len(used), sync=True))
            used.append(pipes[2])
        if pipes[3] >= 0:
            prims.append(Prim("signal", send=len(used), sync=True))
            used.append(pipes[3])
        self.program(self.members[label], prims, used, parts, sm=int(number == 0))

    def fold(self, extra: int, partner: int, flags: tuple[int, int]) -> None:
        """Write the ways of an extra position's data to its partner and back."""
        into, back = (
            self.writer.connect(*ends, self.part.channel)
            for ends in ((extra, partner), (partner, extra))
        )
        pair = [Prim("send", send=0), Prim("recv", recv=1)]
        self.program(extra, pair, (into, back), 1, name="butterfly/extra")
        prims = [Prim("recvReduceCopy", recv=0), Prim("signal", send=1, sync=True)]
        self.program(
            partner, prims, (into, flags[0]), 1, sm=0, name="butterfly/fold"
        )
        prims = [
            Prim("waitSignal", recv=1, sync=True),
            Prim("send", send=0, src="output"),
        ]
        self.program(
            partner, prims, (back, flags[1]), 1, sm=0, name="butterfly/unfold"
        )


def _members(bits: int, first: int) -> list[int]:
    """Return the position of every label: the bits of a label turned by `first` places."""
    mask = (1 << bits) - 1
    return [
        (label << first | label >> (bits - first)) & mask
        for label in range(1 << bits)
    ]


def _write(cube: _Cube, extras: dict[int, int]) -> None:
    """Write a channel's programs; `extras` are the positions that fold into others, by their partner."""
    writer, channel, members = cube.writer, cube.part.channel, cube.members
    halves = [1 << bit for bit in range(len(members).bit_length() - 1)]
    distances = [*reversed(halves), *halves]
    count = len(distances)
    pipes = [
        [
            writer.connect(position, members[label ^ distance], channel)
            for label, position in enumerate(members)
        ]
        for distance in distances
    ]
    for label, position in enumerate(members):
        folds = position in extras
        flags = [-1] * (count + 1)
        for number in range(0 if folds else 1, count + folds):
            flags[number] = writer.connect(position, position, channel, kind="flag")
        if folds:
            cube.fold(extras[position], position, (flags[0], flags[count]))
        for number, distance in enumerate(distances):
            both = pipes[number]
            ends = [both[label], both[label ^ distance], *flags[number : number + 2]]
            cube.exchange(label, distance, (number, count), ends)


@algorithm("allreduce", "butterfly", channels="twoshot", many_peers=True)
def write_allreduce(writer: CollectiveWriter, fabric: Fabric | None) -> None:
    """Write folding, halving, doubling and unfolding for any number of ranks."""
    bits = writer.size.bit_length() - 1
    count, channels = 1 << bits, writer.call.channels
    extras = range(count, writer.size)
    largest = writer.shape.chunk_bytes // (count if extras else count // 2)
    fine = max(ALIGN, largest // ALIGN * ALIGN)
    for part in writer.parts():
        members = _members(bits, in_turn(bits, part.channel, channels)[0])
        partners = in_turn(count, part.channel, channels)
        _write(
            _Cube(writer, part, members, fine),
            dict(zip(partners, extras, strict=False)),
        )
