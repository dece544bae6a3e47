"""Topologies from Python and from networkx, and conversion to networkx.

`FabricBuilder` describes a topology in a few lines with the keys of topology files. `to_networkx` returns a
`MultiGraph` with plain attributes (the same keys, so it survives node-link JSON and GraphML-like formats that keep
them); `from_networkx` reads such a graph, or any undirected graph plus defaults.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cache
from typing import TYPE_CHECKING, Any, Unpack

from clusim.base.errors import TopologyError
from clusim.base.limits import number
from clusim.topology.keys import LinkKeys, NodeKeys, SwitchKeys, TopologyKeys
from clusim.topology.loading import from_data
from clusim.topology.model import Fabric
from clusim.topology.save import to_data

if TYPE_CHECKING:
    import networkx as nx


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

    def __init__(self, name: str, **keys: Unpack[TopologyKeys]) -> None:
        """Start a topology; keys are as in a topology file, see `TopologyKeys`."""
        self._data: dict[str, Any] = {"name": name, **keys, "nodes": {}, "links": []}

    def _node(self, name: str, kind: str, keys: Mapping[str, Any]) -> str:
        if name in self._data["nodes"]:
            raise TopologyError(
                f"{self._data['name']}: node {name!r} exists already; names are unique"
            )
        self._data["nodes"][name] = {"kind": kind, **keys}
        return name

    def gpu(self, name: str, chip: str, **keys: Unpack[NodeKeys]) -> str:
        """Add a GPU, or a range; return the name. With ``relay=True`` it forwards packets of others."""
        return self._node(name, "gpu", {"chip": chip, **keys})

    def host(self, name: str, **keys: Unpack[NodeKeys]) -> str:
        """Add a host, or a range; return the name."""
        return self._node(name, "host", keys)

    def switch(self, name: str, **keys: Unpack[SwitchKeys]) -> str:
        """Add a switch, or a range; return the name."""
        return self._node(name, "switch", keys)

    def link(self, a: str, b: str, **keys: Unpack[LinkKeys]) -> None:
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


@cache
def _keys(model: str, *without: str) -> set[str]:
    from clusim.topology import schema

    fields = getattr(schema, model).model_fields
    return {info.alias or name for name, info in fields.items()} - set(without)


def to_networkx(fabric: Fabric) -> nx.MultiGraph[str]:
    """Return the topology as an undirected multigraph.

    Each `Link` is an edge, with its number of links in ``count``.
    """
    import networkx as nx

    data = to_data(fabric)
    graph: nx.MultiGraph[str] = nx.MultiGraph()
    graph.graph.update(
        {key: value for key, value in data.items() if key not in ("nodes", "links")}
    )
    for name, attributes in data["nodes"].items():
        graph.add_node(name, **attributes)
    for order, link in enumerate(data["links"]):
        attributes = {
            key: value for key, value in link.items() if key not in ("from", "to")
        }
        graph.add_edge(
            link["from"],
            link["to"],
            order=order,
            ends=[link["from"], link["to"]],
            **attributes,
        )
    return graph


def from_networkx(
    graph: nx.Graph[Any],
    *,
    node: Mapping[str, Any] | None = None,
    link: Mapping[str, Any] | None = None,
    **settings: Any,
) -> Fabric:
    """Return the topology of a graph.

    Parameters
    ----------
    graph : networkx.Graph
        Undirected. Attributes with the names of topology-file keys are used, others ignored.
    node, link : mapping
        Keys for graph nodes and edges without these attributes, e.g. ``link={"rate": "50 GB/s"}``.
    **settings
        Top-level keys, e.g. ``name``, ``channels``, ``routing``.
    """
    if graph.is_directed():
        raise TopologyError(
            "graph is directed; links are duplex: pass graph.to_undirected()"
        )
    names = {label: _label(label) for label in graph.nodes}
    if len(set(names.values())) != len(names):
        raise TopologyError(
            "graph has nodes with the same name as text; relabel them"
        )
    data = known_data(
        graph.graph,
        {names[label]: attributes for label, attributes in graph.nodes(data=True)},
        (
            (names[a], names[b], attributes)
            for a, b, attributes in graph.edges(data=True)
        ),
    )
    nodes, links = data.pop("nodes"), data.pop("links")
    data |= settings
    if not isinstance(data.get("name"), str) or not data["name"]:
        data["name"] = "graph"
    data["nodes"] = {name: {**(node or {}), **keys} for name, keys in nodes.items()}
    data["links"] = [{**(link or {}), **keys} for keys in links]
    return from_data(data)


def known_data(
    settings: Mapping[str, Any],
    nodes: Mapping[str, Mapping[str, Any]],
    edges: Iterable[tuple[str, str, Mapping[str, Any]]],
) -> dict[str, Any]:
    """Return plain data of a graph: its attributes with names of topology-file keys.

    Parameters
    ----------
    settings : mapping
        Attributes of the graph.
    nodes : mapping
        Attributes of graph nodes by name.
    edges : iterable of (str, str, mapping)
        Names of both ends, and attributes of edges.
    """
    node_keys, link_keys = _keys("NodeSpec"), _keys("LinkSpec", "from", "to", "pair")
    data = _known_attributes(settings, _keys("Topology", "nodes", "links"))
    data["nodes"] = {
        name: _known_attributes(attributes, node_keys)
        for name, attributes in nodes.items()
    }
    data["links"] = []
    for a, b, attributes in sorted(
        edges, key=lambda edge: number(edge[2].get("order")) or 0
    ):
        ends = attributes.get("ends")
        if not isinstance(ends, list) or sorted(map(str, ends)) != sorted((a, b)):
            ends = [a, b]
        one, two = map(str, ends)
        data["links"].append(
            {**_known_attributes(attributes, link_keys), "from": one, "to": two}
        )
    return data


def _known_attributes(
    attributes: Mapping[str, Any], keys: set[str]
) -> dict[str, Any]:
    return {key: value for key, value in attributes.items() if key in keys}


def _label(label: Any) -> str:
    """Return a node name for a graph's label: (0, 1) becomes n0.1, 7 becomes n7."""
    if isinstance(label, str):
        return label
    parts = label if isinstance(label, tuple) else (label,)
    return "n" + ".".join(str(part) for part in parts)
