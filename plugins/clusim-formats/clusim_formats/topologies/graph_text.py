"""Graphs in GraphML and node-link JSON: nodes and links with their attributes."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from clusim.base.limits import number, printable
from clusim.base.xmltext import XmlElement, parse_xml
from clusim.formats.topologies.common import Draft

Attributes = dict[str, Any]


@dataclass(slots=True)
class TextGraph:
    """A graph with the unchanged attributes of its nodes and edges."""

    directed: bool = False
    settings: Attributes = field(default_factory=dict)
    nodes: dict[str, Attributes] = field(default_factory=dict)
    edges: list[tuple[str, str, Attributes]] = field(default_factory=list)


def parse_graphml(text: str, draft: Draft) -> TextGraph:
    """Return the graph of a GraphML text."""
    root = parse_xml(text, draft.where)
    keys = {key.get("id"): key for key in root.all("key")}
    graphs = root.all("graph")
    if not graphs:
        raise draft.fail("no <graph> in the file", root.line)
    top = graphs[0]
    graph = TextGraph(
        directed=top.get("edgedefault") == "directed", settings=_data(top, keys)
    )
    for element in top.all("node"):
        name = element.get("id")
        if not name or name in graph.nodes:
            message = "two nodes with one id" if name else "<node> without id"
            raise draft.fail(message, element.line)
        graph.nodes[name] = _defaults(keys, "node") | _data(element, keys)
    for element in top.all("edge"):
        a, b = element.get("source"), element.get("target")
        if a not in graph.nodes or b not in graph.nodes:
            missing = a if a not in graph.nodes else b
            raise draft.fail(
                f"<edge> to unknown node {printable(missing)!r}", element.line
            )
        graph.edges.append((a, b, _defaults(keys, "edge") | _data(element, keys)))
    return graph


def _data(element: XmlElement, keys: Mapping[str, XmlElement]) -> Attributes:
    result: Attributes = {}
    for child in element.all("data"):
        key = keys.get(child.get("key"))
        if key is not None:
            result[key.get("attr.name") or key.get("id")] = _parse_typed(
                child.text.strip(), key
            )
    return result


def _defaults(keys: Mapping[str, XmlElement], kind: str) -> Attributes:
    return {
        key.get("attr.name"): _parse_typed(default.text.strip(), key)
        for key in keys.values()
        if key.get("for") in (kind, "all")
        for default in key.all("default")
    }


def _parse_typed(text: str, key: XmlElement) -> Any:
    kind = key.get("attr.type")
    if kind in ("int", "long") and re.fullmatch(r"-?[0-9]{1,18}", text):
        return int(text)
    if kind in ("float", "double"):
        return number(text)
    return text.lower() == "true" if kind == "boolean" else text


def parse_node_link(text: str, draft: Draft) -> TextGraph:
    """Return the graph of a node-link JSON text."""
    data = draft.json(text, "graph")
    nodes = data.get("nodes") if isinstance(data, dict) else None
    edges = data.get("links", data.get("edges")) if isinstance(data, dict) else None
    if not isinstance(nodes, list) or not isinstance(edges, list):
        raise draft.fail("no lists 'nodes' and 'links'; is it node-link JSON?")
    settings = data.get("graph")
    graph = TextGraph(
        directed=data.get("directed") is True,
        settings=dict(settings) if isinstance(settings, dict) else {},
    )
    for index, item in enumerate(nodes):
        name = _label(
            item.get("id", item.get("name")) if isinstance(item, dict) else item
        )
        if name is None:
            raise draft.fail(f"nodes[{index}]: id is missing")
        if name in graph.nodes:
            raise draft.fail(
                f"nodes[{index}]: two nodes have the id {printable(name)!r}"
            )
        keys = item if isinstance(item, dict) else {}
        graph.nodes[name] = {k: v for k, v in keys.items() if k != "id"}
    for index, item in enumerate(edges):
        ends = [
            _label(item.get(key)) if isinstance(item, dict) else None
            for key in ("source", "target")
        ]
        if any(end is None or end not in graph.nodes for end in ends):
            raise draft.fail(
                f"links[{index}]: source or target is not a node of the graph"
            )
        keys = {
            k: v for k, v in item.items() if k not in ("source", "target", "key")
        }
        graph.edges.append((str(ends[0]), str(ends[1]), keys))
    return graph


def _label(label: Any) -> str | None:
    """Return the text of a node's label: (0, 1) becomes n0.1, 7 becomes n7."""
    if isinstance(label, str):
        return label or None
    if isinstance(label, bool) or not isinstance(label, int | list):
        return None
    parts = label if isinstance(label, list) else [label]
    return "n" + ".".join(printable(part, 12) for part in parts)
