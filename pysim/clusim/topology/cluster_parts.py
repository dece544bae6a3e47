"""Parts of a cluster network: one link and one switch of each tier, from types by name.

Parts that the description does not name are those of the node: its ``network:``, or, without one, a link
as fast as the slots of its NICs.

Networks of switches with neighbours instead of levels: dragonfly and torus.

**Hardware** Slingshot: groups of fully connected switches, and cables between any two groups; a switch
has 16 NICs, 31 local and up to 17 global links of its 64 ports. A torus has a switch per node and cables
to the next node in each dimension.
**Model** The NICs of a node are on different switches of its group. Dragonflies route minimally, with
one global link at most; tori route in dimension order. Both change to a second virtual channel on the
path (global links, wrap-around links), so that buffers cannot wait in a cycle.
**Not modelled** Non-minimal (Valiant) paths.
**Parameters** `NetworkSpec`: groups, group_switches, switch_nics, global_links, local_links; shape,
torus_links.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import combinations, product
from math import ceil, prod
from typing import Any

from clusim.base.errors import TopologyError
from clusim.hardware.catalog import SWITCHES_BY_LINK
from clusim.topology.assemble import assemble
from clusim.topology.catalogue import Catalogue, Section
from clusim.topology.generators import group_pairs
from clusim.topology.model import Fabric, Link
from clusim.topology.node import NETWORK, Node
from clusim.topology.packets import Format
from clusim.topology.schema import (
    LengthsSpec,
    LinkSpec,
    NetworkSpec,
    NodeSpec,
    Topology,
)
from clusim.topology.tori import neighbours
from clusim.topology.validate import KeyPath, Problems

UNLIMITED = 1 << 20
"""Ports of a switch without a port limit."""

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
    plane : str
        Start of the names of switches.
    """

    parts: Parts
    nics: list[list[str]]
    nodes: list[Node] = field(default_factory=list)
    links: list[Link] = field(default_factory=list)
    dimension_order: bool = False
    facts: list[str] = field(default_factory=list)
    plane: str = ""

    def switch(self, name: str, kind: str, tier: str | None = None) -> str:
        """Add a switch; return its full name."""
        name, proto = self.plane + name, self.parts.switches[kind]
        self.nodes.append(replace(proto, name=name, tier=tier or kind, zone=NETWORK))
        return name

    def nic(self, nic: str, switch: str) -> None:
        """Connect a NIC to its switch."""
        self.links.append(replace(self.parts.links["nic"], a=nic, b=switch))

    def trunk(
        self, tier: str, a: str, b: str, count: int = 1, **changes: Any
    ) -> None:
        """Join two switches."""
        self.links.append(
            replace(self.parts.links[tier], a=a, b=b, count=count, **changes)
        )


def amount(count: int, one: str, noun: str = "") -> str:
    """Return ``1 leaf`` or ``4 leaves``."""
    return f"{count} {one if count == 1 else noun or one + 's'}"


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


def make_parts(
    spec: NetworkSpec, machine: Fabric, topology: Topology, problems: Problems
) -> Parts:
    """Resolve the types that `spec` names; raise `TopologyError` for unknown types."""
    if spec.link is None:
        spec = spec.model_copy(update={"link": _link_of_slot(machine)})
    if spec.switch is None:
        spec = spec.model_copy(
            update={"switch": SWITCHES_BY_LINK.get(str(spec.link), "generic")}
        )
    types = _types(machine, topology)
    _check_types(spec, types, topology, problems)
    sample = _sample(spec, types, problems)
    return Parts(
        spec=spec,
        links=dict(zip(TIERS, sample.links, strict=True)),
        switches={
            node.name: node
            if spec.radix is None
            else replace(node, ports=spec.radix)
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
    references: list[tuple[Section, str]] = [
        ("link_types", "link"),
        ("link_types", "trunk"),
        ("switches", "switch"),
        ("switches", "spine_switch"),
        ("switches", "core_switch"),
    ]
    catalogue = Catalogue(types, problems)
    network = topology.cluster.network if topology.cluster else None
    visited: set[tuple[str, str]] = set()
    for section, key in references:
        name = getattr(spec, key)
        if name is not None and (section, name) not in visited:
            in_file = network is not None and key in network.model_fields_set
            place: KeyPath = (
                ("cluster", "network", key) if in_file else ("cluster", "network")
            )
            result = catalogue.resolve(section, name, place)
            form = getattr(result, "format", None)
            if isinstance(form, str):
                catalogue.resolve("formats", form, place)
            visited.add((section, name))
    problems.raise_if_any()


def _sample(spec: NetworkSpec, types: Topology, problems: Problems) -> Fabric:
    """Return a topology with one switch of each tier and one link for each of `TIERS`."""
    lengths = spec.lengths or LengthsSpec()
    trunk = spec.trunk or spec.link
    spine = spec.spine_switch or spec.switch
    switches = {
        "leaf": spec.switch,
        "spine": spine,
        "core": spec.core_switch or spine,
    }
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
    nodes |= {
        tier: NodeSpec(kind="switch", switch=name) for tier, name in switches.items()
    }
    return assemble(
        types.model_copy(update={"nodes": nodes, "links": links}), problems
    )


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
        return validate(
            parse(machine.source_text, machine.name).data, Problems(machine.name)
        )
    except TopologyError:
        return Topology(name=machine.name)


GLOBAL_WEIGHT = 4
"""Hops a global link counts as, so that no path uses two global links."""

NICS_PER_SWITCH = 16
"""NICs of a switch without a port limit."""


@dataclass(frozen=True, slots=True)
class _Groups:
    """Groups of a dragonfly: number, switches and nodes of each, local and global links."""

    count: int
    size: int
    machines: int
    local: int
    links: int


def _groups(drawing: Drawing) -> _Groups:
    """Return the groups that hold all nodes; raise `TopologyError` if they cannot be joined."""
    spec, ports = drawing.parts.spec, drawing.parts.ports("leaf")
    count, used = len(drawing.nics), len(drawing.nics[0])
    nics = spec.switch_nics or (
        max(1, ports // 4) if ports < UNLIMITED else NICS_PER_SWITCH
    )
    local = spec.local_links or 1
    size = spec.group_switches or min(2 * nics, ceil(count * used / nics))
    if size * nics < used:
        raise TopologyError(
            f"a group has room for {size * nics} NICs, needs {used} for one node"
        )
    machines = size * nics // used
    groups = spec.groups or ceil(count / machines)
    if groups * machines < count:
        raise TopologyError(
            f"groups={groups}: {amount(size, 'switch', 'switches')} in each hold {groups * machines} nodes,"
            f" needs {count}"
        )
    links = spec.global_links or (nics if groups > 1 else 0)
    needs = nics + (size - 1) * local + links
    if needs > ports:
        raise TopologyError(
            f"a switch has {ports} ports, needs {needs}: {nics} for NICs, {(size - 1) * local} local"
            f" and {links} global links; use smaller groups"
        )
    if groups > size * links + 1:
        raise TopologyError(
            f"{groups} groups of {size} switches with {links} global links each:"
            f" at most {size * links + 1} can be joined"
        )
    return _Groups(groups, size, ceil(count / groups), local, links)


def draw_dragonfly(drawing: Drawing) -> None:
    """Build groups of switches, fully connected inside, with links between any two groups."""
    plan = _groups(drawing)
    switches = [
        [
            drawing.switch(f"switch{g}.{i}", "leaf", "switch")
            for i in range(plan.size)
        ]
        for g in range(plan.count)
    ]
    for number, machine in enumerate(drawing.nics):
        group, place = divmod(number, plan.machines)
        for index, nic in enumerate(machine):
            drawing.nic(
                nic, switches[group][(place * len(machine) + index) % plan.size]
            )
    for members in switches:
        for a, b in combinations(members, 2):
            drawing.trunk("local", a, b, plan.local, dim=1)
    for i, j, one, two in group_pairs(plan.count, plan.size * plan.links):
        ends = switches[i][one % plan.size], switches[j][two % plan.size]
        drawing.trunk(
            "global", *ends, dim=1, weight=GLOBAL_WEIGHT, dateline=(True, True)
        )
    drawing.facts.append(
        f"{amount(plan.count, 'group')} of {amount(plan.size, 'switch', 'switches')}"
    )


def draw_torus(drawing: Drawing) -> None:
    """Add a switch with links to its neighbours for every node.

    The last coordinate varies fastest.
    """
    spec, ports = drawing.parts.spec, drawing.parts.ports("leaf")
    count, used = len(drawing.nics), len(drawing.nics[0])
    shape = tuple(spec.shape or _cubic(count, 3))
    text = "x".join(map(str, shape))
    if prod(shape) != count:
        raise TopologyError(f"shape {text}: has {prod(shape)} places, needs {count}")
    ends = sum(min(2, length - 1) for length in shape)
    share = drawing.parts.uplinks_per_nic()
    cables = spec.torus_links or max(1, ceil(used * share / max(1, ends) - 1e-9))
    if used + ends * cables > ports:
        raise TopologyError(
            f"a switch has {ports} ports, needs {used + ends * cables}: {used} for NICs and"
            f" {cables} for each of {ends} neighbours; use fewer torus_links"
        )
    places = list(product(*(range(length) for length in shape)))
    names = {
        place: drawing.switch("switch" + ".".join(map(str, place)), "leaf", "switch")
        for place in places
    }
    for place, machine in zip(places, drawing.nics, strict=True):
        for nic in machine:
            drawing.nic(nic, names[place])
    for place, following, axis, last in neighbours(shape, wrap=True):
        source, target = names[place], names[following]
        drawing.trunk(
            "torus", source, target, cables, dim=axis + 1, dateline=(last, last)
        )
    drawing.dimension_order = True
    drawing.facts.append(f"torus {text}, {amount(cables, 'link')} to each neighbour")


def _cubic(count: int, dimensions: int) -> list[int]:
    """Return the `dimensions` most equal factors of a number, largest first."""
    if dimensions == 1:
        return [count]
    factors = (factor for factor in range(1, count + 1) if count % factor == 0)
    best = max(factor for factor in factors if factor**dimensions <= count)
    return [*_cubic(count // best, dimensions - 1), best]
