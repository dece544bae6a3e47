"""Small pieces all collective algorithms are written with."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from clusim.collectives.rings_and_trees import Hop, Ring, Tree
from clusim.schedule.builder import CollectiveWriter
from clusim.schedule.ir import Prim


def in_turn(count: int, channel: int, channels: int) -> list[int]:
    """Return 0 .. `count` - 1 as a rotation that differs by channel.

    At any time the channels of a rank that visit their peers in this order are spread over all peers, and so are
    the channels that visit one rank. On direct meshes a link is idle while no channel visits its peer.
    """
    first = channel * count // channels if channels < count else channel % max(1, count)
    return [(first + index) % count for index in range(count)]


def chunk_prims(prim: Prim, chunks: Sequence[int], position: int, nchunks: int) -> list[Prim]:
    """Return `prim` for each chunk in order, merging runs of equal steps into one primitive.

    Chunk numbers are written relative to `position`, the rotation of the instance, so that ranks whose
    programs are rotations of each other share a template.
    """
    prims: list[Prim] = []
    start = 0
    while start < len(chunks):
        end, step = start + 1, 0
        if end < len(chunks):
            step = _signed(chunks[end] - chunks[start], nchunks)
            while end < len(chunks) and _signed(chunks[end] - chunks[end - 1], nchunks) == step:
                end += 1
        base = _signed(chunks[start] - position, nchunks)
        prims.append(replace(prim, base=base, coef=1, step=step, repeat=end - start))
        start = end
    return prims


def _signed(difference: int, modulus: int) -> int:
    """Return the representative of a difference that is nearest to zero."""
    wrapped = difference % modulus
    return wrapped - modulus if wrapped > modulus // 2 else wrapped


def connect_ring(writer: CollectiveWriter, ring: Ring, channel: int) -> list[int]:
    """Return the connections of a ring's hops; hop `i` leaves ring index `i`."""
    size = len(ring.order)
    pipes = []
    for hop, src in enumerate(ring.order):
        fields = hop_fields(ring.hop(hop))
        pipes.append(writer.connect(src, ring.order[(hop + 1) % size], channel, **fields))
    return pipes


def connect_tree(
    writer: CollectiveWriter, tree: Tree, channel: int, *, down: bool
) -> dict[int, int]:
    """Return the connection between each position and its parent: up the tree, or down."""
    pipes = {}
    for child, parent in enumerate(tree.parents):
        if parent >= 0:
            fields = hop_fields(tree.hop(child, down=down))
            ends = (parent, child) if down else (child, parent)
            pipes[child] = writer.connect(*ends, channel, **fields)
    return pipes


def hop_fields(hop: Hop) -> dict[str, Any]:
    """Return the `Connection` fields for a hop."""
    fields: dict[str, Any] = {} if hop.link < 0 else {"policy": "pinned", "key": hop.link}
    if hop.rail_in >= 0:
        fields["rail"] = hop.rail_in
        if hop.rail_out != hop.rail_in:
            fields["rail_out"] = hop.rail_out
    return fields


def connect_all(
    writer: CollectiveWriter,
    sources: Iterable[int],
    targets: Iterable[int],
    channel: int,
    **fields: Any,
) -> dict[tuple[int, int], int]:
    """Return a connection from every source to every other target; `fields` as in `Connection`."""
    wanted = list(targets)
    pairs = [(a, b) for a in sources for b in wanted if a != b]
    return {(a, b): writer.connect(a, b, channel, **fields) for a, b in pairs}


def connect_flags(writer: CollectiveWriter, channel: int) -> dict[tuple[int, int], int]:
    """Return a flag connection between every pair of positions, each to itself included."""
    positions = range(writer.size)
    return {(a, b): writer.flag(a, b, channel) for a in positions for b in positions}
