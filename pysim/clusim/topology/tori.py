"""Tori and meshes: their links, dimensions found from the links, and datelines.

**Hardware** Routers of tori (IBM Blue Gene, Cray Gemini, Google TPU, Fujitsu Tofu) route in dimension order and move
packets to another virtual channel at one link of every ring, the dateline, so that no buffers wait in a circle
(W. J. Dally and C. L. Seitz, "Deadlock-free message routing in multiprocessor interconnection networks", IEEE
Transactions on Computers 36(5), 1987). In a twisted torus the wrap-around links of shorter dimensions are shifted
along the longest one, which shortens its paths (J. M. Camara et al., "Twisted torus topologies for enhanced
interconnection networks", IEEE Transactions on Parallel and Distributed Systems 21(12), 2010).
**Model** Links of one dimension that form a ring without dateline get one, between the ring's first graph node and its
last neighbour. If no link has a dimension, two links at a graph node have different dimensions if they span a
rectangle, and opposite sides of a rectangle have the same. A ring of four becomes two dimensions without
datelines, as in a hypercube.
**Not modelled** Other choices of dimensions; graphs in which a graph node has three links of one dimension.
**Parameters** `Link.dim`, `Link.dateline`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import combinations, product

from clusim.base.errors import TopologyError
from clusim.topology.model import Link

Place = tuple[int, ...]
Pair = tuple[str, str]


def neighbours(
    shape: Place, *, wrap: bool, twist: bool = False
) -> Iterator[tuple[Place, Place, int, bool]]:
    """Yield the links of a mesh or torus: both places, the axis, and True if it wraps around.

    With `twist` the wrap-around links of shorter dimensions are shifted by half of the longest.
    """
    longest = max(shape)
    for place in product(*map(range, shape)):
        for axis, size in enumerate(shape):
            last = place[axis] == size - 1
            turned = twist and 1 < size < longest
            if not last or (wrap and (size > 2 or turned)):
                following = [
                    *place[:axis],
                    (place[axis] + 1) % size,
                    *place[axis + 1 :],
                ]
                if last and turned:
                    for other in (
                        i for i, length in enumerate(shape) if length == longest
                    ):
                        following[other] = (
                            following[other] + longest // 2
                        ) % longest
                yield place, tuple(following), axis, last


def check_twist(shape: Place) -> None:
    """Raise `TopologyError` if a torus of this shape cannot be twisted."""
    longest = max(shape)
    if longest % 2 or not any(1 < size < longest for size in shape):
        raise TopologyError(
            "twist: needs an even longest size and a shorter one above 1"
        )


def order_links(links: Sequence[Link]) -> list[Link]:
    """Return links for dimension-order routing: with dimensions and datelines.

    Raises
    ------
    TopologyError
        No link has a dimension, and the links form no mesh or torus.
    """
    if not any(link.dim for link in links):
        dimensions = _dimensions(links)
        links = [replace(link, dim=dimensions.get(_pair(link), 0)) for link in links]
    dims = {link.dim for link in links} - {0}
    dated = {
        pair
        for dim in dims
        for pair in _datelines([one for one in links if one.dim == dim])
    }
    return [
        replace(link, dateline=(True, True))
        if link.dim and _pair(link) in dated
        else link
        for link in links
    ]


def _pair(link: Link) -> Pair:
    return min(link.a, link.b), max(link.a, link.b)


def _find_neighbours(pairs: Iterable[Pair]) -> dict[str, list[str]]:
    """Return the neighbours of every graph node, in order of the pairs."""
    result: dict[str, dict[str, None]] = {}
    for a, b in pairs:
        result.setdefault(a, {})[b] = None
        result.setdefault(b, {})[a] = None
    return {name: list(adjacent) for name, adjacent in result.items()}


def _datelines(links: Sequence[Link]) -> Iterator[Pair]:
    """Yield a pair of neighbours in every ring without dateline."""
    adjacency = _find_neighbours((link.a, link.b) for link in links)
    if all(len(adjacent) != 2 for adjacent in adjacency.values()):
        return
    import networkx as nx

    dated = {_pair(link) for link in links if any(link.dateline)}
    graph: nx.Graph[str] = nx.Graph((link.a, link.b) for link in links)
    for ring in nx.connected_components(graph):
        closed = all(len(adjacency[name]) == 2 for name in ring)
        if closed and not any((min(e), max(e)) in dated for e in graph.edges(ring)):
            first = next(name for name in adjacency if name in ring)
            last = adjacency[first][-1]
            yield min(first, last), max(first, last)


def _dimensions(links: Sequence[Link]) -> dict[Pair, int]:
    """Return the dimension of each link of a mesh or torus, except links to leaves of the graph."""
    import networkx as nx

    every = _find_neighbours((link.a, link.b) for link in links)
    core = [
        link for link in links if min(len(every[link.a]), len(every[link.b])) > 1
    ]
    adjacency = _find_neighbours((link.a, link.b) for link in core)
    sets = nx.utils.UnionFind(dict.fromkeys(_pair(link) for link in core))
    for name, adjacent in adjacency.items():
        for one, two in combinations(adjacent, 2):
            corners = [
                x for x in adjacency[one] if x != name and x in adjacency[two]
            ]
            ends = [(name, one), (name, two)]
            same = [
                (end, (corner, other))
                for corner in corners
                for end, other in zip(ends, (two, one), strict=True)
            ]
            for a, b in same or [(ends[0], ends[1])]:
                sets.union((min(a), max(a)), (min(b), max(b)))
    numbers: dict[Pair, int] = {}
    result = {
        _pair(link): numbers.setdefault(sets[_pair(link)], len(numbers) + 1)
        for link in core
    }
    for name, adjacent in adjacency.items():
        dims = [result[min(name, other), max(name, other)] for other in adjacent]
        if any(dims.count(dim) > 2 for dim in dims):
            raise TopologyError(
                f"routing: dimension-order: links without dim; around {name} they do not form a mesh or torus; set dim"
            )
    return result
