"""Nodes of a topology: their graph nodes and links, and the topology with some of the nodes only.

**Model** Idle nodes do not affect the communication of others, whose paths use the same switches: a part of a job can
run on its own nodes and the switches between them. These are all on a shortest path between two nodes if packets use
shortest paths only, otherwise all. Results are cached with the topology.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import field, replace

import numpy as np

from clusim.base.arrays import Array
from clusim.base.records import dataclass
from clusim.topology.model import Fabric, Link
from clusim.topology.node import Node

MOST_ENDS = 64
"""Switches at the nodes up to which the switches between them are searched."""


@dataclass(slots=True)
class NodeParts:
    """Parts of a node, in the order of the topology.

    Attributes
    ----------
    nodes : dict of str to Node
        Its graph nodes by name.
    inside : list of Link
        Links between them.
    touching : list of Link
        These, and the links to the network and to other nodes.
    """

    nodes: dict[str, Node] = field(default_factory=dict)
    inside: list[Link] = field(default_factory=list)
    touching: list[Link] = field(default_factory=list)


def parts_of(fabric: Fabric, zone: int) -> NodeParts:
    """Return the graph nodes and links of a node, by its number."""
    cached: dict[int, NodeParts] | None = fabric.cache.get("parts")
    if cached is None:
        cached = fabric.cache["parts"] = _all_parts(fabric)
    return cached.get(zone, NodeParts())


def _all_parts(fabric: Fabric) -> dict[int, NodeParts]:
    """Return the parts of every node and, as number -1, of the network."""
    result: dict[int, NodeParts] = defaultdict(NodeParts)
    zones = {node.name: node.zone for node in fabric.nodes}
    for node in fabric.nodes:
        result[node.zone].nodes[node.name] = node
    for link in fabric.links:
        one, two = zones[link.a], zones[link.b]
        result[one].touching.append(link)
        if one == two:
            result[one].inside.append(link)
        else:
            result[two].touching.append(link)
    return dict(result)


def on_nodes(fabric: Fabric, zones: tuple[int, ...]) -> Fabric:
    """Return a topology with some nodes and the switches between them.

    Ring orders name all ranks and do not apply to fewer.

    Parameters
    ----------
    zones : tuple of int
        Numbers of the nodes, ascending; they are numbered from 0 in the result.
    """
    cache: dict[tuple[int, ...], Fabric] = fabric.cache.setdefault("on nodes", {})
    if zones not in cache:
        number = {zone: index for index, zone in enumerate(zones)}
        network = _between(fabric, zones)
        nodes = tuple(
            replace(node, zone=number.get(node.zone, node.zone))
            for node in fabric.nodes
            if node.zone in number or node.name in network
        )
        names = {node.name for node in nodes}
        links = tuple(
            link for link in fabric.links if link.a in names and link.b in names
        )
        cache[zones] = replace(fabric, nodes=nodes, links=links, ring_orders=None)
    return cache[zones]


def _between(fabric: Fabric, zones: tuple[int, ...]) -> set[str]:
    """Return the switches of the network that packets between some nodes can use."""
    network = parts_of(fabric, -1)
    ends = sorted(
        {
            end
            for zone in zones
            for end in _ends(fabric, zone)
            if end in network.nodes
        }
    )
    forwarding = fabric.forwarding
    shortest = (
        fabric.network_routing == "shortest"
        and forwarding.choice != "ugal"
        and not forwarding.paths
        and all(link.weight == 1 and all(link.routed) for link in network.inside)
    )
    if not shortest or len(ends) > MOST_ENDS:
        return set(network.nodes)
    names = list(network.nodes)
    far = (
        np.stack([_distances(fabric, end) for end in ends])
        if ends
        else np.empty((0, len(names)))
    )
    at = [names.index(end) for end in ends]
    used = np.zeros(len(names), bool)
    for row in far:
        used |= (row + far == row[at][:, None]).any(axis=0)
    return {name for name, use in zip(names, used.tolist(), strict=True) if use}


def _ends(fabric: Fabric, zone: int) -> set[str]:
    """Return the graph nodes outside a node that its links lead to."""
    parts = parts_of(fabric, zone)
    return {
        end for link in parts.touching for end in (link.a, link.b)
    } - parts.nodes.keys()


def _distances(fabric: Fabric, switch: str) -> Array:
    """Return the links between a switch and every switch of the network; infinite if not connected."""
    cache: dict[str, Array] = fabric.cache.setdefault("distances", {})
    if switch not in cache:
        neighbours: dict[str, list[str]] = defaultdict(list)
        network = parts_of(fabric, -1)
        for link in network.inside:
            neighbours[link.a].append(link.b)
            neighbours[link.b].append(link.a)
        steps, border = {switch: 0.0}, [switch]
        while border:
            border = [
                other
                for at in border
                for other in neighbours[at]
                if other not in steps
            ]
            steps |= dict.fromkeys(border, max(steps.values()) + 1)
            border = list(dict.fromkeys(border))
        cache[switch] = np.array([steps.get(name, np.inf) for name in network.nodes])
    return cache[switch]


def near_nodes(
    fabric: Fabric, zones: tuple[int, ...], count: int
) -> tuple[int, ...]:
    """Return `count` of some nodes: the first at the same switches, otherwise the first."""
    at: dict[frozenset[str], list[int]] = defaultdict(list)
    for zone in zones:
        candidates = at[frozenset(_ends(fabric, zone))]
        candidates.append(zone)
        if len(candidates) == count:
            return tuple(candidates)
    return zones[:count]
