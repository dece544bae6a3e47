"""Topology sorted for display: nodes as trees below their CPUs, GPU links, network tiers.

`tree` writes it as text. This module does not affect the simulation.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from clusim.base.tables import group_values
from clusim.base.units import Rate
from clusim.topology.model import Fabric, Link
from clusim.topology.node import NETWORK, Node, kind_of

Signature = tuple[object, ...]
"""Properties shared by equal parts: all but names."""

TIERS = ("leaf", "edge", "tor", "spine", "aggregation", "core")
"""Network tiers from the nodes upward; other tiers follow, in the order of the topology."""


@dataclass(slots=True)
class Branch:
    """Graph node, the links to its parent, and its children."""

    node: Node
    links: list[Link] = field(default_factory=list)
    children: list[Branch] = field(default_factory=list)

    def walk(self) -> Iterator[Branch]:
        """Yield this branch and all below it."""
        yield self
        for child in self.children:
            yield from child.walk()

    def signature(self) -> Signature:
        """Return the signature without names."""
        return (
            kind_of(self.node),
            self.node.product,
            tuple((link.count, link.rate, link.name) for link in self.links),
            tuple(child.signature() for child in self.children),
        )


@dataclass(slots=True)
class OutlinedMachine:
    """Graph nodes of one zone.

    Attributes
    ----------
    roots : list of Branch
        Trees below CPUs, and below graph nodes that no CPU reaches.
    switches : list of Node
        NVSwitches.
    gpu_links : list of Link
        Between GPUs, or a GPU and an NVSwitch, or two NVSwitches.
    side_links : list of Link
        Between CPUs, and other links outside the trees.
    """

    zone: int
    roots: list[Branch] = field(default_factory=list)
    switches: list[Node] = field(default_factory=list)
    gpu_links: list[Link] = field(default_factory=list)
    side_links: list[Link] = field(default_factory=list)

    def shown_roots(self, limit: int) -> list[list[Branch]]:
        """Return the trees to show; if more than `limit` are equal, the first is followed by the omitted trees."""
        alike = group_values((root.signature(), root) for root in self.roots)
        groups = [(alike[root.signature()], root) for root in self.roots]
        return [
            same if len(same) > limit else [root]
            for same, root in groups
            if len(same) <= limit or root is same[0]
        ]

    def gpus(self) -> list[Node]:
        """Return the ranks of the node in order."""
        result = {b.node.name: b.node for root in self.roots for b in root.walk()}
        return [node for node in result.values() if node.kind in ("gpu", "host")]

    def signature(self) -> Signature:
        """Return the signature without names."""
        return (
            tuple(root.signature() for root in self.roots),
            len(self.switches),
            tuple(
                sorted(
                    (link.name, link.count, str(link.rate))
                    for link in self.gpu_links
                )
            ),
            tuple((link.name, link.count, link.rate) for link in self.side_links),
        )


@dataclass(slots=True)
class Outline:
    """Outline of a topology.

    Attributes
    ----------
    machines : list of OutlinedMachine
        Nodes by zone; empty for plain networks of hosts.
    tiers : list of (str, list of Node)
        Hosts and switches of the network, from the nodes upward.
    cables : list of Link
        Links of the network, including those of NICs.
    """

    fabric: Fabric
    machines: list[OutlinedMachine] = field(default_factory=list)
    tiers: list[tuple[str, list[Node]]] = field(default_factory=list)
    cables: list[Link] = field(default_factory=list)

    def alike(self) -> list[list[OutlinedMachine]]:
        """Return the nodes in groups with equal outlines."""
        return list(
            group_values((one.signature(), one) for one in self.machines).values()
        )


def is_gpu_link(one: Node, other: Node) -> bool:
    """True if a link between two nodes is one between GPUs, direct or over NVSwitches."""
    kinds = {kind_of(one), kind_of(other)}
    return kinds <= {"gpu", "nvswitch"}


def total(links: Iterable[Link]) -> Rate:
    """Return the total rate of links."""
    result = Rate(0, 1)
    for link in links:
        more = link.rate * link.count
        result = Rate(
            result.num * more.den + more.num * result.den, result.den * more.den
        )
    return result


def outline(fabric: Fabric) -> Outline:
    """Return the topology sorted into nodes and network."""
    result = Outline(fabric)
    nodes = {node.name: node for node in fabric.nodes}
    kinds = {name: kind_of(node) for name, node in nodes.items()}
    is_machine = any(
        kind in ("cpu", "pcie", "nvswitch", "nic") for kind in kinds.values()
    ) or (not any(kind == "switch" for kind in kinds.values()))
    network = {
        name
        for name, node in nodes.items()
        if node.zone == NETWORK
        or not is_machine
        or (kinds[name] == "switch" and node.tier in TIERS)
    }
    _sort_network(result, nodes, network)
    if is_machine:
        zones = group_values(
            (n.zone, n) for n in fabric.nodes if n.name not in network
        )
        inside = group_values(
            (nodes[link.a].zone, link)
            for link in fabric.links
            if network.isdisjoint((link.a, link.b))
        )
        result.machines = [
            _machine(z, zones[z], inside.get(z, [])) for z in sorted(zones)
        ]
    return result


def _sort_network(
    result: Outline, nodes: dict[str, Node], network: set[str]
) -> None:
    tiers = group_values(
        (n.tier or n.kind, n) for n in nodes.values() if n.name in network
    )
    order = {tier: number for number, tier in enumerate(("host", "gpu", *TIERS))}
    result.tiers = sorted(
        tiers.items(), key=lambda item: order.get(item[0], len(order))
    )
    result.cables = [
        link
        for link in result.fabric.links
        if link.a in network or link.b in network
    ]


_ROOTS = {"cpu": 0, "pcie": 1, "switch": 1, "nic": 2}
"""Order in which kinds of graph nodes become roots of trees; other kinds follow."""


def _machine(zone: int, members: list[Node], links: list[Link]) -> OutlinedMachine:
    machine = OutlinedMachine(zone)
    nodes = {node.name: node for node in members}
    kinds = {node.name: kind_of(node) for node in members}
    neighbours: dict[str, list[tuple[str, Link]]] = {name: [] for name in nodes}
    for link in links:
        if is_gpu_link(nodes[link.a], nodes[link.b]):
            machine.gpu_links.append(link)
        elif kinds[link.a] == kinds[link.b] == "cpu":
            machine.side_links.append(link)
        else:
            neighbours[link.a].append((link.b, link))
            neighbours[link.b].append((link.a, link))
    machine.switches = [node for node in members if kinds[node.name] == "nvswitch"]
    visited: set[str] = set()
    used = {id(link) for link in (*machine.gpu_links, *machine.side_links)}
    devices = [node for node in members if kinds[node.name] != "nvswitch"]
    for node in sorted(
        devices, key=lambda node: _ROOTS.get(kinds[node.name], len(_ROOTS))
    ):
        if node.name in visited:
            continue
        visited.add(node.name)
        root = Branch(node)
        machine.roots.append(root)
        # Breadth first, so that every graph node is attached where it is nearest to a CPU.
        queue = [root]
        while queue:
            branch = queue.pop(0)
            for name, _ in neighbours[branch.node.name]:
                if name in visited or kinds[name] == "cpu":
                    continue
                visited.add(name)
                attached = [
                    item
                    for other, item in neighbours[name]
                    if other == branch.node.name
                ]
                used.update(map(id, attached))
                child = Branch(nodes[name], attached)
                branch.children.append(child)
                queue.append(child)
    machine.side_links += [link for link in links if id(link) not in used]
    return machine
