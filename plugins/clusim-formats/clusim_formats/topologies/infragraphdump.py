"""Export of a topology as an InfraGraph file: devices, instances and edges.

Nodes with the same structure are instances of one device; network switches are separate devices.
Descriptions contain the names of hardware presets, by which an import recognises the components: a GPU's
product, a switch, a NIC, ``12 x nvlink3`` for parallel links. The bandwidth of an edge is the sum of its
parallel links. The format cannot represent buffers, routing, packet formats and NCCL's channels.

Edges of an InfraGraph file between hardware, with passive components (ports) merged.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from typing import Any

import yaml

from clusim.base.errors import InputError
from clusim.base.units import parse_rate, parse_time
from clusim.hardware import GPUS, PROCESSORS
from clusim.topology.model import Fabric, Link
from clusim.topology.node import Node
from clusim_formats.topologies.infragraph import (
    KINDS,
    InfraEdge,
    InfraGraph,
    InfraLink,
)

PASSIVE = ("port", "custom")
"""Roles of components that only pass data on."""

Near = dict[str, list[InfraEdge]]


def contract_passive(
    graph: InfraGraph, roles: dict[str, str]
) -> tuple[list[InfraEdge], list[tuple[str, str]]]:
    """Return the edges between hardware, and the omitted components with the reason.

    Passive components are removed from `roles`; one with more than two edges becomes a switch.
    """
    edges_of: Near = defaultdict(list)
    for edge in graph.edges:
        edges_of[edge.a].append(edge)
        edges_of[edge.b].append(edge)
    omitted: Counter[str] = Counter()
    for label in [label for label, role in roles.items() if role in PASSIVE]:
        if len(edges_of[label]) > 2:
            roles[label] = "switch"
            continue
        node = graph.nodes[label]
        if len(edges_of[label]) < 2:
            omitted[f"{node.device} {node.name}"] += 1
        del roles[label]
        _remove(label, edges_of)
    notes = [
        (reason, f"{count} components without links")
        for reason, count in omitted.items()
    ]
    remaining = {id(edge): edge for edges in edges_of.values() for edge in edges}
    edges = sorted(remaining.values(), key=lambda edge: edge.order)
    joined = {end for edge in edges for end in (edge.a, edge.b)}
    for label in [label for label in roles if label not in joined]:
        if roles[label] not in ("gpu", "host"):
            del roles[label]
            notes.append((label, "no edges to it"))
    return edges, notes


def _remove(label: str, edges_of: Near) -> None:
    """Remove a passive node; two edges at it become one."""
    ends = edges_of.pop(label, [])
    for end in ends:
        other = end.b if end.a == label else end.a
        edges_of[other] = [edge for edge in edges_of[other] if edge is not end]
    if len(ends) == 2:
        merged = _merge_edges(label, *ends)
        edges_of[merged.a].append(merged)
        edges_of[merged.b].append(merged)


def _merge_edges(middle: str, one: InfraEdge, two: InfraEdge) -> InfraEdge:
    """Return the edge through a passive component: the smaller rate, the sum of latencies."""
    ends = [edge.b if edge.a == middle else edge.a for edge in (one, two)]
    links = (one.link, two.link)
    times = [parse_time(link.latency) for link in links if link.latency]
    rates = [link.rate for link in links if link.rate]
    link = InfraLink(
        f"{one.link.text} {two.link.text}",
        min(rates, key=lambda rate: parse_rate(rate).bytes_per_s, default=""),
        f"{sum(times)}ps" if times else "",
        one.link.transfers or two.link.transfers,
    )
    return InfraEdge(ends[0], ends[1], link, min(one.order, two.order))


_CHOICES = {"gpu": "xpu", "nic": "nic", "memory": "memory", "host": "custom"}


def dump_infragraph(fabric: Fabric) -> str:
    """Return the file of a fabric as YAML."""
    result = _Writer(fabric).data()
    return yaml.safe_dump(result, sort_keys=False, width=110, allow_unicode=True)


class _Writer:
    def __init__(self, fabric: Fabric) -> None:
        self.fabric = fabric
        self.zone = {node.name: node.zone for node in fabric.nodes}
        self.place: dict[
            str, tuple[str, str]
        ] = {}  # of a node: its instance, and its component
        self.devices: list[dict[str, Any]] = []
        self.instances: list[dict[str, Any]] = []

    def data(self) -> dict[str, Any]:
        zones: dict[int, list[Node]] = defaultdict(list)
        for node in self.fabric.nodes:
            zones[node.zone].append(node)
        switches = zones.pop(-1, [])
        self._machines(zones)
        self._switches(switches)
        outer = [link for link in self.fabric.links if not self._inside(link)]
        links, edges = self._edges(outer)
        name = re.sub(r"[^A-Za-z0-9_.-]", "-", self.fabric.name) or "clusim"
        return {
            "name": name,
            "description": self.fabric.description
            or f"clusim topology {self.fabric.name}",
            "devices": self.devices,
            "instances": self.instances,
            "links": links,
            "edges": edges,
        }

    def _inside(self, link: Link) -> bool:
        return self.zone[link.a] == self.zone[link.b] >= 0

    # Devices.

    def _machines(self, zones: dict[int, list[Node]]) -> None:
        """Write nodes; equal nodes share one device."""
        inner: dict[int, list[Link]] = defaultdict(list)
        for link in self.fabric.links:
            if self._inside(link):
                inner[self.zone[link.a]].append(link)
        kinds: dict[str, str] = {}
        for zone, nodes in sorted(zones.items()):
            device = self._device(nodes, inner[zone])
            shape = repr(device)
            if shape not in kinds:
                kinds[shape] = f"node{len(kinds)}"
                self.devices.append({"name": kinds[shape], **device})
                self.instances.append(
                    {"name": kinds[shape], "device": kinds[shape], "count": 0}
                )
            self._instance(kinds[shape], [node.name for node in nodes])

    def _instance(self, device: str, names: list[str]) -> None:
        """Count an instance of a device, and note where its nodes are."""
        instance = next(item for item in self.instances if item["device"] == device)
        for name in names:
            self.place[name] = (
                f"{instance['name']}[{instance['count']}]",
                self.place[name][1],
            )
        instance["count"] += 1

    def _device(self, nodes: list[Node], links: list[Link]) -> dict[str, Any]:
        components: dict[tuple[str, str], dict[str, Any]] = {}
        used: Counter[str] = Counter()
        for node in nodes:
            choice, description = self._component(node)
            stem = node.name.rpartition("/")[2].rstrip("0123456789.") or choice
            key = (stem, description)
            if key not in components:
                used[stem] += 1
                name = stem if used[stem] == 1 else f"{stem}_{used[stem]}"
                part = {
                    "name": name,
                    "description": description,
                    "choice": choice,
                    "count": 0,
                }
                custom = {"custom": {"type": "host"}} if choice == "custom" else {}
                components[key] = part | custom
            self.place[node.name] = (
                "",
                f"{components[key]['name']}[{components[key]['count']}]",
            )
            components[key]["count"] += 1
        kinds, edges = self._edges(links)
        return {
            "components": list(components.values()),
            "links": kinds,
            "edges": edges,
        }

    def _component(self, node: Node) -> tuple[str, str]:
        """Return the choice of a component, and its description."""
        if node.kind == "switch":
            model = node.model or "generic"
            return ("cpu" if model in PROCESSORS else "switch"), model
        if node.nic is not None:
            return "nic", node.model or "nic"
        chip = node.endpoint.chip if node.endpoint is not None else node.kind
        choice = _CHOICES.get(node.kind, "")
        if choice not in KINDS:
            raise InputError(
                f"{self.fabric.name}: {node.name}: InfraGraph cannot describe a {node.kind}"
            )
        return choice, GPUS[chip].products[0] if chip in GPUS else chip

    def _switches(self, nodes: list[Node]) -> None:
        """Write network switches: a device for every model, an instance for every switch."""
        for node in nodes:
            stem = node.name.rstrip("0123456789.") or "switch"
            choice, model = self._component(node)
            device = f"{model}-{stem}"
            if not any(item["name"] == device for item in self.devices):
                names = {item["name"] for item in self.instances}
                instance = device if stem in names else stem
                asic = {
                    "name": "asic",
                    "description": model,
                    "choice": choice,
                    "count": 1,
                }
                self.devices.append(
                    {"name": device, "components": [asic], "links": [], "edges": []}
                )
                self.instances.append(
                    {"name": instance, "device": device, "count": 0}
                )
            self.place[node.name] = "", "asic[0]"
            self._instance(device, [node.name])

    # Links.

    def _edges(
        self, links: list[Link]
    ) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
        """Return the kinds of links, and an edge for every link."""
        kinds: dict[tuple[object, ...], dict[str, Any]] = {}
        edges = []
        for link in links:
            word = link.label
            key = (
                word,
                link.count,
                link.rate.num * 10**12 // link.rate.den,
                link.latency_ps,
            )
            rate = float(f"{link.count * link.rate.bytes_per_s / 1e9:.12g}")
            if key not in kinds:
                kinds[key] = {
                    "name": f"link{len(kinds)}",
                    "description": f"{link.count} x {word}",
                    "physical": {
                        "bandwidth": {
                            "choice": "gigabytes_per_second",
                            "gigabytes_per_second": rate,
                        },
                        "latency": {"choice": "ns", "ns": link.latency_ps / 1000},
                    },
                }
            ends = [self._end(name) for name in (link.a, link.b)]
            edges.append(
                {
                    "ep1": ends[0],
                    "ep2": ends[1],
                    "scheme": "one2one",
                    "link": kinds[key]["name"],
                }
            )
        return list(kinds.values()), edges

    def _end(self, name: str) -> dict[str, str]:
        """Return an end of an edge; inside a device it is without instance."""
        instance, component = self.place[name]
        return (
            {"instance": instance, "component": component}
            if instance
            else {"component": component}
        )
