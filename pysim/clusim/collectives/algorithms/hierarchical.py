"""Hierarchical all-reduce: reduce inside nodes, rings between nodes, all-gather inside nodes.

**Hardware**: the two-level schemes of Horovod, BlueConnect and Megatron on clusters whose nodes have a full crossbar
inside: GPU ``l`` of every node owns part ``l`` of the data, so that each part crosses the network over its own rail.
**Model**: per channel and rank five programs: scatter and reduce (a direct reduce-scatter inside the node), a ring
all-reduce over the GPUs with the same number in all nodes, spread and collect (a direct all-gather). Flags
synchronise them, so that chunks of one loop are in all stages at once. **Not modelled**: rings inside nodes without
a full crossbar; the direct exchange uses the available paths. **Parameters**: `Shape`, the rails of the ranks.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from clusim.collectives.algorithms.direct import all_hops, reduce_arrivals
from clusim.collectives.entry import algorithm
from clusim.collectives.machines import even_layout
from clusim.schedule.collective_writer import CollectiveWriter, Part
from clusim.schedule.ir import ABSENT, Prim
from clusim.topology.model import Fabric


class Local:
    """The direct exchange inside one node, of one channel; chunk ``l*pieces + k`` is piece `k` of part `l`.

    Attributes
    ----------
    positions : list of int
        The node's positions; their index is `l`.
    pieces : int
        Pieces of a part, which pass in the order `order`.
    hops : list of int
        Distances to the node's other ranks, in the order in which they are visited.
    """

    def __init__(
        self,
        writer: CollectiveWriter,
        part: Part,
        positions: list[int],
        pieces: int,
        order: list[int],
    ) -> None:
        self.writer, self.part, self.positions = writer, part, positions
        self.pieces, self.order, self.size = pieces, order, len(positions)
        self.hops = all_hops(self.size, part.channel, writer.call.channels)

    def share_template(self, name: str, make: Callable[[], list[Prim]]) -> int:
        """Return the template called `name`; ranks, nodes and channels with the same hops share it."""
        key = (name, *self.hops, -1, *self.order)
        return self.writer.builder.shared_template(key, name, make, self.nchunks)

    @property
    def nchunks(self) -> int:
        """Chunks of a loop."""
        return self.size * self.pieces

    def program(
        self, index: int, prims: int, pipes: list[int], name: str, *, sm: int = 0
    ) -> None:
        """Add a program for rank `index` of the node, from a template with chunk numbers relative to its part."""
        self.writer.program(
            self.positions[index],
            self.part,
            prims,
            pipes,
            rotation=index * self.pieces,
            nchunks=self.nchunks,
            name=name,
            sm=sm,
        )

    def connect(self) -> dict[tuple[int, int], int]:
        """Return a connection for every ordered pair of the node's ranks."""
        positions = self.positions
        return {
            (a, b): self.writer.connect(
                positions[a], positions[b], self.part.channel
            )
            for a in range(self.size)
            for b in range(self.size)
            if a != b
        }

    def flag(self, index: int) -> int:
        """Return a flag connection of a rank to itself, between two of its programs."""
        position = self.positions[index]
        return self.writer.connect(
            position, position, self.part.channel, kind="flag"
        )

    def scatter(
        self, pipes: dict[tuple[int, int], int], flags: list[int], name: str
    ) -> None:
        """Send every rank its part, reduce the local part in arrival order, and signal each finished chunk."""
        size, count = self.size, self.size - 1

        def send() -> list[Prim]:
            return [
                Prim("send", send=slot, base=hop * self.pieces + piece, coef=1)
                for piece in self.order
                for slot, hop in enumerate(self.hops)
            ]

        def reduce() -> list[Prim]:
            prims: list[Prim] = []
            for piece in self.order:
                if not count:
                    prims.append(Prim("copy", base=piece, coef=1))
                prims += reduce_arrivals(count, piece)
                prims.append(Prim("signal", send=count, base=piece, coef=1))
            return prims

        for index in range(size):
            if count:
                out = [pipes[index, (index + hop) % size] for hop in self.hops]
                template = self.share_template(f"{name}/scatter", send)
                self.program(index, template, out, f"{name}/scatter", sm=1)
            into = [pipes[(index - hop) % size, index] for hop in self.hops]
            template = self.share_template(f"{name}/reduce", reduce)
            self.program(
                index,
                template,
                [*into, flags[index]],
                f"{name}/reduce",
                sm=not count,
            )

    def spread(
        self, pipes: dict[tuple[int, int], int], flags: list[int], name: str
    ) -> None:
        """Send each signalled chunk of the local part to all others, and receive theirs."""
        size, count, order = (
            self.size,
            self.size - 1,
            [self.order[-1], *self.order[:-1]],
        )

        def send() -> list[Prim]:
            prims: list[Prim] = []
            for piece in order:
                prims.append(Prim("waitSignal", recv=count, base=piece, coef=1))
                prims += [
                    Prim("send", send=slot, base=piece, coef=1, src="output")
                    for slot in range(count)
                ]
            return prims

        def collect() -> list[Prim]:
            return [
                Prim("recv", recv=slot, base=piece - hop * self.pieces, coef=1)
                for piece in order
                for slot, hop in enumerate(self.hops)
            ]

        for index in range(size):
            out = [pipes[index, (index + hop) % size] for hop in self.hops]
            template = self.share_template(f"{name}/spread", send)
            self.program(index, template, [*out, flags[index]], f"{name}/spread")
            if count:
                into = [pipes[(index - hop) % size, index] for hop in self.hops]
                template = self.share_template(f"{name}/collect", collect)
                self.program(index, template, into, f"{name}/collect")


def _ring_prims(order: list[int]) -> list[Prim]:
    """Return a rank's ring for chunks in `order`, the local chunk last; flags in and out are 2 and 3."""
    count, local_chunk = len(order), order[-1]
    ops = ["send", *["recvReduceSend"] * (count - 2), "recvReduceCopySend"]
    prims: list[Prim] = []
    for op, piece in zip(ops, order, strict=True):
        prims.append(Prim("waitSignal", recv=2, base=piece, coef=1))
        recv = ABSENT if op == "send" else 0
        prims.append(Prim(op, recv=recv, send=1, base=piece, coef=1, src="output"))
    signal = Prim("signal", send=3, base=local_chunk, coef=1)
    prims.append(signal)
    ops = ["recvCopySend"] * (count - 2) + ["recv"]
    for op, piece in zip(ops, order[: count - 1], strict=True):
        send = 1 if op == "recvCopySend" else ABSENT
        prims += [
            Prim(op, recv=0, send=send, base=piece, coef=1),
            replace(signal, base=piece),
        ]
    return prims


@algorithm(
    "allreduce",
    "hierarchical",
    channels="ring",
    many_peers=True,
    growth="node steps",
)
def write_allreduce(writer: CollectiveWriter, fabric: Fabric | None) -> None:
    """Write the five programs of every rank and channel; a single node has no ring."""
    layout = even_layout(fabric, writer.call.ranks)
    size, count = layout.even("hierarchical"), len(layout.machines)
    for part in writer.parts():
        pipes = {
            (machine, index): writer.connect(
                layout.machines[machine][index],
                layout.machines[(machine + 1) % count][index],
                part.channel,
            )
            for machine in range(count if count > 1 else 0)
            for index in range(size)
        }
        for machine, positions in enumerate(layout.machines):
            order = [(machine - hop) % count for hop in range(1, count + 1)]
            local = Local(writer, part, positions, count, order)
            first, second = local.connect(), local.connect()
            ready = [local.flag(index) for index in range(size)]
            done = (
                [local.flag(index) for index in range(size)] if count > 1 else ready
            )
            local.scatter(first, ready, "hierarchical")
            for index in range(size if count > 1 else 0):
                before = pipes[(machine - 1) % count, index]
                ends = [before, pipes[machine, index], ready[index], done[index]]
                ring = local.share_template(
                    "hierarchical/ring", partial(_ring_prims, order)
                )
                local.program(index, ring, ends, "hierarchical/ring")
            local.spread(second, done, "hierarchical")
