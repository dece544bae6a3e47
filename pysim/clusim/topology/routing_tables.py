"""Tables of routing between nodes: graph nodes by zone, and arrays that grow."""

from __future__ import annotations

from typing import Any

import numpy as np

from clusim.base.arrays import Array
from clusim.base.records import dataclass
from clusim.engine.abi import NONE


@dataclass(frozen=True, slots=True)
class Zoned:
    """Inputs of routing between nodes in addition to the `Wiring`.

    Attributes
    ----------
    zone : ndarray of int64, shape (num_nodes,)
        Node number of every graph node, or -1 in the network.
    nic : ndarray of bool, shape (num_nodes,)
        True for NICs.
    dimension_order, network_dimension_order : bool
        Routing inside nodes and in the network.
    """

    zone: Array
    nic: Array
    dimension_order: bool = False
    network_dimension_order: bool = False


@dataclass(frozen=True, slots=True)
class Machines:
    """Graph nodes and targets of zones, and equal zones.

    Attributes
    ----------
    nodes, node_lo : ndarray
        Graph nodes in order of zone; zone z has ``nodes[node_lo[z]:node_lo[z + 1]]``.
    targets, target_lo : ndarray
        Targets in the same format.
    position : ndarray, shape (num_nodes,)
        Index of a graph node in its zone.
    template : ndarray, shape (num_zones,)
        Zones with the same number have the same graph nodes and wires in the same order.
    plane : ndarray, shape (num_targets,)
        Index in `planes` of a NIC, or -1 for targets outside the network.
    planes : list of frozenset
        Connected parts of the network; NICs reach each other if their sets intersect.
    """

    nodes: Array
    node_lo: Array
    targets: Array
    target_lo: Array
    position: Array
    template: Array
    plane: Array
    planes: list[frozenset[int]]


@dataclass(frozen=True, slots=True)
class ZoneRoutes:
    """The routing arrays of an image."""

    targets: Array
    route_lo: Array
    wide_lo: Array
    wide_stride: Array
    routes: Array
    group_off: Array
    group_wires: Array
    machines: Machines


class RoutingTables:
    """Routing arrays that grow table by table."""

    def __init__(self) -> None:
        self.routes: list[Array] = []
        self.sizes: list[Array] = []
        self.wires: list[Array] = []
        self.num_routes = 0
        self.num_groups = 0

    def add_routes(self, routes: Array) -> int:
        """Append entries with global group numbers; return the index of the first."""
        begin = self.num_routes
        self.routes.append(routes.ravel().astype(np.uint32, copy=False))
        self.num_routes += routes.size
        return begin

    def add_groups(self, sizes: Array, wires: Array) -> int:
        """Append groups by size; return the number of the first."""
        begin = self.num_groups
        self.sizes.append(sizes)
        self.wires.append(wires.ravel().astype(np.uint32, copy=False))
        self.num_groups += len(sizes)
        return begin

    def shift(self, routes: Array, groups: int | Array) -> Array:
        """Return entries with `groups` added to all but NONE."""
        return np.where(routes == NONE, NONE, routes.astype(np.int64) + groups)

    def finish(self) -> tuple[Array, Array, Array]:
        """Return routes, group offsets and group members."""
        offsets = np.zeros(self.num_groups + 1, np.uint32)
        np.cumsum(_concatenate(self.sizes, np.int64), out=offsets[1:])
        return (
            _concatenate(self.routes, np.uint32),
            offsets,
            _concatenate(self.wires, np.uint32),
        )


def _concatenate(parts: list[Array], dtype: Any) -> Array:
    return np.concatenate(parts) if parts else np.zeros(0, dtype)
