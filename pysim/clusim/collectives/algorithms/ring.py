"""Rings: all-reduce, reduce-scatter and all-gather.

**Hardware**: NCCL's ``all_reduce.h``, ``reduce_scatter.h``, ``all_gather.h`` (``runRing``): every
rank works on one chunk at a time, receiving from its predecessor and sending to its successor.
**Model**: the same primitives in the same order, one program per rank and channel. **Parameters**:
`Shape`, the rings of `find_rings`.

The all-reduce of a group that spans nodes numbers its chunks by ring index, as NCCL does, so that all ranks share
one program; in one node by position.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from clusim.collectives.entry import algorithm, chunk_prims, connect_ring, ring_shape
from clusim.collectives.rings_and_trees import Ways, find_rings
from clusim.schedule.collective_writer import CollectiveWriter
from clusim.schedule.ir import Prim
from clusim.topology.model import Fabric

SEND = Prim("send", send=1)
RECV = Prim("recv", recv=0)
REDUCE_SEND = Prim("recvReduceSend", recv=0, send=1)
REDUCE_COPY = Prim("recvReduceCopy", recv=0)
REDUCE_COPY_SEND = Prim("recvReduceCopySend", recv=0, send=1)
COPY_SEND = Prim("copySend", send=1)
FORWARD = Prim("recvCopySend", recv=0, send=1)


Steps = tuple[tuple[Prim, int, int], ...]
"""Steps of a program: (primitive, distance of its first chunk in hops back, number of chunks)."""


def _behind(order: Sequence[int], index: int, first: int, count: int) -> list[int]:
    """Return the positions `first`, `first` + 1, ... hops before ring index `index`."""
    size = len(order)
    return [order[(index - hops) % size] for hops in range(first, first + count)]


@lru_cache(maxsize=1 << 14)
def _steps(order: tuple[int, ...], index: int, steps: Steps) -> tuple[Prim, ...]:
    """Return the primitives of the rank at `index`; cached, because training steps repeat them often."""
    size, position = len(order), order[index]
    prims: list[Prim] = []
    for prim, first, count in steps:
        prims += chunk_prims(
            prim, _behind(order, index, first, count), position, size
        )
    return tuple(prims)


def _write(
    writer: CollectiveWriter,
    fabric: Fabric | None,
    routes: Ways | None,
    steps: Steps,
    *,
    blocked: bool,
) -> None:
    if routes is None:
        rings = find_rings(fabric, writer.call.ranks, writer.call.channels)
        routes = Ways(rings, parts=writer.parts(blocked=blocked))
    for part in routes.parts:
        ring = routes.rings[part.route]
        pipes = connect_ring(writer, ring, part.channel)
        by_index = not blocked and (ring.rail >= 0 or ring.rails is not None)
        if by_index:
            shared = _steps(tuple(range(writer.size)), 0, steps)
        for index, position in enumerate(ring.order):
            prims = shared if by_index else _steps(ring.order, index, steps)
            writer.program(
                position,
                part,
                prims,
                (pipes[index - 1], pipes[index]),
                rotation=index if by_index else position,
                nchunks=writer.size,
                mode="blocked" if blocked else "interleaved",
            )


@algorithm("allreduce", "ring", ring_shape, default=True, growth="steps")
def write_allreduce(
    writer: CollectiveWriter, fabric: Fabric | None, routes: Ways | None = None
) -> None:
    """Write reduce-scatter and all-gather in one program per loop of n chunks: 2(n-1)/n of the data per hop."""
    n = writer.size
    steps = (
        (SEND, 1, 1),
        (REDUCE_SEND, 2, n - 2),
        (REDUCE_COPY_SEND, 0, 1),
        (FORWARD, 1, n - 2),
        (RECV, n - 1, 1),
    )
    _write(writer, fabric, routes, steps, blocked=False)


@algorithm("reduce_scatter", "ring", ring_shape, default=True, growth="steps")
def write_reduce_scatter(
    writer: CollectiveWriter, fabric: Fabric | None, routes: Ways | None = None
) -> None:
    """Write the ring in which block `p` ends reduced at position `p`."""
    n = writer.size
    steps = ((SEND, 1, 1), (REDUCE_SEND, 2, n - 2), (REDUCE_COPY, 0, 1))
    _write(writer, fabric, routes, steps, blocked=True)


@algorithm("all_gather", "ring", ring_shape, default=True, growth="steps")
def write_all_gather(
    writer: CollectiveWriter, fabric: Fabric | None, routes: Ways | None = None
) -> None:
    """Write the ring that carries every rank's block once round."""
    n = writer.size
    steps = ((COPY_SEND, 0, 1), (FORWARD, 1, n - 2), (RECV, n - 1, 1))
    _write(writer, fabric, routes, steps, blocked=True)
