"""Simulated systems of measurements: presets or files with the nodes, domains and GPUs of a table's rows."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from clusim.base import resources
from clusim.base.errors import InputError
from clusim.base.terms.operations import find_algorithm, find_protocol
from clusim.hardware import TRANSPORTS
from clusim.nccl.constants import parse_version
from clusim.nccltests.sweep import program_named
from clusim.simulation.setup import Setup
from clusim.topology import Fabric

if TYPE_CHECKING:
    from clusim.validation.collectives.measurements import CurveGroup


def setup_of(group: CurveGroup) -> Setup:
    """Return the setup of a group: its system's preset, with its numbers of nodes and GPUs.

    Raises `InputError` for an unknown collective, algorithm, protocol, version or system, and for GPUs that
    the system does not have.
    """
    program_named(group.collective)
    for word, noun, find in (
        (group.algorithm, "algorithm", find_algorithm),
        (group.protocol, "protocol", find_protocol),
    ):
        if word != "auto" and find(word) is None:
            raise InputError(f"{noun} {word[:40]!r}: not one of NCCL's")
    if group.version:
        parse_version(group.version)
    if (
        resources.find_topology(group.system) is None
        and not Path(group.system).exists()
    ):
        listing = ", ".join(sorted(resources.shipped_topologies()))
        raise InputError(
            f"system {group.system!r}: not a preset or topology file; presets are {listing}"
        )
    one = Setup(group.system, version=group.version, env=group.env())
    _check_transport(group.plugin, one.fabric)
    has = one.fabric.num_ranks // max(1, one.fabric.num_zones)
    nodes = group.n_nodes
    if _is_rack(one.fabric):
        nodes = group.domains or -(-group.n_gpus // has)
    elif group.domains not in (0, nodes):
        raise InputError(
            f"{group.system}: domains {group.domains} of {nodes} nodes; each node is one NVLink domain"
        )
    per_node, remainder = divmod(group.n_gpus, nodes)
    if remainder or per_node > has:
        raise InputError(
            f"{group.system}: {group.n_gpus} GPUs on {nodes} nodes; each has {has}, and all must use as many"
        )
    return replace(
        one,
        nodes=nodes if nodes > 1 else None,
        per_node=per_node if per_node < has else None,
    )


def plugin_notes(group: CurveGroup, fabric: Fabric) -> tuple[str, ...]:
    """Return a note on each network plugin with modelled releases, if a group on several nodes has no plugin."""
    if group.plugin or group.n_nodes == 1:
        return ()
    names = {node.nic.plugin for node in fabric.nodes if node.nic is not None}
    reached = [TRANSPORTS[name] for name in sorted(names)]
    titles = [item.title for item in reached if item.mailbox or item.since]
    return tuple(
        f"release of {title} not given: the newest assumed" for title in titles
    )


def _check_transport(plugin: str, fabric: Fabric) -> None:
    """Raise `InputError` if a network plugin is not the transport of any NIC of a topology."""
    word = plugin.partition(" ")[0].casefold()
    nics = {node.nic.plugin for node in fabric.nodes if node.nic is not None}
    titles = [TRANSPORTS[name].title for name in sorted(nics)]
    if word and not any(
        word in (*nics, title.casefold().split()[0]) for title in titles
    ):
        has = (
            f"; its NICs use {', '.join(titles)}"
            if titles
            else ", which has no NICs"
        )
        raise InputError(
            f"plugin {plugin[:40]!r}: not a transport of {fabric.name}{has}"
        )


def _is_rack(fabric: Fabric) -> bool:
    """Return True if only NVLink joins the CPUs of a node.

    Measurements then count its trays as nodes.
    """
    alone = {
        node.name: {node.name}
        for node in fabric.nodes
        if node.tier == "root" and node.zone == 0
    }
    for link in fabric.links:
        if link.a in alone and link.b in alone:
            joined = alone[link.a] | alone[link.b]
            alone.update(dict.fromkeys(joined, joined))
    return len({frozenset(group) for group in alone.values()}) > 1
