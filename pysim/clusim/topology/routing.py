"""Routes: for every graph node and destination the group of wires towards it.

**Hardware** NVSwitches, InfiniBand and Ethernet switches look a destination up in a table and choose
among equal ports by a hash; meshes and tori route in dimension order.
**Model** All shortest paths by hop count (endpoints forward only if they relay), or only paths in
dimension order, lowest dimension first. The result is a table (graph node, target) -> group of wires; equal groups are
stored once. `zones` applies this to one node at a time and to the network between them.
**Not modelled** Subnet managers, weighted paths, tables that differ per virtual lane.
**Parameters** `Fabric.routing`, `Link.dim`.

The search runs backwards from all destinations at once. Sets of destinations are bit rows, so that one
step of the breadth-first search is a bitwise OR over arcs, for any number of endpoints.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from clusim.base.arrays import Array
from clusim.base.records import dataclass
from clusim.engine.abi import NONE


@dataclass(frozen=True, slots=True)
class Wiring:
    """Directed graph of routing.

    Attributes
    ----------
    src, dst, dim : ndarray, shape (num_wires,)
        Ends of every wire, as graph-node indices, and its dimension.
    weight : ndarray of int, shape (num_wires,)
        Hops every wire counts as.
    forwards : ndarray of bool, shape (num_nodes,)
        True if packets for others may pass the graph node.
    targets : ndarray, shape (num_starts,)
        Graph node of every target.
    columns : ndarray, shape (num_starts,), or None
        Column of each of `targets`, if several graph nodes are equivalent as one target; None: one column
        for each.
    """

    src: Array
    dst: Array
    dim: Array
    weight: Array
    forwards: Array
    targets: Array
    columns: Array | None = None

    @property
    def num_columns(self) -> int:
        """Number of columns of the table."""
        if self.columns is None:
            return len(self.targets)
        return int(self.columns.max(initial=-1)) + 1


@dataclass(frozen=True, slots=True)
class RouteTable:
    """Routes as flat arrays: `routes` is [nodes * columns] -> group (or NONE)."""

    routes: Array
    group_off: Array
    group_wires: Array


@dataclass(frozen=True, slots=True)
class _Arcs:
    """Node pairs joined by at least one wire, grouped by their source."""

    src: Array
    dst: Array
    dim: Array
    weight: Array
    wire_lo: Array  # into wires
    wires: Array  # wire ids ordered by arc


def route(wiring: Wiring, *, dimension_order: bool = False) -> RouteTable:
    """Return the routes of a topology."""
    arcs = _arcs(wiring, by_dim=dimension_order)
    every = np.ones(len(arcs.src), bool)
    if not dimension_order:
        return _groups(wiring, arcs, _shortest(wiring, arcs, [every]))
    local, inner = arcs.dim == 0, wiring.forwards.copy()
    if wiring.columns is None:
        inner[wiring.targets] = (
            False  # relays forward by links with a dimension only
        )
    next_hops = _shortest(wiring, arcs, [local & inner[arcs.src], ~local, local])
    return _groups(wiring, arcs, _dimension_order(arcs, next_hops))


def _arcs(wiring: Wiring, *, by_dim: bool) -> _Arcs:
    """Join parallel wires into arcs, in order of source node, then of first wire id."""
    count = len(wiring.src)
    key = wiring.src.astype(np.int64) * len(wiring.forwards) + wiring.dst
    key = key * (int(wiring.weight.max(initial=0)) + 1) + wiring.weight
    if by_dim:
        key = key * (int(wiring.dim.max(initial=0)) + 1) + wiring.dim
    _, first, inverse = np.unique(key, return_index=True, return_inverse=True)
    order = np.lexsort((np.arange(count), first[inverse], wiring.src))
    starts = np.flatnonzero(np.diff(first[inverse][order], prepend=-1))
    head = order[starts]
    lo = np.append(starts, count)
    return _Arcs(
        wiring.src[head],
        wiring.dst[head],
        wiring.dim[head],
        wiring.weight[head],
        lo,
        order,
    )


def _start(wiring: Wiring) -> Array:
    """Bit rows [node, column] with the nodes of each target set."""
    count = wiring.num_columns
    columns = np.arange(count) if wiring.columns is None else wiring.columns
    bits = np.zeros((len(wiring.forwards), _words(count) * 64), np.uint8)
    bits[wiring.targets, columns] = 1
    return np.packbits(bits, axis=1, bitorder="little").view(np.uint64)


def _words(count: int) -> int:
    return max(1, -(-count // 64))


def _search(
    wiring: Wiring, arcs: _Arcs, which: Array, reached: Array, next_hops: Array
) -> None:
    """Extend `reached` backwards over the arcs `which`; mark the arcs used in `next_hops`.

    A node is entered only if it forwards or is the destination itself (then its bit is in the start
    set). An arc of weight w sees the frontier of w levels ago.
    """
    index = np.flatnonzero(which)
    if not len(index):
        return
    src, dst, weight = arcs.src[index], arcs.dst[index], arcs.weight[index]
    starts = np.flatnonzero(np.diff(src, prepend=-1))
    heads = src[starts]
    passing = np.where(
        wiring.forwards[:, None], np.uint64(2**64 - 1), _start(wiring)
    )
    nothing = np.zeros_like(reached)
    history = [nothing] * (int(weight.max()) - 1) + [reached & passing]
    heavy = [w for w in np.unique(weight) if w > 1]
    while any(frontier is not nothing for frontier in history):
        arriving = history[-1][dst]
        for w in heavy:
            arriving[weight == w] = history[-w][dst[weight == w]]
        new = np.zeros_like(reached)
        new[heads] = np.bitwise_or.reduceat(arriving, starts, axis=0)
        new &= ~reached
        next_hops[index] |= arriving & new[src]
        reached |= new
        frontier = new & passing
        history = [*history[1:], frontier if frontier.any() else nothing]


def _shortest(wiring: Wiring, arcs: _Arcs, phases: Sequence[Array]) -> Array:
    """Search backwards from the destinations, over the arcs of one phase after the other."""
    reached = _start(wiring)
    next_hops = np.zeros((len(arcs.src), reached.shape[1]), np.uint64)
    for which in phases:
        _search(wiring, arcs, which, reached, next_hops)
    return next_hops


def _dimension_order(arcs: _Arcs, next_hops: Array) -> Array:
    """Keep, of the shortest paths of every graph node, those by its lowest dimension; 0 is the last.

    Steps of different dimensions of a torus commute. So if no shortest path of a graph node begins with a dimension, no
    later step has it, and packets use dimensions in ascending order, in a twisted torus as well.
    """
    used = np.zeros(
        (int(arcs.src.max(initial=0)) + 1, next_hops.shape[1]), np.uint64
    )
    for dim in sorted(np.unique(arcs.dim).tolist(), key=lambda dim: dim or np.inf):
        index = np.flatnonzero(arcs.dim == dim)
        next_hops[index] &= ~used[arcs.src[index]]
        np.bitwise_or.at(used, arcs.src[index], next_hops[index])
    return next_hops


def _groups(wiring: Wiring, arcs: _Arcs, next_hops: Array) -> RouteTable:
    """Turn bit rows per arc into a table of groups, each distinct group of a node stored once."""
    num_nodes, num_columns = len(wiring.forwards), wiring.num_columns
    routes = np.full((num_nodes, num_columns), NONE, np.uint32)
    arc_lo = np.searchsorted(arcs.src, np.arange(num_nodes + 1))
    wires: list[Array] = []
    sizes: list[int] = []
    for node in range(num_nodes):
        lo, hi = int(arc_lo[node]), int(arc_lo[node + 1])
        if lo == hi:
            continue
        bits = np.unpackbits(
            np.ascontiguousarray(next_hops[lo:hi]).view(np.uint8),
            axis=1,
            bitorder="little",
        )[:, :num_columns]
        columns = np.packbits(bits, axis=0).T
        keys = (
            np.ascontiguousarray(columns)
            .view(np.dtype((np.void, columns.shape[1])))
            .ravel()
        )
        _, first, inverse = np.unique(keys, return_index=True, return_inverse=True)
        for number, column in enumerate(first):
            members = lo + np.flatnonzero(bits[:, column])
            if not len(members):
                continue
            chosen = [
                arcs.wires[arcs.wire_lo[m] : arcs.wire_lo[m + 1]] for m in members
            ]
            routes[node, inverse == number] = len(sizes)
            wires.append(np.concatenate(chosen))
            sizes.append(len(wires[-1]))
    offsets = np.zeros(len(sizes) + 1, np.uint32)
    np.cumsum(sizes, out=offsets[1:])
    flat = (
        np.concatenate(wires).astype(np.uint32) if wires else np.zeros(0, np.uint32)
    )
    return RouteTable(routes.ravel(), offsets, flat)
