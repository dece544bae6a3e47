"""The fabric: what is connected to what, how fast, and which way packets go."""

from __future__ import annotations

from clusim.fabric.arrays import FabricArrays
from clusim.fabric.builder import FabricBuilder
from clusim.fabric.check import check
from clusim.fabric.check_links import Finding
from clusim.fabric.endpoint import Endpoint
from clusim.fabric.generators import generate
from clusim.fabric.lazy import from_networkx, to_networkx
from clusim.fabric.loading import load, loads
from clusim.fabric.model import KIND_NAMES, Fabric, Format, Link, Protocol
from clusim.fabric.node import Node, Unit
from clusim.fabric.render import describe
from clusim.fabric.save import to_yaml

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
