"""Trees: all-reduce over two binary trees, broadcast and reduce over trees.

**Hardware**: NCCL's ``all_reduce.h`` (``runTreeSplit``): half of a CTA's warps reduce up the tree
while the other half broadcast down; the channels are split between two complementary trees.
**Model**: two programs per rank and channel, up and down, joined at the root; chunks are pipelined. What NCCL does
as one primitive, with several sources or destinations, has one fixed cost, and for each further one the time of a load
or a store. **Not modelled**: that it waits for all children before it begins. **Parameters**: `Shape`, `find_trees`.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

from clusim.collectives.entry import algorithm, connect_tree
from clusim.collectives.rings_and_trees import Tree, Ways, find_trees
from clusim.hardware.ctas import cta_figure
from clusim.schedule.collective_writer import CollectiveWriter, Part, ProgramFields
from clusim.schedule.ir import CTA_WARPS, Buffer, CollectiveCall, Prim
from clusim.schedule.shapes import Shape, shape_of
from clusim.topology.model import Fabric


def _gather_children(count: int, last: Prim) -> list[Prim]:
    """Return primitives that reduce `count` children (connections 0, 1, ...), the last with `last`."""
    prims = []
    for child in range(count - 1):
        source: Buffer = "input" if child == 0 else "scratch"
        prims.append(Prim("recvReduceMore", recv=child, src=source, dst="scratch"))
    op = Prim(
        last.op,
        recv=count - 1,
        send=last.send,
        src="input" if count == 1 else "scratch",
    )
    return [*prims, op]


def _spread(count: int, first_send: int) -> list[Prim]:
    """Return primitives that send the output on `count` connections from `first_send` on."""
    return [
        Prim("sendMore", send=first_send + child, src="output")
        for child in range(count)
    ]


KEPT = 64
"""Largest number of children for which primitives are cached: programs of one collective share them."""


class TreeHalf(NamedTuple):
    """A program's part of a CTA: its SM, if any, and a number of warps."""

    sm: int
    warps: float


ALONE = TreeHalf(1, CTA_WARPS)

HALVED = ("simple", "ll128")
"""Protocols for which the throughput of half a CTA was measured."""


class _Channel(NamedTuple):
    """The tree of a channel, and the part that passes it."""

    writer: CollectiveWriter
    part: Part
    tree: Tree

    def connect(self, *, down: bool) -> dict[int, int]:
        """Return the connection between every position and its parent."""
        return connect_tree(self.writer, self.tree, self.part.channel, down=down)

    def program(
        self,
        position: int,
        prims: Sequence[Prim],
        pipes: Sequence[int],
        name: str,
        half: TreeHalf = ALONE,
    ) -> None:
        """Write a program whose primitives NCCL executes as one."""
        fields: ProgramFields = {
            "name": name,
            "sm": half.sm,
            "warps": half.warps,
            "fixed_div": len(prims),
        }
        self.writer.program(position, self.part, prims, pipes, **fields)


def _halves(channel: _Channel) -> tuple[TreeHalf, TreeHalf]:
    """Return the CTA parts for up and down: halves with Simple, 7:3 with LL and LL128 (``runTreeSplit``).

    A rank has a chunk's result only after the chunk went up to the root and down again, so both parts are active at
    once only if there are more chunks than stages.
    """
    writer, part = channel.writer, channel.part
    protocol = writer.call.protocol
    chunks = -(-part.length // (part.chunk or writer.shape.chunk_bytes))
    alone = min(1.0, channel.tree.depth() / max(1, chunks))
    if protocol not in HALVED:
        return TreeHalf(1, CTA_WARPS), TreeHalf(0, CTA_WARPS)
    up, down = (
        1
        / (
            alone / cta_figure(f"tree {protocol} {direction} alone")
            + (1 - alone) / cta_figure(f"tree {protocol} {direction}")
        )
        for direction in ("up", "down")
    )
    return TreeHalf(1, up), TreeHalf(0, down)


def _up(
    channel: _Channel, up: dict[int, int], position: int, half: TreeHalf = ALONE
) -> None:
    """Write the program that reduces the children's data and hands them to the parent."""
    tree = channel.tree
    children = tree.children(position)
    pipes = [up[child] for child in children] + [up[position]]
    count = len(children)
    channel.program(position, _rising(count), pipes, "tree/up", half)


@lru_cache(KEPT)
def _rising(count: int) -> tuple[Prim, ...]:
    """Return primitives that reduce the data of `count` children and send them to the parent."""
    if not count:
        return (Prim("send", send=0),)
    return tuple(_gather_children(count, Prim("recvReduceSend", recv=0, send=count)))


@lru_cache(KEPT)
def _falling(count: int) -> tuple[Prim, ...]:
    """Return primitives that send the parent's data to `count` children."""
    if not count:
        return (Prim("recv", recv=0),)
    return (Prim("recvCopySend", recv=0, send=1), *_spread(count - 1, 2))


def _root(
    channel: _Channel, up: dict[int, int], down: dict[int, int] | None
) -> None:
    """Write the root's program: reduce all children, keep the result, and send it `down`, if given."""
    tree = channel.tree
    children = tree.children(tree.root)
    count = len(children)
    pipes = [up[child] for child in children]
    last = Prim("recvReduceCopy", recv=0)
    if down is not None:
        pipes += [down[child] for child in children]
        last = Prim("recvReduceCopySend", recv=0, send=count)
    prims = _gather_children(count, last)
    if down is not None:
        prims += _spread(count - 1, count + 1)
    channel.program(tree.root, prims, pipes, "tree/root")


def _down(
    channel: _Channel, down: dict[int, int], position: int, half: TreeHalf = ALONE
) -> None:
    """Write the program that hands the parent's data to the children."""
    tree = channel.tree
    children = tree.children(position)
    pipes = [down[position]] + [down[child] for child in children]
    channel.program(position, _falling(len(children)), pipes, "tree/down", half)


def _positions(tree: Tree) -> list[int]:
    return [
        position for position in range(len(tree.parents)) if position != tree.root
    ]


def _shape(call: CollectiveCall, fabric: Fabric | None) -> Shape:
    """Return smaller chunks for sizes that would not fill the pipeline of a tree.

    NCCL up to 2.12 (``src/enqueue.cc``): 128, 64, 32 KiB below 8, 4, 1 chunks per channel and level.
    """
    shape = shape_of(call.protocol, protocols=fabric.protocols if fabric else None)
    depth = len(call.ranks).bit_length()
    if call.protocol != "simple":
        return shape
    for chunks, smaller in ((8, 128 * 1024), (4, 64 * 1024), (1, 32 * 1024)):
        if call.bytes < call.channels * shape.chunk_bytes * depth * chunks:
            shape = shape.with_chunk(min(shape.chunk_bytes, smaller))
    return shape


@algorithm("allreduce", "tree", _shape, paired=True, growth="levels")
def write_allreduce(
    writer: CollectiveWriter, fabric: Fabric | None, routes: Ways | None = None
) -> None:
    """Write reduction up and broadcast down each channel's tree, side by side in every rank but the root."""
    if routes is None:
        trees = find_trees(fabric, writer.call.ranks, writer.call.channels)
        routes = Ways(trees=trees, parts=writer.parts())
    for part in routes.parts:
        channel = _Channel(writer, part, routes.trees[part.route])
        rising, falling = _halves(channel)
        up, down = channel.connect(down=False), channel.connect(down=True)
        _root(channel, up, down)
        for position in _positions(channel.tree):
            _up(channel, up, position, rising)
            _down(channel, down, position, falling)


def _rooted_trees(writer: CollectiveWriter, fabric: Fabric | None) -> list[Tree]:
    root = writer.call.ranks.index(writer.call.root)
    return find_trees(fabric, writer.call.ranks, writer.call.channels, root)


@algorithm("reduce", "tree", _shape, paired=True, growth="levels")
def write_reduce(writer: CollectiveWriter, fabric: Fabric | None) -> None:
    """Write the reduction up trees that end at the root."""
    trees = _rooted_trees(writer, fabric)
    for part in writer.parts():
        channel = _Channel(writer, part, trees[part.channel])
        up = channel.connect(down=False)
        _root(channel, up, None)
        for position in _positions(channel.tree):
            _up(channel, up, position)


@algorithm("broadcast", "tree", _shape, paired=True, growth="levels")
def write_broadcast(writer: CollectiveWriter, fabric: Fabric | None) -> None:
    """Write the broadcast down trees that start at the root."""
    trees = _rooted_trees(writer, fabric)
    for part in writer.parts():
        channel = _Channel(writer, part, trees[part.channel])
        tree, down = channel.tree, channel.connect(down=True)
        children = tree.children(tree.root)
        prims = [Prim("copySend", send=0), *_spread(len(children) - 1, 1)]
        channel.program(
            tree.root, prims, [down[child] for child in children], "tree/root"
        )
        for position in _positions(tree):
            _down(channel, down, position)
