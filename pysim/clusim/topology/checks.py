"""Checks of a topology: connectivity, limits of chips and cables, symmetry, bisection, deadlock.

**Connectivity** Pairs of ranks without a path, inside nodes and between them.
"""

from __future__ import annotations

from collections import Counter

import numpy as np

from clusim.base.errors import TopologyError
from clusim.engine.abi import NONE
from clusim.topology.arrays import FabricArrays, arrays_of
from clusim.topology.check_flow import check_flow
from clusim.topology.check_links import (
    MOST,
    Finding,
    by_level,
    check_links,
    list_names,
)
from clusim.topology.deadlock import check_deadlock
from clusim.topology.hosts import GPU_LINKS, hosts_of
from clusim.topology.model import Fabric
from clusim.topology.nccl_overrides import told_lines
from clusim.topology.node import Node


def unreachable(arrays: FabricArrays, limit: int) -> list[tuple[int, int]]:
    """Return pairs of ranks (from, to) without a route, at most about `limit` pairs."""
    return (_inside(arrays, limit) + _between(arrays, limit))[:limit]


def _ranks_of(arrays: FabricArrays) -> list[list[int]]:
    """Return the ranks of every zone."""
    zones: list[list[int]] = [[] for _ in arrays.machines.template]
    homes = arrays.nodes["zone"][arrays.endpoints["node"][arrays.rank_endpoint]]
    for rank, zone in enumerate(homes.tolist()):
        zones[zone].append(rank)
    return zones


def _inside(arrays: FabricArrays, limit: int) -> list[tuple[int, int]]:
    """Check one node of each kind."""
    result: list[tuple[int, int]] = []
    _, firsts = np.unique(arrays.machines.template, return_index=True)
    zones = _ranks_of(arrays)
    for ranks in (zones[zone] for zone in firsts.tolist()):
        endpoint = arrays.rank_endpoint[ranks]
        node, local = (
            arrays.endpoints["node"][endpoint],
            arrays.targets["local"][endpoint],
        )
        entries = arrays.nodes["route_lo"][node][:, None] + local[None, :].astype(
            np.uint64
        )
        missing = arrays.routes[entries] == NONE
        np.fill_diagonal(missing, False)
        for a, b in np.argwhere(missing).tolist():
            if len(result) >= limit:
                return result
            if arrays.vias(ranks[a], ranks[b]) is None:
                result.append((ranks[a], ranks[b]))
    return result


def _between(arrays: FabricArrays, limit: int) -> list[tuple[int, int]]:
    """Find nodes without a common plane, ranks without a NIC, and holes in switch tables."""
    zones = _ranks_of(arrays)
    if len(zones) < 2:
        return []
    result: list[tuple[int, int]] = []
    on: dict[frozenset[int], int] = {}
    for zone, ranks in enumerate(zones):
        other = zones[zone - 1]
        for rank in ranks:
            if len(result) < limit and other and not arrays.nearest_nics(rank):
                result.append((rank, other[0]))
        planes = (
            arrays.machines.planes[int(arrays.machines.plane[nic])]
            for nic in arrays.nics(zone)
        )
        on.setdefault(frozenset[int]().union(*planes), zone)
    for one, a in on.items():
        for two, b in on.items():
            if a != b and one.isdisjoint(two) and zones[a] and zones[b]:
                result.append((zones[a][0], zones[b][0]))
    return result or _holes(arrays, zones)


def _holes(arrays: FabricArrays, zones: list[list[int]]) -> list[tuple[int, int]]:
    """Return ranks with a first NIC on a switch without a route to the other rank's NIC."""
    nics = arrays.nic_targets[arrays.machines.plane[arrays.nic_targets] >= 0]
    at = np.full(len(arrays.nodes), -1, np.int64)
    at[arrays.targets["node"][nics]] = nics
    up = np.flatnonzero(
        (at[arrays.wires["src"]] >= 0)
        & (arrays.nodes["zone"][arrays.wires["dst"]] == NONE)
    )
    switch, which = np.unique(arrays.wires["dst"][up], return_index=True)
    sources = at[arrays.wires["src"][up[which]]]
    planes = arrays.machines.planes
    meet = np.array([[not a.isdisjoint(b) for b in planes] for a in planes])
    for node, nic in zip(switch.tolist(), sources.tolist(), strict=True):
        row = arrays.nodes[node]
        groups = arrays.routes[
            int(row["wide_lo"]) + arrays.targets["wide"][nics].astype(np.int64)
        ]
        lost = nics[
            (groups == NONE)
            & meet[arrays.machines.plane[nic]][arrays.machines.plane[nics]]
        ]
        lost = lost[arrays.targets["zone"][lost] != arrays.targets["zone"][nic]]
        if len(lost):
            ends = (
                zones[int(arrays.targets["zone"][t])] for t in (nic, int(lost[0]))
            )
            return [
                (ranks[0], other[0])
                for ranks, other in [tuple(ends)]
                if ranks and other
            ]
    return []


def errors(fabric: Fabric) -> list[Finding]:
    """Return the reasons why a topology cannot be simulated."""
    result: list[Finding] = []
    if fabric.num_ranks < 1:
        return [
            Finding("error", "without GPU or host; add nodes of kind gpu or host")
        ]
    idle = [f"{link.a}-{link.b}" for link in fabric.links if link.rate.num == 0]
    if idle:
        result.append(
            Finding(
                "error", f"zero bandwidth on {list_names(idle)}; give a rate above 0"
            )
        )
        return result
    linked = {end for link in fabric.links for end in (link.a, link.b)}
    lonely = [node.name for node in fabric.nodes if node.name not in linked]
    if lonely and len(fabric.nodes) > 1:
        result.append(
            Finding(
                "error", f"{list_names(lonely)}: without any link; connect or remove"
            )
        )
        return result
    missing = _unreachable(fabric)
    if missing:
        where = f"disconnected: no route {list_names(missing)}; add links"
        if fabric.routing == "dimension-order":
            where += ", or use routing: shortest"
        if any(_ends_traffic(fabric, node) for node in fabric.nodes):
            where += ", or let GPUs and hosts forward packets of others: relay: true (relay=True in Python)"
        result.append(Finding("error", where))
    return result


def _ends_traffic(fabric: Fabric, node: Node) -> bool:
    """True if a GPU or host with links to several others does not forward."""
    ends = {"gpu", "host"}
    if node.kind not in ends or node.relay:
        return False
    reached = {
        link.b if link.a == node.name else link.a
        for link in fabric.links
        if node.name in (link.a, link.b)
    }
    return (
        sum(fabric.nodes[fabric.node_index[name]].kind in ends for name in reached)
        > 1
    )


def _unreachable(fabric: Fabric) -> list[str]:
    """Return pairs of ranks without a route, except GPUs without NVLink beside other hosts of a rack."""
    pairs = unreachable(arrays_of(fabric), MOST + 100)
    cut = _cut_off(fabric) if pairs else frozenset()
    hosts = hosts_of(fabric) if cut else {}
    ends = ((fabric.ranks[a], fabric.ranks[b]) for a, b in pairs)
    return [
        f"{a} to {b}" for a, b in ends if not (cut & {a, b}) or hosts[a] == hosts[b]
    ]


def _cut_off(fabric: Fabric) -> frozenset[str]:
    """Return the GPUs of a rack without links to the others: their host reaches no other host."""
    hosts = hosts_of(fabric)
    several = (
        len({hosts[node.name] for node in fabric.nodes if node.kind == "memory"}) > 1
    )
    linked = {
        end
        for link in fabric.links
        if link.cls in GPU_LINKS
        for end in (link.a, link.b)
    }
    gpus = {node.name for node in fabric.nodes if node.kind == "gpu"}
    return frozenset(gpus - linked) if several and gpus & linked else frozenset()


def _lost_gpus(fabric: Fabric) -> list[Finding]:
    lost = sorted(_cut_off(fabric))
    if not lost or fabric.num_zones > 1:
        return []
    return [
        Finding(
            "warning",
            f"{list_names(lost)}: no NVLink, unlike the other GPUs of the rack; NCCL falls back to one slow ring, and"
            " other hosts cannot be reached",
        )
    ]


def raise_on_errors(fabric: Fabric, where: str) -> None:
    """Raise `TopologyError` if the topology cannot be simulated."""
    result = errors(fabric)
    if result:
        raise TopologyError(
            "\n".join(f"{where}: {finding.what}" for finding in result)
        )


def check(fabric: Fabric) -> list[Finding]:
    """Return all findings about a topology, errors first."""
    result = errors(fabric)
    if result:
        return result
    arrays = arrays_of(fabric)
    result += check_links(fabric)
    result += _memory(fabric)
    result += _lost_gpus(fabric)
    result += _rings(fabric)
    result += [Finding("warning", line) for line in told_lines(fabric)]
    result += check_deadlock(arrays)
    result += check_flow(fabric, arrays)
    return by_level(result)


def _memory(fabric: Fabric) -> list[Finding]:
    """Find GPUs on PCIe without host memory, where staging is impossible."""
    on_pcie = {
        end
        for link in fabric.links
        if link.cls == "pcie"
        for end in (link.a, link.b)
    }
    homes = {node.zone for node in fabric.nodes if node.kind == "memory"}
    lost = [
        node.name
        for node in fabric.nodes
        if node.kind == "gpu" and node.name in on_pcie and node.zone not in homes
    ]
    if not lost:
        return []
    message = f"{list_names(lost)}: no host memory; data that PCIe peers may not exchange cannot be staged"
    return [Finding("warning", message)]


def _rings(fabric: Fabric) -> list[Finding]:
    """Find links between GPUs that the prescribed rings of a node leave idle."""
    ranks = {name: rank for rank, name in enumerate(fabric.ranks)}
    links: Counter[tuple[int, int]] = Counter()
    for link in fabric.links:
        if link.a in ranks and link.b in ranks:
            for hop in (
                (ranks[link.a], ranks[link.b]),
                (ranks[link.b], ranks[link.a]),
            ):
                links[hop] += link.count
    rings = fabric.ring_orders or ()
    used = Counter(
        hop for ring in rings for hop in zip(ring, (*ring[1:], ring[0]), strict=True)
    )
    if not rings or not all(hop in links for hop in used):
        return []
    idle = sum(max(0, count - used[hop]) for hop, count in links.items())
    if not idle:
        return []
    message = (
        f"rings: leave {idle} of {links.total()} directions of links between GPUs unused; list a ring for"
        " each, or leave rings out to have them sought"
    )
    return [Finding("warning", message)]
