"""Topology of a system: graph nodes, links with their rates, and routes.

Public names are imported when they are first used: descriptions, checks and generators need slow libraries.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from clusim.topology.arrays import FabricArrays
    from clusim.topology.check_links import Finding
    from clusim.topology.checks import check
    from clusim.topology.generators import generate
    from clusim.topology.graph import FabricBuilder, from_networkx, to_networkx
    from clusim.topology.loading import join_nodes, load, loads
    from clusim.topology.model import Fabric, Link
    from clusim.topology.node import Endpoint, Node, Unit
    from clusim.topology.packets import KIND_NAMES, Format, Protocol
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
    "join_nodes",
    "load",
    "loads",
    "to_networkx",
    "to_yaml",
]

_HOMES = {
    "arrays": ("FabricArrays",),
    "check_links": ("Finding",),
    "checks": ("check",),
    "generators": ("generate",),
    "graph": ("FabricBuilder", "from_networkx", "to_networkx"),
    "loading": ("join_nodes", "load", "loads"),
    "model": ("Fabric", "Link"),
    "node": ("Endpoint", "Node", "Unit"),
    "packets": ("KIND_NAMES", "Format", "Protocol"),
    "render": ("describe",),
    "save": ("to_yaml",),
}
_HOME = {name: home for home, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used."""
    if name not in _HOME:
        raise AttributeError(f"module 'clusim.topology' has no attribute {name!r}")
    return getattr(import_module(f"clusim.topology.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    """Return the public names, also before they are imported."""
    return sorted({*globals(), *__all__})
