"""Conversion from and to networkx graphs.

`to_networkx` returns a `MultiGraph` with plain attributes (the keys of topology files, so it survives
node-link JSON and GraphML-like formats that keep them); `from_networkx` reads such a graph, or any
undirected graph plus defaults.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import networkx as nx

from clusim.base.errors import TopologyError
from clusim.topology.builder import from_data
from clusim.topology.model import Fabric
from clusim.topology.save import to_data
from clusim.topology.schema import LinkSpec, NodeSpec, Topology


def _keys(model: type[Any], *without: str) -> set[str]:
    return {info.alias or name for name, info in model.model_fields.items()} - set(without)


_NODE_KEYS = _keys(NodeSpec)
_LINK_KEYS = _keys(LinkSpec, "from", "to", "pair")
_GRAPH_KEYS = _keys(Topology, "nodes", "links")


def to_networkx(fabric: Fabric) -> nx.MultiGraph[str]:
    """Return the topology as an undirected multigraph.

    Each `Link` is an edge, with its number of links in ``count``.
    """
    data = to_data(fabric)
    graph: nx.MultiGraph[str] = nx.MultiGraph()
    graph.graph.update({key: value for key, value in data.items() if key not in ("nodes", "links")})
    for name, attributes in data["nodes"].items():
        graph.add_node(name, **attributes)
    for number, link in enumerate(data["links"]):
        attributes = {key: value for key, value in link.items() if key not in ("from", "to")}
        graph.add_edge(
            link["from"], link["to"], order=number, ends=[link["from"], link["to"]], **attributes
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
        raise TopologyError("graph is directed; links are duplex: pass graph.to_undirected()")
    names = {label: _label(label) for label in graph.nodes}
    if len(set(names.values())) != len(names):
        raise TopologyError("graph has nodes whose names look alike as text; relabel them")
    data = {key: value for key, value in graph.graph.items() if key in _GRAPH_KEYS} | settings
    if not isinstance(data.get("name"), str) or not data["name"]:
        data["name"] = "graph"
    data["nodes"] = {
        names[label]: {**(node or {}), **_known(attributes, _NODE_KEYS)}
        for label, attributes in graph.nodes(data=True)
    }
    edges = sorted(graph.edges(data=True), key=lambda edge: edge[2].get("order", 0))
    data["links"] = [_edge(a, b, attributes, names, link) for a, b, attributes in edges]
    return from_data(data)


def _edge(
    a: Any,
    b: Any,
    attributes: Mapping[str, Any],
    names: Mapping[Any, str],
    link: Mapping[str, Any] | None,
) -> dict[str, Any]:
    ends = attributes.get("ends")
    if not (isinstance(ends, list) and sorted(ends) == sorted((names[a], names[b]))):
        ends = [names[a], names[b]]
    return {**(link or {}), **_known(attributes, _LINK_KEYS), "from": ends[0], "to": ends[1]}


def _known(attributes: Mapping[str, Any], keys: set[str]) -> dict[str, Any]:
    return {key: value for key, value in attributes.items() if key in keys}


def _label(label: Any) -> str:
    """Return a node name for a graph's label: (0, 1) becomes n0.1, 7 becomes n7."""
    if isinstance(label, str):
        return label
    parts = label if isinstance(label, tuple) else (label,)
    return "n" + ".".join(str(part) for part in parts)
