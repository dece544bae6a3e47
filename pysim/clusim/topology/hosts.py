"""Hosts of a node: a rack with trays that share NVLink only is one node of several hosts."""

from __future__ import annotations

from clusim.topology.model import Fabric
from clusim.topology.node import NETWORK

GPU_LINKS = ("nvlink", "xgmi", "trunk")
"""Classes of links between GPUs, and of GPUs to their switches."""


def hosts_of(fabric: Fabric) -> dict[str, str]:
    """Return the host of each graph node outside the network, by the name of one of its members."""
    zone = {node.name: node.zone for node in fabric.nodes if node.zone != NETWORK}
    part = {name: name for name in zone}

    def top(name: str) -> str:
        while part[name] != name:
            part[name] = part[part[name]]
            name = part[name]
        return name

    for link in fabric.links:
        if (
            link.a in zone
            and zone[link.a] == zone.get(link.b)
            and link.cls not in GPU_LINKS
        ):
            part[top(link.a)] = top(link.b)
    return {name: top(name) for name in zone}
