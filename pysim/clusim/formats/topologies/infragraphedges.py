"""Edges of an InfraGraph file between hardware, with passive components (ports) merged."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass

from clusim.base.units import parse_rate, parse_time
from clusim.formats.topologies.infragraph import InfraGraph

PASSIVE = ("port", "custom")
"""Roles of components that only pass data on."""

Near = dict[str, list["Edge"]]


@dataclass(slots=True)
class Edge:
    """An edge between hardware components; `text` has the words of all edges merged into it."""

    a: str
    b: str
    text: str
    rate: str
    latency: str
    transfers: float
    order: int


def contracted(
    graph: InfraGraph, roles: dict[str, str]
) -> tuple[list[Edge], list[tuple[str, str]]]:
    """Return the edges between hardware, and the omitted components with the reason.

    Passive components are removed from `roles`; one with more than two edges becomes a switch.
    """
    near: Near = defaultdict(list)
    for order, one in enumerate(graph.edges):
        link = one.link
        edge = Edge(one.a, one.b, link.text, link.rate, link.latency, link.transfers, order)
        near[one.a].append(edge)
        near[one.b].append(edge)
    left: Counter[str] = Counter()
    for label in [label for label, role in roles.items() if role in PASSIVE]:
        if len(near[label]) > 2:
            roles[label] = "switch"
            continue
        node = graph.nodes[label]
        if len(near[label]) < 2:
            left[f"{node.device} {node.name}"] += 1
        del roles[label]
        _remove(label, near)
    notes = [(what, f"{count} components that join nothing") for what, count in left.items()]
    kept = {id(edge): edge for edges in near.values() for edge in edges}
    edges = sorted(kept.values(), key=lambda edge: edge.order)
    joined = {end for edge in edges for end in (edge.a, edge.b)}
    for label in [label for label in roles if label not in joined]:
        if roles[label] not in ("gpu", "host"):
            del roles[label]
            notes.append((label, "nothing is joined to it"))
    return edges, notes


def _remove(label: str, near: Near) -> None:
    """Remove a passive node; two edges at it become one."""
    ends = near.pop(label, [])
    for end in ends:
        other = end.b if end.a == label else end.a
        near[other] = [edge for edge in near[other] if edge is not end]
    if len(ends) == 2:
        merged = _merged(label, *ends)
        near[merged.a].append(merged)
        near[merged.b].append(merged)


def _merged(middle: str, one: Edge, two: Edge) -> Edge:
    """Return the edge through a passive component: the smaller rate, the sum of latencies."""
    ends = [edge.b if edge.a == middle else edge.a for edge in (one, two)]
    rates = [edge.rate for edge in (one, two) if edge.rate]
    times = [parse_time(edge.latency) for edge in (one, two) if edge.latency]
    return Edge(
        ends[0], ends[1], f"{one.text} {two.text}",
        min(rates, key=lambda rate: parse_rate(rate).bytes_per_s, default=""),
        f"{sum(times)}ps" if times else "",
        one.transfers or two.transfers,
        min(one.order, two.order),
    )  # fmt: skip
