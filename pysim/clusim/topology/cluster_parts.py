"""Parts of a cluster network: one link and one switch of each tier, from types by name.

Parts that the description does not name are those of the node: its ``network:``, or, without one, a link
as fast as the slots of its NICs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from clusim.base.errors import TopologyError
from clusim.topology.assemble import assemble
from clusim.topology.catalogue import Catalogue, Section
from clusim.topology.model import Fabric, Format, Link
from clusim.topology.node import NETWORK, Node
from clusim.topology.schema import LengthsSpec, LinkSpec, NetworkSpec, NodeSpec, Topology
from clusim.topology.validate import Path, Problems

UNLIMITED = 1 << 20
"""Ports of a switch without a port limit."""

SWITCH_OF_LINK = {
    "ib-fdr": "switchx2",
    "ib-edr": "switch-ib2",
    "ib-hdr100": "quantum-hdr100",
    "ib-hdr": "quantum",
    "ib-ndr200": "quantum2",
    "ib-ndr": "quantum2",
    "ib-xdr": "quantum-x800",
    "slingshot-100": "rosetta",
    "slingshot-200": "rosetta",
    "roce-25": "spectrum2",
    "roce-50": "spectrum2",
    "roce-100": "spectrum2",
    "roce-200": "spectrum3",
    "roce-400": "spectrum4",
    "roce-800": "tomahawk5",
    "efa-25": "efa-fabric",
    "efa-50": "efa-fabric",
    "efa-100": "efa-fabric",
    "efa-200": "efa-fabric",
    "efa-400": "efa-fabric",
}
"""Switches that link types are usually used with."""

SLOTS = ((100e9, "ib-xdr"), (50e9, "ib-ndr"), (25e9, "ib-hdr"), (12.5e9, "ib-edr"))
"""Link types by rate [B/s], fastest first, for NICs known only by their slot."""

TIERS = ("nic", "spine", "core", "local", "global", "torus")


@dataclass(slots=True)
class Parts:
    """Prototypes of the network.

    Attributes
    ----------
    links : dict
        A link of each tier of cables.
    switches : dict
        A switch for ``leaf``, ``spine`` and ``core``.
    spec : NetworkSpec
        The description with defaults resolved.
    """

    spec: NetworkSpec
    links: Mapping[str, Link]
    switches: Mapping[str, Node]
    formats: Mapping[str, Format]
    sources: Mapping[str, str]

    def ports(self, tier: str) -> int:
        """Return the number of ports of a tier's switch."""
        return self.switches[tier].ports or UNLIMITED

    def uplinks_per_nic(self) -> float:
        """Return the uplinks of a leaf per NIC that carry its full rate, without oversubscription."""
        nic, trunk = self.links["nic"].rate, self.links["spine"].rate
        return nic.num * trunk.den / (nic.den * trunk.num)


@dataclass(slots=True)
class Drawing:
    """Network under construction around nodes.

    Attributes
    ----------
    nics : list of list of str
        Names of the connected NICs, by node.
    dimension_order : bool
        True if the network routes in dimension order.
    facts : list of str
        Parts of the network, for the description.
    """

    parts: Parts
    nics: list[list[str]]
    nodes: list[Node] = field(default_factory=list)
    links: list[Link] = field(default_factory=list)
    dimension_order: bool = False
    facts: list[str] = field(default_factory=list)

    def switch(self, name: str, kind: str, tier: str | None = None) -> str:
        """Add a switch."""
        proto = self.parts.switches[kind]
        self.nodes.append(replace(proto, name=name, tier=tier or kind, zone=NETWORK))
        return name

    def nic(self, nic: str, switch: str) -> None:
        """Connect a NIC to its switch."""
        self.links.append(replace(self.parts.links["nic"], a=nic, b=switch))

    def trunk(self, tier: str, a: str, b: str, count: int = 1, **changes: Any) -> None:
        """Join two switches."""
        self.links.append(replace(self.parts.links[tier], a=a, b=b, count=count, **changes))


def amount(count: int, one: str, many: str = "") -> str:
    """Return ``1 leaf`` or ``4 leaves``."""
    return f"{count} {one if count == 1 else many or one + 's'}"


def usual_network(machine: Fabric) -> NetworkSpec:
    """Return the default network of nodes of a kind."""
    if machine.network:
        return NetworkSpec.model_validate(dict(machine.network))
    return NetworkSpec(kind="rail", link=_link_of_slot(machine))


def _link_of_slot(machine: Fabric) -> str:
    """Return the fastest link type that the slots of the node's NICs can feed."""
    nics = {node.name for node in machine.nodes if node.kind == "nic"}
    rates = [
        link.rate.bytes_per_s * link.count
        for link in machine.links
        if link.a in nics or link.b in nics
    ]
    slot = min(rates, default=0.0)
    return next((name for rate, name in SLOTS if rate <= slot), SLOTS[-1][1])


def make_parts(spec: NetworkSpec, machine: Fabric, topology: Topology, problems: Problems) -> Parts:
    """Resolve the types that `spec` names; raise `TopologyError` for unknown ones."""
    if spec.link is None:
        spec = spec.model_copy(update={"link": _link_of_slot(machine)})
    if spec.switch is None:
        spec = spec.model_copy(update={"switch": SWITCH_OF_LINK.get(str(spec.link), "generic")})
    types = _types(machine, topology)
    _check_types(spec, types, topology, problems)
    sample = _sample(spec, types, problems)
    return Parts(
        spec=spec,
        links=dict(zip(TIERS, sample.links, strict=True)),
        switches={
            node.name: node if spec.radix is None else replace(node, ports=spec.radix)
            for node in sample.nodes
            if node.name != "nic"
        },
        formats=sample.formats,
        sources={
            key: text
            for key, text in sample.sources.items()
            if key.startswith(("link type", "switch ", "format "))
        },
    )


def _check_types(
    spec: NetworkSpec, types: Topology, topology: Topology, problems: Problems
) -> None:
    """Resolve every type at its key, so that a problem is reported there, and once."""
    wanted: list[tuple[Section, str]] = [
        ("link_types", "link"),
        ("link_types", "trunk"),
        ("switches", "switch"),
        ("switches", "spine_switch"),
        ("switches", "core_switch"),
    ]
    catalogue = Catalogue(types, problems)
    given = topology.cluster.network if topology.cluster else None
    seen: set[tuple[str, str]] = set()
    for section, key in wanted:
        name = getattr(spec, key)
        if name is not None and (section, name) not in seen:
            own = given is not None and key in given.model_fields_set
            place: Path = ("cluster", "network", key) if own else ("cluster", "network")
            result = catalogue.resolve(section, name, place)
            form = getattr(result, "format", None)
            if isinstance(form, str):
                catalogue.resolve("formats", form, place)
            seen.add((section, name))
    problems.raise_if_any()


def _sample(spec: NetworkSpec, types: Topology, problems: Problems) -> Fabric:
    """Return a topology with one switch of each tier and one link for each of `TIERS`."""
    lengths = spec.lengths or LengthsSpec()
    trunk = spec.trunk or spec.link
    spine = spec.spine_switch or spec.switch
    switches = {"leaf": spec.switch, "spine": spine, "core": spec.core_switch or spine}
    ends = {"nic": ("nic", "leaf"), "core": ("spine", "core")}
    links = []
    for tier in TIERS:
        a, b = ends.get(tier, ("leaf", "spine"))
        data = {"from": a, "to": b, "type": spec.link if tier == "nic" else trunk}
        length = getattr(lengths, "global_" if tier == "global" else tier)
        if length is not None:
            data["length"] = length
        links.append(LinkSpec.model_validate(data))
    nodes = {"nic": NodeSpec(kind="host")}
    nodes |= {tier: NodeSpec(kind="switch", switch=name) for tier, name in switches.items()}
    return assemble(types.model_copy(update={"nodes": nodes, "links": links}), problems)


def _types(machine: Fabric, topology: Topology) -> Topology:
    """Return a description with the types of the cluster's file and of the node's."""
    sections = ("switches", "formats", "link_types")
    if not any(f"{section}:" in machine.source_text for section in sections):
        base = Topology(name=machine.name)
    else:
        base = _read_again(machine)
    return Topology(
        name=machine.name,
        switches={**base.switches, **topology.switches},
        formats={**base.formats, **topology.formats},
        link_types={**base.link_types, **topology.link_types},
    )


def _read_again(machine: Fabric) -> Topology:
    from clusim.topology.validate import validate
    from clusim.topology.yamltext import parse

    try:
        return validate(parse(machine.source_text, machine.name).data, Problems(machine.name))
    except TopologyError:
        return Topology(name=machine.name)
