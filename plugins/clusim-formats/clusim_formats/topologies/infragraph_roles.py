"""Roles of the components of an InfraGraph file: kinds and names of their graph nodes."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from dataclasses import dataclass, field

from clusim.formats.topologies.common import Draft
from clusim_formats.topologies.infragraph import (
    InfraEdge,
    InfraGraph,
    InfraNode,
)

_NVSWITCH = re.compile(r"nv.?(?:link|l|switch|sw)|xgmi", re.IGNORECASE)
_PCIE = re.compile(r"pci|plx", re.IGNORECASE)
_PREFIXES = {
    "gpu": "gpu", "nvswitch": "nvswitch", "pcie": "pcie", "nic": "nic", "cpu": "cpu", "memory": "mem", "host": "host",
}  # fmt: skip


@dataclass(slots=True)
class InfraGraphRoles:
    """Components of a graph with their roles and names, and the edges between them."""

    graph: InfraGraph
    draft: Draft
    roles: dict[str, str] = field(default_factory=dict)
    names: dict[str, str] = field(default_factory=dict)
    zones: dict[int, int] = field(default_factory=dict)
    edges: list[InfraEdge] = field(default_factory=list)

    def find_roles(self) -> None:
        """Set the role of every component."""
        machines = {
            n.instance
            for n in self.graph.nodes.values()
            if n.kind in ("xpu", "host")
        }
        hosting = machines - {
            n.instance for n in self.graph.nodes.values() if n.kind == "xpu"
        }
        computing = {n.device for n in self.graph.nodes.values() if n.kind == "xpu"}
        for instance in sorted(machines):
            self.zones[instance] = len(self.zones)
        for label, node in self.graph.nodes.items():
            role = self._role(label, node, node.instance in machines, computing)
            among_hosts = node.instance in hosting and role in (
                "switch",
                "nvswitch",
                "pcie",
            )
            self.roles[label] = "fabric" if among_hosts else role
        if not machines:
            raise self.draft.fail("no component with choice xpu, so no GPUs")

    def _role(
        self, label: str, node: InfraNode, machine: bool, computing: set[str]
    ) -> str:
        text = f"{node.name} {node.description}"
        if node.kind in ("xpu", "nic", "memory", "host", "port"):
            return {"xpu": "gpu"}.get(node.kind, node.kind)
        if node.kind == "cpu":
            inner = label.count(".") > 3 and node.device not in computing
            return "nic" if machine and inner else "cpu" if machine else "network"
        if node.kind == "switch" or _NVSWITCH.search(text):
            if not machine:
                return "network"
            return (
                "nvswitch"
                if _NVSWITCH.search(text)
                else "pcie"
                if _PCIE.search(text)
                else "switch"
            )
        return "custom"

    def split_switches(self) -> None:
        """Classify unidentified switches: NVSwitches if joined only to GPUs and switches."""
        neighbours: dict[str, set[str]] = defaultdict(set)
        for edge in self.edges:
            neighbours[edge.a].add(self.roles[edge.b])
            neighbours[edge.b].add(self.roles[edge.a])
        unclear = [label for label, role in self.roles.items() if role == "switch"]
        for label in unclear:
            alone = "gpu" in neighbours[label] and neighbours[label] <= {
                "gpu",
                "switch",
            }
            self.roles[label] = "nvswitch" if alone else "pcie"
            kind = "an NVSwitch" if alone else "a PCIe switch"
            self.draft.assume(
                label, kind, "by its neighbours; not in its description"
            )

    def drop_control(self) -> None:
        """Drop links without data between GPUs, and the components that only these links join."""
        data_edges = [edge for edge in self.edges if self._carries_data(edge)]
        dropped = [label for edge in self.edges for label in (edge.a, edge.b)]
        joined = {end for edge in data_edges for end in (edge.a, edge.b)}
        if len(data_edges) < len(self.edges):
            count = len(self.edges) - len(data_edges)
            why = (
                "NVSwitches on PCIe, or memory of GPUs: no path of data between GPUs"
            )
            self.draft.assume(f"{count} links", "ignored", why)
        for label in dict.fromkeys(dropped):
            if label not in joined and self.roles[label] not in ("gpu", "host"):
                del self.roles[label]
                self.draft.assume(label, "ignored", "no path of data leads to it")
        self.edges = data_edges

    def _carries_data(self, edge: InfraEdge) -> bool:
        roles = {self.roles[edge.a], self.roles[edge.b]}
        control = "nvswitch" in roles and not roles <= {
            "gpu",
            "nvswitch",
            "network",
            "fabric",
        }
        return not control and not ("memory" in roles and roles & {"gpu", "nic"})

    def name_nodes(self) -> None:
        """Set the names of graph nodes, with their server if there are several."""
        several_nodes = len(self.zones) > 1
        counts: Counter[tuple[int, str]] = Counter()
        for label, role in self.roles.items():
            node = self.graph.nodes[label]
            if role == "network":
                owner = self.graph.instances[node.instance][0].replace(".", "")
                parts = sum(
                    1 for other, r in self.roles.items()
                    if r == role and self.graph.nodes[other].instance == node.instance
                )  # fmt: skip
                name = (
                    owner
                    if parts == 1
                    else f"{owner}.{node.name}{label.rpartition('.')[2]}"
                )
            else:
                zone = self.zones.get(node.instance, 0)
                prefix = _PREFIXES.get(role, node.name)
                name = f"{prefix}{counts[zone, prefix]}"
                counts[zone, prefix] += 1
                name = f"n{zone}/{name}" if several_nodes else name
            self.names[label] = re.sub(r"[^A-Za-z0-9_.:/@+-]", "_", name)[:60]
