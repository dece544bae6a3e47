"""Topology of a system: graph nodes, links with their rates, and routes."""

from __future__ import annotations

from clusim.topology.arrays import FabricArrays
from clusim.topology.check import check
from clusim.topology.check_links import Finding
from clusim.topology.generators import generate
from clusim.topology.graph import FabricBuilder, from_networkx, to_networkx
from clusim.topology.loading import load, loads
from clusim.topology.model import KIND_NAMES, Fabric, Format, Link, Protocol
from clusim.topology.node import Endpoint, Node, Unit
from clusim.topology.render import describe
from clusim.topology.save import to_yaml

__all__ = [
    "KIND_NAMES",
    "Endpoint",
    "Fabric",
    "FabricArrays",
    "FabricBuilder",
    "Finding",
    "Format",
    "Link",
    "Node",
    "Protocol",
    "Unit",
    "check",
    "describe",
    "from_networkx",
    "generate",
    "load",
    "loads",
    "to_networkx",
    "to_yaml",
]
