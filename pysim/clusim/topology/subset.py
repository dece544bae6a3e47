"""Nodes of a topology: their graph nodes and links, and the topology with some of the nodes only.

**Model** Idle nodes do not affect the communication of others, whose paths use the same switches: a part of a job can
run on its own nodes and the complete network. Results are cached with the topology.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import field, replace

from clusim.base.records import dataclass
from clusim.topology.model import Fabric, Link
from clusim.topology.node import Node


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
    known: dict[int, NodeParts] | None = fabric.derived.get("parts")
    if known is None:
        known = fabric.derived["parts"] = _all_parts(fabric)
    return known.get(zone, NodeParts())


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
    """Return a topology with some nodes and its complete network between nodes.

    Ring orders name all ranks and do not apply to fewer.

    Parameters
    ----------
    zones : tuple of int
        Numbers of the nodes, ascending; they are numbered from 0 in the result.
    """
    known: dict[tuple[int, ...], Fabric] = fabric.derived.setdefault("on nodes", {})
    if zones not in known:
        number = {zone: index for index, zone in enumerate(zones)}
        nodes = tuple(
            replace(node, zone=number.get(node.zone, node.zone))
            for node in fabric.nodes
            if node.zone < 0 or node.zone in number
        )
        names = {node.name for node in nodes}
        links = tuple(link for link in fabric.links if link.a in names and link.b in names)
        known[zones] = replace(fabric, nodes=nodes, links=links, ring_orders=None)
    return known[zones]


def near_nodes(fabric: Fabric, zones: tuple[int, ...], count: int) -> tuple[int, ...]:
    """Return `count` of some nodes: the first at the same switches, otherwise the first."""
    at: dict[frozenset[str], list[int]] = defaultdict(list)
    for zone in zones:
        parts = parts_of(fabric, zone)
        ends = {end for link in parts.touching for end in (link.a, link.b)}
        near = at[frozenset(ends - parts.nodes.keys())]
        near.append(zone)
        if len(near) == count:
            return tuple(near)
    return zones[:count]
