"""Is a fabric sound? Connectivity, limits of chips and cables, symmetry, bisection, and whether routes can deadlock."""

from __future__ import annotations

from collections import Counter

from clusim.base.errors import TopologyError
from clusim.topology.arrays import FabricArrays, arrays_of
from clusim.topology.check_flow import check_flow
from clusim.topology.check_links import MOST, Finding, check_links, listed
from clusim.topology.dependency import dependency_cycle
from clusim.topology.model import Fabric
from clusim.topology.nccl_overrides import told_lines
from clusim.topology.reachability import unreachable

MAX_DEADLOCK_WORK = 3_000_000
"""Endpoints times wires; beyond, looking for circles takes more than some seconds."""


def errors(fabric: Fabric) -> list[Finding]:
    """Return what makes a fabric impossible to simulate."""
    found: list[Finding] = []
    if fabric.num_ranks < 1:
        return [Finding("error", "has no GPU or host; add nodes of kind gpu or host")]
    idle = [f"{link.a}-{link.b}" for link in fabric.links if link.rate.num == 0]
    if idle:
        found.append(Finding("error", f"zero bandwidth on {listed(idle)}; give a rate above 0"))
        return found
    linked = {end for link in fabric.links for end in (link.a, link.b)}
    lonely = [node.name for node in fabric.nodes if node.name not in linked]
    if lonely and len(fabric.nodes) > 1:
        found.append(Finding("error", f"{listed(lonely)}: without any link; connect or remove"))
        return found
    missing = _unreachable(fabric)
    if missing:
        where = f"disconnected: no route {listed(missing)}; add links"
        if fabric.routing == "dimension-order":
            where += ", or use routing: shortest"
        found.append(Finding("error", where))
    return found


def _unreachable(fabric: Fabric) -> list[str]:
    pairs = unreachable(arrays_of(fabric), MOST + 100)
    return [f"{fabric.ranks[a]} to {fabric.ranks[b]}" for a, b in pairs]


def raise_on_errors(fabric: Fabric, where: str) -> None:
    """Raise `TopologyError` if the fabric cannot be simulated."""
    found = errors(fabric)
    if found:
        raise TopologyError("\n".join(f"{where}: {finding.what}" for finding in found))


def check(fabric: Fabric) -> list[Finding]:
    """Return everything worth knowing about a fabric, errors first."""
    found = errors(fabric)
    if found:
        return found
    arrays = arrays_of(fabric)
    found += check_links(fabric)
    found += _memory(fabric)
    found += _rings(fabric)
    found += [Finding("warning", line) for line in told_lines(fabric)]
    found += _deadlock(arrays)
    found += check_flow(fabric, arrays)
    order = {"error": 0, "warning": 1, "info": 2}
    return sorted(found, key=lambda finding: order[finding.level])


def _memory(fabric: Fabric) -> list[Finding]:
    """Look for GPUs on PCIe without host memory, where nothing can be staged."""
    on_pcie = {end for link in fabric.links if link.cls == "pcie" for end in (link.a, link.b)}
    homes = {node.zone for node in fabric.nodes if node.kind == "memory"}
    lost = [
        node.name
        for node in fabric.nodes
        if node.kind == "gpu" and node.name in on_pcie and node.zone not in homes
    ]
    if not lost:
        return []
    what = f"{listed(lost)}: no host memory; data that PCIe peers may not exchange have nowhere to be staged"
    return [Finding("warning", what)]


def _rings(fabric: Fabric) -> list[Finding]:
    """Look for links between GPUs that the prescribed rings of a machine leave idle."""
    ranks = {name: rank for rank, name in enumerate(fabric.ranks)}
    links: Counter[tuple[int, int]] = Counter()
    for link in fabric.links:
        if link.a in ranks and link.b in ranks:
            for hop in ((ranks[link.a], ranks[link.b]), (ranks[link.b], ranks[link.a])):
                links[hop] += link.count
    rings = fabric.ring_orders or ()
    used = Counter(hop for ring in rings for hop in zip(ring, (*ring[1:], ring[0]), strict=True))
    if not rings or not all(hop in links for hop in used):
        return []
    idle = sum(max(0, count - used[hop]) for hop, count in links.items())
    if not idle:
        return []
    what = (
        f"rings: leave {idle} of {links.total()} directions of links between GPUs unused; list a ring for"
        " each, or leave rings out to have them sought"
    )
    return [Finding("warning", what)]


def _deadlock(arrays: FabricArrays) -> list[Finding]:
    if len(arrays.endpoints) * len(arrays.wires) > MAX_DEADLOCK_WORK:
        return [Finding("info", "too large to look for circles of waiting buffers")]
    cycle = dependency_cycle(arrays)
    if not cycle:
        return [Finding("info", "routes cannot deadlock: buffer dependencies are acyclic")]
    names = [arrays.wire_names[wire] for wire in cycle]
    what = f"routes can deadlock: buffers wait in a circle {listed(names)};"
    return [Finding("warning", f"{what} use routing: dimension-order, or more VCs with datelines")]
