"""Which ranks cannot reach which, inside machines and between them."""

from __future__ import annotations

import numpy as np

from clusim.engine.abi import NONE
from clusim.topology.arrays import FabricArrays


def unreachable(arrays: FabricArrays, most: int) -> list[tuple[int, int]]:
    """Return pairs of ranks (from, to) without a route, at most about `most` of them."""
    return (_inside(arrays, most) + _between(arrays, most))[:most]


def _ranks_of(arrays: FabricArrays) -> list[list[int]]:
    """Return the ranks of every zone."""
    zones: list[list[int]] = [[] for _ in arrays.machines.template]
    homes = arrays.nodes["zone"][arrays.endpoints["node"][arrays.rank_endpoint]]
    for rank, zone in enumerate(homes.tolist()):
        zones[zone].append(rank)
    return zones


def _inside(arrays: FabricArrays, most: int) -> list[tuple[int, int]]:
    """Look at one machine of each kind."""
    found: list[tuple[int, int]] = []
    _, firsts = np.unique(arrays.machines.template, return_index=True)
    zones = _ranks_of(arrays)
    for ranks in (zones[zone] for zone in firsts.tolist()):
        endpoint = arrays.rank_endpoint[ranks]
        node, local = arrays.endpoints["node"][endpoint], arrays.targets["local"][endpoint]
        entries = arrays.nodes["route_lo"][node][:, None] + local[None, :].astype(np.uint64)
        missing = arrays.routes[entries] == NONE
        np.fill_diagonal(missing, False)
        for a, b in np.argwhere(missing).tolist():
            if len(found) >= most:
                return found
            if arrays.vias(ranks[a], ranks[b]) is None:
                found.append((ranks[a], ranks[b]))
    return found


def _between(arrays: FabricArrays, most: int) -> list[tuple[int, int]]:
    """Look for machines without a common plane, ranks without a NIC, and holes in the tables of switches."""
    zones = _ranks_of(arrays)
    if len(zones) < 2:
        return []
    found: list[tuple[int, int]] = []
    on: dict[frozenset[int], int] = {}
    for zone, ranks in enumerate(zones):
        other = zones[zone - 1]
        for rank in ranks:
            if len(found) < most and other and not arrays.nearest_nics(rank):
                found.append((rank, other[0]))
        planes = (
            arrays.machines.planes[int(arrays.machines.plane[nic])] for nic in arrays.nics(zone)
        )
        on.setdefault(frozenset[int]().union(*planes), zone)
    for one, a in on.items():
        for two, b in on.items():
            if a != b and one.isdisjoint(two) and zones[a] and zones[b]:
                found.append((zones[a][0], zones[b][0]))
    return found or _holes(arrays, zones)


def _holes(arrays: FabricArrays, zones: list[list[int]]) -> list[tuple[int, int]]:
    """Return ranks of which the first's NIC hangs on a switch that does not know the other's."""
    nics = arrays.nic_targets[arrays.machines.plane[arrays.nic_targets] >= 0]
    at = np.full(len(arrays.nodes), -1, np.int64)
    at[arrays.targets["node"][nics]] = nics
    up = np.flatnonzero(
        (at[arrays.wires["src"]] >= 0) & (arrays.nodes["zone"][arrays.wires["dst"]] == NONE)
    )
    switch, which = np.unique(arrays.wires["dst"][up], return_index=True)
    own = at[arrays.wires["src"][up[which]]]
    planes = arrays.machines.planes
    meet = np.array([[not a.isdisjoint(b) for b in planes] for a in planes])
    for node, nic in zip(switch.tolist(), own.tolist(), strict=True):
        row = arrays.nodes[node]
        groups = arrays.routes[int(row["wide_lo"]) + arrays.targets["wide"][nics].astype(np.int64)]
        lost = nics[
            (groups == NONE) & meet[arrays.machines.plane[nic]][arrays.machines.plane[nics]]
        ]
        lost = lost[arrays.targets["zone"][lost] != arrays.targets["zone"][nic]]
        if len(lost):
            ends = (zones[int(arrays.targets["zone"][t])] for t in (nic, int(lost[0])))
            return [(ranks[0], other[0]) for ranks, other in [tuple(ends)] if ranks and other]
    return []
