"""Clusters: N machines of one kind, joined by a network -> `Fabric`.

**Hardware** Servers or racks whose NICs are cabled to InfiniBand, Ethernet or Slingshot switches.
**Model** Every machine is a copy of one fabric, its nodes called ``n3/gpu5`` and its zone 3; the network is drawn
around the NICs by kind (`cluster_clos`, `cluster_direct`). Ranks count through the machines in order.
**Not modelled** Machines of different kinds in one cluster; several networks.
**Parameters** `ClusterSpec`, `NetworkSpec`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from clusim.base.errors import TopologyError
from clusim.topology.cluster_clos import draw_fat_tree, draw_rail, draw_single
from clusim.topology.cluster_direct import draw_dragonfly, draw_torus
from clusim.topology.cluster_parts import Drawing, Parts, make_parts, usual_network
from clusim.topology.cluster_schema import NetworkKind, NetworkSpec
from clusim.topology.model import Fabric, Format, Link
from clusim.topology.node import Node
from clusim.topology.problems import Problems
from clusim.topology.schema import Topology

MAX_RANKS = 131_072
MAX_NODES = 1_000_000

_DRAW: Mapping[NetworkKind, Callable[[Drawing], None]] = {
    "single": draw_single,
    "rail": draw_rail,
    "fat-tree": draw_fat_tree,
    "superpod": lambda drawing: draw_rail(drawing, complete=True),
    "dragonfly": draw_dragonfly,
    "torus": draw_torus,
}

_ALLOWED = {
    "name", "description", "sources", "p2p", "window", "cta_skew", "vcs", "channels", "switches",
    "formats", "link_types", "cluster", "faults",
}  # fmt: skip
"""Keys that a file with a cluster may have; the others describe one machine."""


def build_cluster(
    topology: Topology, problems: Problems, load: Callable[[str], Fabric], *, source_text: str = ""
) -> Fabric:
    """Return the cluster a description stands for.

    Parameters
    ----------
    load : callable
        Returns the fabric of one machine by the name that ``node`` has.
    """
    cluster = topology.cluster
    if cluster is None:
        raise TopologyError(f"{problems.where}: 'cluster' is missing")
    for key in sorted(topology.model_fields_set - _ALLOWED):
        problems.add(
            (key,), "belongs to one machine; put it into the file that 'node' names", key=True
        )
    problems.raise_if_any()
    machine = _machine(cluster.node, load, problems)
    for size, what, most in (
        (machine.num_ranks, "ranks", MAX_RANKS),
        (len(machine.nodes), "nodes", MAX_NODES),
    ):
        if size * cluster.nodes > most:
            problems.add(
                ("cluster", "nodes"), f"{cluster.nodes} x {size} {what}; the limit is {most}"
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
    return replace(_adjusted(fabric, topology), source_text=source_text)


def _adjusted(fabric: Fabric, topology: Topology) -> Fabric:
    """Return the cluster with what its file says besides machine and network."""
    given: dict[str, Any] = {
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
        **{key: value for key, value in given.items() if value is not None},
    )


def _machine(name: str, load: Callable[[str], Fabric], problems: Problems) -> Fabric:
    """Return the fabric of one machine; it has NICs and is no cluster itself."""
    try:
        machine = load(name)
    except TopologyError as error:
        if problems.where.startswith(name) or "\n" in str(error):
            raise
        problems.add(("cluster", "node"), str(error))
        problems.raise_if_any()
        raise
    if machine.num_zones > 1 or any(node.zone for node in machine.nodes):
        problems.add(("cluster", "node"), f"{name!r} is a cluster itself; name one machine")
    elif not any(node.kind == "nic" for node in machine.nodes):
        problems.add(
            ("cluster", "node"),
            f"{name!r} has no NICs, so that machines of this kind cannot be joined; add nodes of kind nic",
        )
    problems.raise_if_any()
    return machine


def _merge(usual: NetworkSpec, own: NetworkSpec) -> NetworkSpec:
    """Return `usual` with what `own` says; another kind or link takes over only what does not depend on it."""
    kept = {"link", "trunk", "switch", "spine_switch", "core_switch", "radix", "nics", "lengths"}
    if "link" in own.model_fields_set and own.link != usual.link:
        kept -= {"trunk", "switch", "spine_switch", "core_switch", "radix"}
    if own.kind == usual.kind or "kind" not in own.model_fields_set:
        kept |= set(NetworkSpec.model_fields) - {
            "link", "trunk", "switch", "spine_switch", "core_switch", "radix"
        }  # fmt: skip
    values = {key: getattr(usual, key) for key in kept & usual.model_fields_set} | {
        key: getattr(own, key) for key in own.model_fields_set
    }
    return NetworkSpec(**values)


def join_machines(machine: Fabric, count: int, parts: Parts) -> Fabric:
    """Return `count` copies of a machine in the network that `parts` describes."""
    spec = parts.spec
    nics = [node.name for node in machine.nodes if node.kind == "nic"]
    used = spec.nics or len(nics)
    if used > len(nics):
        raise TopologyError(f"nics={used}: {machine.name} has {len(nics)}")
    own = [[f"n{zone}/{nic}" for nic in nics[:used]] for zone in range(count)]
    drawing = Drawing(parts, own)
    _DRAW[spec.kind](drawing)
    names = {name: _name_for(name, form, machine) for name, form in parts.formats.items()}
    formats = dict(machine.formats)
    formats |= {
        names[name]: replace(form, name=names[name]) for name, form in parts.formats.items()
    }
    if any(old != new for old, new in names.items()):
        drawing.links = [replace(link, format=names[link.format]) for link in drawing.links]
    nodes, links = _copies(machine, count)
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
        sources={**machine.sources, **{f"network: {k}": v for k, v in parts.sources.items()}},
        source_text="",
    )


def _name_for(name: str, form: Format, machine: Fabric) -> str:
    """Return the name of a network's format: its own, unless the machine has another one of that name."""
    return name if machine.formats.get(name, form) == form else f"network.{name}"


def _copies(machine: Fabric, count: int) -> tuple[list[Node], list[Link]]:
    """Return the nodes and links of all machines."""
    nodes: list[Node] = []
    links: list[Link] = []
    for zone in range(count):
        names = {node.name: f"n{zone}/{node.name}" for node in machine.nodes}
        nodes += [replace(node, name=names[node.name], zone=zone) for node in machine.nodes]
        links += [replace(link, a=names[link.a], b=names[link.b]) for link in machine.links]
    return nodes, links
