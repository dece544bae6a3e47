"""Topologies in a few lines of Python, with the keys of topology files."""

from __future__ import annotations

from typing import Any

from clusim.base.errors import TopologyError
from clusim.topology.model import Fabric


class FabricBuilder:
    """Builder that collects graph nodes and links of a `Fabric`.

    Quantities are strings with units, names may be ranges (``gpu0..7``), and types are hardware presets or
    defined by `define`. Example::

        net = FabricBuilder("two-planes")
        net.gpu("gpu0..3", chip="h100-sxm5")
        net.switch("sw0..1", latency="110ns")
        net.link("gpu0..3", "sw0..1", count=9, type="nvlink4")
        fabric = net.build()
    """

    def __init__(self, name: str, **settings: Any) -> None:
        """Start a topology; `settings` are top-level keys such as ``p2p``, ``channels``."""
        self._data: dict[str, Any] = {"name": name, **settings, "nodes": {}, "links": []}

    def _node(self, name: str, kind: str, keys: dict[str, Any]) -> str:
        if name in self._data["nodes"]:
            raise TopologyError(
                f"{self._data['name']}: node {name!r} exists already; names are unique"
            )
        self._data["nodes"][name] = {"kind": kind, **keys}
        return name

    def gpu(self, name: str, chip: str, **keys: Any) -> str:
        """Add a GPU, or a range; return the name."""
        return self._node(name, "gpu", {"chip": chip, **keys})

    def host(self, name: str, **keys: Any) -> str:
        """Add a host, or a range; return the name."""
        return self._node(name, "host", keys)

    def switch(self, name: str, **keys: Any) -> str:
        """Add a switch, or a range; return the name."""
        return self._node(name, "switch", keys)

    def link(self, a: str, b: str, **keys: Any) -> None:
        """Join two graph nodes, or all pairs of two ranges (``pair="zip"``: in order)."""
        self._data["links"].append({"from": a, "to": b, **keys})

    def define(self, section: str, name: str, **keys: Any) -> str:
        """Define a type.

        `section` is ``chips``, ``switches``, ``formats``, ``link_types`` or ``protocols``.
        """
        self._data.setdefault(section, {})[name] = keys
        return name

    def build(self) -> Fabric:
        """Return the topology; raise `TopologyError` with all problems."""
        return from_data(self._data)


def from_data(data: dict[str, Any]) -> Fabric:
    """Return the topology of plain data, in the form of a topology file."""
    import yaml

    from clusim.topology.loading import build_topology
    from clusim.topology.validate import Problems, validate

    problems = Problems(str(data.get("name") or "custom"))
    topology = validate(data, problems)
    text = yaml.safe_dump(data, sort_keys=False, allow_unicode=True)
    return build_topology(topology, problems, text)
