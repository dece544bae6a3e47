"""Clusters: N nodes of one kind, joined by a network -> `Fabric`.

**Hardware** Servers or racks with NICs cabled to InfiniBand, Ethernet or Slingshot switches.
**Model** Every node is a copy of one topology, its graph nodes named ``n3/gpu5`` and its zone 3; the
network is built around the NICs by kind: tiers of switches in `cluster_tiers`, dragonflies and tori in
`cluster_parts`. Ranks are numbered through the nodes in order.
**Not modelled** Nodes of different kinds in one cluster; several networks; ports for management (UFM)
and storage; missing cables.
**Parameters** `ClusterSpec`, `NetworkSpec`: radix, unit, rails, nics, uplinks, spines, cores, levels,
oversubscription.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from clusim.base.errors import TopologyError
from clusim.topology.assemble import forwarding_of
from clusim.topology.cluster_parts import (
    Drawing,
    Parts,
    draw_dragonfly,
    draw_torus,
    make_parts,
    usual_network,
)
from clusim.topology.cluster_tiers import (
    draw_dual_tor,
    draw_fat_tree,
    draw_multi_plane,
    draw_rail,
    draw_single,
)
from clusim.topology.model import Fabric, Link
from clusim.topology.node import Node
from clusim.topology.packets import Format
from clusim.topology.schema import NetworkKind, NetworkSpec, Topology
from clusim.topology.validate import Problems

MAX_RANKS = 131_072
MAX_NODES = 1_000_000

_DRAW: Mapping[NetworkKind, Callable[[Drawing], None]] = {
    "single": draw_single,
    "rail": draw_rail,
    "fat-tree": draw_fat_tree,
    "superpod": lambda drawing: draw_rail(drawing, complete=True),
    "multi-plane": draw_multi_plane,
    "dual-tor": draw_dual_tor,
    "dragonfly": draw_dragonfly,
    "torus": draw_torus,
}

_ALLOWED = {
    "name", "description", "sources", "p2p", "window", "cta_skew", "vcs", "channels", "switches",
    "formats", "link_types", "cluster", "faults", "forwarding",
}  # fmt: skip
"""Keys that a file with a cluster may have; the others describe one node."""


def build_cluster(
    topology: Topology,
    problems: Problems,
    load: Callable[[str], Fabric],
    *,
    source_text: str = "",
) -> Fabric:
    """Return the cluster of a description.

    Parameters
    ----------
    load : callable
        Returns the topology of one node by the name in ``node``.
    """
    cluster = topology.cluster
    if cluster is None:
        raise TopologyError(f"{problems.where}: 'cluster' is missing")
    for key in sorted(topology.model_fields_set - _ALLOWED):
        problems.add(
            (key,),
            "belongs to one node; put it into the file that 'node' names",
            key=True,
        )
    problems.raise_if_any()
    machine = _machine(cluster.node, load, problems)
    for size, noun, limit in (
        (machine.num_ranks, "ranks", MAX_RANKS),
        (len(machine.nodes), "nodes", MAX_NODES),
    ):
        if size * cluster.nodes > limit:
            problems.add(
                ("cluster", "nodes"),
                f"{cluster.nodes} x {size} {noun}; the limit is {limit}",
            )
    problems.raise_if_any()
    spec = usual_network(machine)
    if cluster.network is not None:
        spec = _merge(spec, cluster.network)
    parts = make_parts(spec, machine, topology, problems)
    try:
        fabric = join_machines(machine, cluster.nodes, parts)
    except TopologyError as error:
        problems.add(("cluster", "network"), str(error))
        problems.raise_if_any()
        raise
    if "forwarding" in topology.model_fields_set:
        forwarding = forwarding_of(topology, fabric.nodes, fabric.links, problems)
        fabric = replace(fabric, forwarding=forwarding)
        problems.raise_if_any()
    return replace(_adjust_cluster(fabric, topology), source_text=source_text)


def _adjust_cluster(fabric: Fabric, topology: Topology) -> Fabric:
    """Return the cluster with the settings of its file other than node and network."""
    settings: dict[str, Any] = {
        "name": topology.name,
        "description": topology.description.strip() or None,
        "p2p": topology.p2p,
        "window_bytes": topology.window,
        "cta_skew_ps": topology.cta_skew,
        "channels": topology.channels or None,
        "faults": tuple(topology.faults) or None,
    }
    return replace(
        fabric,
        sources={**fabric.sources, **topology.sources},
        num_vcs=max(fabric.num_vcs, topology.vcs),
        **{key: value for key, value in settings.items() if value is not None},
    )


def _machine(name: str, load: Callable[[str], Fabric], problems: Problems) -> Fabric:
    """Return the topology of one node; it must have NICs and must not be a cluster."""
    try:
        machine = load(name)
    except TopologyError as error:
        if problems.where.startswith(name) or "\n" in str(error):
            raise
        problems.add(("cluster", "node"), str(error))
        problems.raise_if_any()
        raise
    if machine.num_zones > 1 or any(node.zone for node in machine.nodes):
        problems.add(
            ("cluster", "node"), f"{name!r} is a cluster itself; name one node"
        )
    elif not any(node.kind == "nic" for node in machine.nodes):
        problems.add(
            ("cluster", "node"),
            f"{name!r} is without NICs, so its nodes cannot be joined; add nodes of kind nic",
        )
    problems.raise_if_any()
    return machine


def _merge(usual: NetworkSpec, spec: NetworkSpec) -> NetworkSpec:
    """Return `usual` overridden by `spec`.

    A new kind or link discards the settings that depend on it.
    """
    inherited = {
        "link",
        "trunk",
        "switch",
        "spine_switch",
        "core_switch",
        "radix",
        "nics",
        "lengths",
    }
    if "link" in spec.model_fields_set and spec.link != usual.link:
        inherited -= {"trunk", "switch", "spine_switch", "core_switch", "radix"}
    if spec.kind == usual.kind or "kind" not in spec.model_fields_set:
        inherited |= set(NetworkSpec.model_fields) - {
            "link", "trunk", "switch", "spine_switch", "core_switch", "radix"
        }  # fmt: skip
    values = {
        key: getattr(usual, key) for key in inherited & usual.model_fields_set
    } | {key: getattr(spec, key) for key in spec.model_fields_set}
    return NetworkSpec(**values)


def join_machines(machine: Fabric, count: int, parts: Parts) -> Fabric:
    """Return `count` copies of a node in the network that `parts` describes."""
    spec = parts.spec
    nics = [node.name for node in machine.nodes if node.kind == "nic"]
    used = spec.nics or len(nics)
    if used > len(nics):
        raise TopologyError(f"nics={used}: {machine.name} has {len(nics)}")
    nic_names = [[f"n{zone}/{nic}" for nic in nics[:used]] for zone in range(count)]
    drawing = Drawing(parts, nic_names)
    _DRAW[spec.kind](drawing)
    names = {
        name: _name_for(name, form, machine) for name, form in parts.formats.items()
    }
    formats = dict(machine.formats)
    formats |= {
        names[name]: replace(form, name=names[name])
        for name, form in parts.formats.items()
    }
    if any(old != new for old, new in names.items()):
        drawing.links = [
            replace(link, format=names[link.format]) for link in drawing.links
        ]
    nodes, links = _copies(machine, count)
    if spec.kind == "dual-tor":
        nodes = [
            replace(node, ports=2) if node.kind == "nic" else node for node in nodes
        ]
    ranks = machine.num_ranks
    rings = machine.ring_orders and tuple(
        tuple(rank + zone * ranks for zone in range(count) for rank in ring)
        for ring in machine.ring_orders
    )
    return replace(
        machine,
        name=f"{machine.name}:nodes={count}",
        nodes=(*nodes, *drawing.nodes),
        links=(*links, *drawing.links),
        formats=formats,
        num_vcs=max(machine.num_vcs, 2),
        ring_orders=rings,
        network_routing="dimension-order" if drawing.dimension_order else "shortest",
        network=spec.plain(),
        description=f"{count} x {machine.name}, {spec.kind} network: {', '.join(drawing.facts)}",
        sources={
            **machine.sources,
            **{f"network: {k}": v for k, v in parts.sources.items()},
        },
        source_text="",
    )


def _name_for(name: str, form: Format, machine: Fabric) -> str:
    """Return the name of a network's format, changed if the node uses it for another format."""
    return name if machine.formats.get(name, form) == form else f"network.{name}"


def _copies(machine: Fabric, count: int) -> tuple[list[Node], list[Link]]:
    """Return the graph nodes and links of all nodes."""
    nodes: list[Node] = []
    links: list[Link] = []
    for zone in range(count):
        names = {node.name: f"n{zone}/{node.name}" for node in machine.nodes}
        nodes += [
            replace(node, name=names[node.name], zone=zone) for node in machine.nodes
        ]
        links += [
            replace(link, a=names[link.a], b=names[link.b]) for link in machine.links
        ]
    return nodes, links
