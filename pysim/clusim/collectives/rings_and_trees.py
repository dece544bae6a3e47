"""Rings and trees over the ranks of a group, as the topology allows.

**Hardware**: if every GPU reaches every other through switches, all orders are equivalent
and NCCL uses rank order; on meshes of direct links (DGX-1) it searches rings that do not share
links. **Model**: on direct meshes, as many edge-disjoint Hamiltonian cycles of the link multigraph
as can be found, each used in both directions and pinned to its links; elsewhere rank order,
striped over all links. Trees are double binary trees (Sanders, Speck, Traff 2009, as in NCCL
``src/graph/trees.cc``); on direct meshes chains along the rings. Groups that span nodes are ordered node by
node (`clusim.collectives.machines`). **Not modelled**: NCCL's PCIe and network search. **Parameters**:
`Fabric.ring_orders` overrides.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import NamedTuple

from clusim.base.errors import InputError
from clusim.base.records import dataclass
from clusim.collectives.machines import Layout, Passage, find_layout
from clusim.schedule.collective_writer import Part
from clusim.topology.model import Fabric

SEARCH_STEPS = 200_000
"""Most steps of the search for cycles; meshes of 8 GPUs need a few thousand."""

Links = tuple[tuple[int, int, int], ...]


class Hop(NamedTuple):
    """The parallel link a connection is pinned to, and the NICs of its ends; -1 where it is free or there is none."""

    link: int = -1
    rail_out: int = -1
    rail_in: int = -1


@dataclass(frozen=True, slots=True)
class Ring:
    """A ring through all positions of a group; hop `i` goes from ``order[i]`` to ``order[i + 1]``.

    `links` numbers the parallel link each hop is pinned to; None, or -1 for one hop, stripes over all. `rail` is the
    NIC that hops between nodes use, in each of them; -1 if there is no such hop. `rails` has, per hop, the NICs of
    sender and receiver instead, -1 for hops inside a node.
    """

    order: tuple[int, ...]
    links: tuple[int, ...] | None = None
    rail: int = -1
    rails: tuple[tuple[int, int], ...] | None = None

    def rotate(self, first: int) -> Ring:
        """Return the same ring, starting at position `first`."""
        at = self.order.index(first)
        links = None if self.links is None else self.links[at:] + self.links[:at]
        rails = None if self.rails is None else self.rails[at:] + self.rails[:at]
        return Ring(self.order[at:] + self.order[:at], links, self.rail, rails)

    def hop(self, index: int) -> Hop:
        """Return the fields of a hop's connection."""
        link = -1 if self.links is None else self.links[index]
        return Hop(
            link,
            *((self.rail, self.rail) if self.rails is None else self.rails[index]),
        )


@dataclass(frozen=True, slots=True)
class Tree:
    """A tree over positions: the parent of each (-1 for the root); `links` and `rail` as of a `Ring`, per edge.

    `rails` has, per child, its NIC and its parent's NIC.
    """

    parents: tuple[int, ...]
    links: tuple[tuple[int, int], ...] | None = None
    rail: int = -1
    rails: tuple[tuple[int, int], ...] | None = None

    def hop(self, child: int, *, down: bool) -> Hop:
        """Return the fields of the connection between a child and its parent."""
        link = -1 if self.links is None else self.links[child][down]
        below, above = (
            (self.rail, self.rail) if self.rails is None else self.rails[child]
        )
        return Hop(link, *((above, below) if down else (below, above)))

    @property
    def root(self) -> int:
        """The position without parent."""
        return self.parents.index(-1)

    def children(self, position: int) -> tuple[int, ...]:
        """Return the children of a position in ascending order."""
        return self._children()[position]

    def _children(self) -> tuple[tuple[int, ...], ...]:
        return _children_of(self.parents)

    def depth(self) -> int:
        """Return the number of edges on the longest way to the root."""
        return max(
            sum(1 for _ in self._up(position))
            for position in range(len(self.parents))
        )

    def _up(self, position: int) -> Iterator[int]:
        while self.parents[position] != -1:
            position = self.parents[position]
            yield position


@dataclass(frozen=True, slots=True)
class Ways:
    """Rings, trees and parts of the data that somebody else has chosen; `rings` and `trees` by channel."""

    rings: Sequence[Ring] = ()
    trees: Sequence[Tree] = ()
    parts: Sequence[Part] = ()


@lru_cache(maxsize=256)
def _children_of(parents: tuple[int, ...]) -> tuple[tuple[int, ...], ...]:
    result: list[list[int]] = [[] for _ in parents]
    for child, parent in enumerate(parents):
        if parent >= 0:
            result[parent].append(child)
    return tuple(map(tuple, result))


def direct_links(fabric: Fabric, ranks: Sequence[int]) -> Links:
    """Return (position, position, count) of the links that join two ranks of a group without a switch."""
    position = {fabric.ranks[rank]: index for index, rank in enumerate(ranks)}
    counts: dict[tuple[int, int], int] = {}
    for link in fabric.links:
        if link.a in position and link.b in position:
            low, high = sorted((position[link.a], position[link.b]))
            counts[low, high] = counts.get((low, high), 0) + link.count
    return tuple((a, b, count) for (a, b), count in sorted(counts.items()))


def _cycles(size: int, links: Links) -> list[tuple[int, ...]]:
    """Return Hamiltonian cycles of the simple graph, each once, as orders that start at 0."""
    neighbours: list[list[int]] = [[] for _ in range(size)]
    for a, b, _ in links:
        neighbours[a].append(b)
        neighbours[b].append(a)
    result: list[tuple[int, ...]] = []
    path = [0]
    stack = [iter(neighbours[0])]
    steps = 0
    while stack and steps < SEARCH_STEPS:
        steps += 1
        following = next(stack[-1], None)
        if following is None:
            stack.pop()
            path.pop()
        elif following not in path:
            path.append(following)
            if len(path) < size:
                stack.append(iter(neighbours[following]))
                continue
            if 0 in neighbours[following] and path[1] < path[-1]:
                result.append(tuple(path))
            path.pop()
    return result


def _edges(order: Sequence[int]) -> list[tuple[int, int]]:
    pairs = zip(order, (*order[1:], order[0]), strict=True)
    return [(min(a, b), max(a, b)) for a, b in pairs]


def hamiltonian_cycles(size: int, links: Links) -> list[tuple[int, ...]]:
    """Return as many edge-disjoint Hamiltonian cycles of the link multigraph as can be found.

    With two ranks a "cycle" is a link used in both directions, so there is one per link.
    """
    if size == 2:
        return [(0, 1)] * sum(count for _, _, count in links)
    unused = {(a, b): count for a, b, count in links}
    degree = [
        sum(count for a, b, count in links if node in (a, b)) for node in range(size)
    ]
    bound = min(degree) // 2
    candidates = _cycles(size, links) if bound else []
    best: list[tuple[int, ...]] = []
    budget = [SEARCH_STEPS]

    def extend(first: int, chosen: list[tuple[int, ...]]) -> None:
        nonlocal best
        if len(chosen) > len(best):
            best = list(chosen)
        for index in range(first, len(candidates)):
            budget[0] -= 1
            if len(best) == bound or budget[0] < 0:
                return
            edges = _edges(candidates[index])
            if all(unused[edge] for edge in edges):
                for edge in edges:
                    unused[edge] -= 1
                extend(index, [*chosen, candidates[index]])
                for edge in edges:
                    unused[edge] += 1

    extend(0, [])
    return best


def _pin(orders: Sequence[tuple[int, ...]]) -> list[Ring]:
    """Pin every hop of directed rings to a separate parallel link, counted per direction."""
    used: dict[tuple[int, int], int] = {}
    rings = []
    for order in orders:
        numbers = []
        for hop in zip(order, (*order[1:], order[0]), strict=True):
            numbers.append(used.get(hop, 0))
            used[hop] = numbers[-1] + 1
        rings.append(Ring(order, tuple(numbers)))
    return rings


@lru_cache(maxsize=64)
def _mesh_rings(size: int, links: Links) -> tuple[Ring, ...]:
    cycles = hamiltonian_cycles(size, links)
    backward = [] if size == 2 else [(order[0], *order[:0:-1]) for order in cycles]
    return tuple(_pin([*cycles, *backward]))


def _given_rings(fabric: Fabric, ranks: Sequence[int]) -> list[Ring]:
    """Return the rings a fabric prescribes, if the group is all of its ranks."""
    if fabric.ring_orders is None or len(ranks) != fabric.num_ranks:
        return []
    position = {rank: index for index, rank in enumerate(ranks)}
    orders = [
        tuple(position[rank] for rank in order) for order in fabric.ring_orders
    ]
    if any(sorted(order) != list(range(len(ranks))) for order in orders):
        raise InputError(
            f"{fabric.name}: ring_orders must each name every rank once"
        )
    joined = {(a, b) for a, b, _ in direct_links(fabric, ranks)}
    if all(edge in joined for order in orders for edge in _edges(order)):
        return _pin(orders)
    return [Ring(order) for order in orders]


def find_rings(
    fabric: Fabric | None, ranks: Sequence[int], channels: int
) -> list[Ring]:
    """Return the ring of each channel: node by node, prescribed, link-disjoint on meshes, or rank order."""
    layout = find_layout(fabric, ranks)
    if fabric is not None and layout is not None:
        passages = _passages(fabric, layout, channels)
        return [_join_passages(rail, parts) for rail, parts in passages]
    rings: Sequence[Ring] = ()
    if fabric is not None:
        rings = _given_rings(fabric, ranks)
        links = direct_links(fabric, ranks)
        if not rings and links:
            rings = _mesh_rings(len(ranks), links)
    rings = rings or (Ring(tuple(range(len(ranks)))),)
    return [rings[channel % len(rings)] for channel in range(channels)]


def _passages(
    fabric: Fabric, layout: Layout, channels: int
) -> list[tuple[int, list[Passage]]]:
    """Return (rail, way through each node) of every channel of a group that spans nodes."""
    machines = range(len(layout.machines))
    joined = direct_links(fabric, layout.ranks)
    home = {position: m for m in machines for position in layout.machines[m]}
    inside: list[list[tuple[int, int, int]]] = [[] for _ in machines]
    for a, b, count in joined:
        if home[a] == home[b]:
            positions = layout.machines[home[a]]
            inside[home[a]].append((positions.index(a), positions.index(b), count))
    rings = [
        _mesh_rings(len(layout.machines[m]), tuple(inside[m])) if inside[m] else ()
        for m in machines
    ]
    result = []
    for channel in range(channels):
        rail = layout.rail(channel)
        if any(rings) and layout.live:
            first = next(m for m in machines if rings[m])
            cuts = [
                (r, _cut_open(layout, first, rings[first], channel, r))
                for r in layout.live
            ]
            rail = layout.take_rail(
                [layout.fit(first, cut, r) for r, cut in cuts], channel
            )
        parts = []
        for machine in machines:
            if rings[machine]:
                parts.append(
                    _cut_open(layout, machine, rings[machine], channel, rail)
                )
            else:
                parts.append(layout.passage(machine, rail))
        result.append((rail, parts))
    return result


def _cut_open(
    layout: Layout, machine: int, rings: Sequence[Ring], channel: int, rail: int
) -> Passage:
    """Return the ring of a channel through a node, cut where both ends are nearest to a NIC, if possible."""
    ring, positions = rings[channel % len(rings)], layout.machines[machine]
    best: tuple[int, Passage] | None = None
    for first in ring.order:
        turned = ring.rotate(first)
        links = turned.links or (-1,) * len(positions)
        passage = Passage(
            tuple(positions[index] for index in turned.order), links[:-1]
        )
        fit = 2 * layout.fit(machine, passage, rail) + (
            passage.order[0] in layout.heads(machine, rail)
        )
        if best is None or fit > best[0]:
            best = fit, passage
    assert best is not None
    return best[1]


def _join_passages(rail: int, parts: Sequence[Passage]) -> Ring:
    """Return the ring through all nodes; hops between them are not pinned."""
    order = tuple(position for part in parts for position in part.order)
    links = tuple(link for part in parts for link in (*part.links, -1))
    return Ring(order, links if any(link >= 0 for link in links) else None, rail)


def _machine_tree(
    layout: Layout, rail: int, parts: Sequence[Passage], over: Tree, root: int | None
) -> Tree:
    """Return chains through nodes whose first positions form a tree over the nodes."""
    if root is not None:
        parts = [
            part.from_position(root) if root in part.order else part
            for part in parts
        ]
    parents = [-1] * len(layout.ranks)
    edges = [(-1, -1)] * len(layout.ranks)
    for machine, part in enumerate(parts):
        above = over.parents[machine]
        parents[part.order[0]] = -1 if above < 0 else parts[above].order[0]
        for before, position, link in zip(
            part.order, part.order[1:], part.links, strict=False
        ):
            parents[position] = before
            edges[position] = (link, link)
    pinned = any(edge != (-1, -1) for edge in edges)
    return Tree(tuple(parents), tuple(edges) if pinned else None, rail)


def _machine_trees(
    fabric: Fabric, layout: Layout, channels: int, root: int | None
) -> list[Tree]:
    pair = double_binary_trees(len(layout.machines))
    if root is not None:
        home = next(
            m for m, positions in enumerate(layout.machines) if root in positions
        )
        pair = _rooted_trees(len(layout.machines), home)
    return [
        _machine_tree(
            layout, rail, parts, pair[0 if c < (channels + 1) // 2 else 1], root
        )
        for c, (rail, parts) in enumerate(_passages(fabric, layout, channels))
    ]


def _binary_parent(node: int, size: int) -> int:
    """Return the parent in the in-order binary tree rooted at 0: clear the lowest set bit, set the next."""
    if node == 0:
        return -1
    bit = node & -node
    parent = (node ^ bit) | (bit << 1)
    return parent if parent < size else node ^ bit


def double_binary_trees(size: int) -> tuple[Tree, Tree]:
    """Return two binary trees in which nearly every position is a leaf of one tree.

    The second is the mirror image of the first for even sizes, and the first shifted by one for odd sizes.
    """
    parents = [_binary_parent(node, size) for node in range(size)]
    second = [-1] * size
    for node, parent in enumerate(parents):
        if size % 2 == 0:
            second[size - 1 - node] = -1 if parent < 0 else size - 1 - parent
        else:
            second[(node + 1) % size] = -1 if parent < 0 else (parent + 1) % size
    return Tree(tuple(parents)), Tree(tuple(second))


def _chain(ring: Ring) -> Tree:
    """Return the chain along a ring, rooted at its first position."""
    parents = [-1] * len(ring.order)
    for before, position in zip(ring.order, ring.order[1:], strict=False):
        parents[position] = before
    if ring.links is None:
        return Tree(tuple(parents))
    edges = [(0, 0)] * len(ring.order)
    for position, link in zip(ring.order[1:], ring.links, strict=False):
        edges[position] = (link, link)
    return Tree(tuple(parents), tuple(edges))


def _rooted_trees(size: int, root: int) -> tuple[Tree, Tree]:
    """Return two binary trees with the same root; nearly every other position is a leaf of one tree.

    In the second the other positions have moved up by one place, so that leaves become forks.
    """
    first, second = [-1] * size, [-1] * size

    def place(node: int, turn: int) -> int:
        moved = (node - 1 + turn) % (size - 1) + 1 if node else 0
        return (moved + root) % size

    for node in range(1, size):
        parent = _binary_parent(node, size)
        first[place(node, 0)] = place(parent, 0)
        second[place(node, 1)] = place(parent, 1)
    return Tree(tuple(first)), Tree(tuple(second))


def find_trees(
    fabric: Fabric | None,
    ranks: Sequence[int],
    channels: int,
    root: int | None = None,
) -> list[Tree]:
    """Return the tree of each channel: the first half of the channels uses one of two trees, the rest the other.

    On direct meshes they are chains along the rings, over nodes chains inside and trees between. With `root` (a
    position) every tree has that root.
    """
    layout = find_layout(fabric, ranks)
    if fabric is not None and layout is not None:
        return _machine_trees(fabric, layout, channels, root)
    if fabric is not None and direct_links(fabric, ranks):
        rings = find_rings(fabric, ranks, channels)
        return [
            _chain(ring if root is None else ring.rotate(root)) for ring in rings
        ]
    pair = double_binary_trees(len(ranks))
    if root is not None:
        pair = _rooted_trees(len(ranks), root)
    return [
        pair[0 if channel < (channels + 1) // 2 else 1]
        for channel in range(channels)
    ]
