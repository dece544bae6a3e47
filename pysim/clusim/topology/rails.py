"""Distances of ranks from each other and from NICs, and the NIC of each rank.

**Hardware** The path between two PCIe devices determines their access: below one switch or several they
communicate directly; through a root complex, or from socket to socket, that is slow or forbidden. NCCL
calls the classes PIX, PXB, PHB and SYS (as does ``nvidia-smi topo -m``), and P2C if a GPU reaches PCIe
over its link to the CPU.
**Model** The class of a path follows from the tiers of its graph nodes. A rail is the index of a NIC
within its node, connected to the network or not; ranks that are equally near to the same NICs share them
evenly.
**Not modelled** The settings of an IOMMU.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import IntEnum
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from clusim.topology.arrays import FabricArrays

_HOST_CLASSES = frozenset({"pcie", "numa", "dram"})
"""Classes of wires that belong to the host and not to a network of GPUs."""


class PathType(IntEnum):
    """Class of a path inside a node, better classes first."""

    LOC = 0  # no path between devices: as a level it disables access
    NVL = 1  # NVLink, xGMI, or any path that does not pass a host
    NVB = 2  # NVLink through another GPU: the level that allows it, which `path_type` reports as NVL
    PIX = 3  # at most one PCIe switch
    PXB = 4  # several PCIe switches
    C2C = 5  # a coherent link to the CPU, then its PCIe
    PHB = 6  # a root complex
    SYS = 7  # from one root complex to another
    NONE = 8  # no path: trays of a rack share NVLink only


def path_type(arrays: FabricArrays, wires: Sequence[int]) -> PathType:
    """Return the class of a path."""
    classes = {arrays.wire_class[wire] for wire in wires}
    if classes.isdisjoint(_HOST_CLASSES):
        return PathType.NVL
    nodes = arrays.fabric.nodes
    passed = [nodes[int(arrays.wires["src"][wire])] for wire in wires[1:]]
    for half in [
        node for node in passed if node.half_of
    ]:  # NCCL does not see the way up and down
        names = [node.name for node in passed]
        if half.half_of in names:
            del passed[names.index(half.half_of) : names.index(half.name)]
    between = [node.tier for node in passed]
    roots = between.count("root")
    if roots > 1 or "numa" in classes:
        return PathType.SYS
    if roots:
        ends = {arrays.wire_class[wires[0]], arrays.wire_class[wires[-1]]}
        return PathType.C2C if "c2c" in ends else PathType.PHB
    return PathType.PIX if between.count("pcie") <= 1 else PathType.PXB


class Rails:
    """NICs of a node by rank."""

    def __init__(self, arrays: FabricArrays) -> None:
        self.arrays = arrays
        self._near: dict[tuple[int, ...], tuple[int, ...]] = {}
        self._types: dict[tuple[int, ...], tuple[PathType, int]] = {}
        self._mates: dict[int, dict[tuple[int, ...], list[int]]] = {}
        self._nics: dict[int, list[int]] = {}
        self._live: dict[int, tuple[int, ...]] = {}
        self._keys: dict[int, tuple[int, ...]] = {}

    def nics(self, zone: int) -> list[int]:
        """Return the NICs of a node (target indices) by rail."""
        if zone not in self._nics:
            low, high = self.arrays.machines.target_lo[zone : zone + 2]
            of_zone = self.arrays.machines.targets[low:high]
            result: list[int] = of_zone[
                of_zone >= len(self.arrays.endpoints)
            ].tolist()
            self._nics[zone] = result
            on = set(self.arrays.nics(zone))
            self._live[zone] = tuple(
                rail for rail, nic in enumerate(result) if nic in on
            )
        return self._nics[zone]

    def live(self, zones: Iterable[int]) -> list[int]:
        """Return the rails that are on the network in all of `zones`."""
        sets = []
        for zone in zones:
            self.nics(zone)
            sets.append(set(self._live[zone]))
        return sorted(set.intersection(*sets)) if sets else []

    def partner(self, rank: int, rail: int, nic: int) -> int:
        """Return the rail to `nic` of another node: `rail` if possible, then the nearest, or -1."""
        nics = self.nics(self.arrays.zone_of(rank))
        live = self._live[self.arrays.zone_of(rank)]
        if rail in live and self.arrays.on_same_plane(nics[rail], nic):
            return rail
        order = sorted(
            self.live((self.arrays.zone_of(rank),)),
            key=lambda candidate: (
                candidate != rail,
                self.path(rank, candidate),
                candidate,
            ),
        )
        return next(
            (
                candidate
                for candidate in order
                if self.arrays.on_same_plane(nics[candidate], nic)
            ),
            -1,
        )

    def path(self, rank: int, rail: int) -> tuple[PathType, int]:
        """Return the class and the weight of the path from a rank to a NIC of its node."""
        key = (*self._alike(rank), rail)
        if key not in self._types:
            arrays = self.arrays
            nic = self.nics(arrays.zone_of(rank))[rail]
            weight = arrays.distance(arrays.node_of(rank), nic)
            kind = PathType.NONE
            if weight >= 0:
                kind = path_type(arrays, arrays.steps(arrays.node_of(rank), (nic,)))
            self._types[key] = kind, weight
        return self._types[key]

    def direct(self, rank: int, rail: int) -> bool:
        """True if a NIC may access the memory of a rank: GPUDirect up to `Fabric.gdr_level`.

        Hosts and GPUs without PCIe are attached to their NICs directly; a coherent link to the CPU counts as
        ``pxb``.
        """
        level = PathType[self.arrays.fabric.gdr_level.upper()]
        return self.path(rank, rail)[0] <= (
            PathType.C2C if level == PathType.PXB else level
        )

    def nearest_rails(self, rank: int) -> tuple[int, ...]:
        """Return the rails that are nearest to a rank."""
        key = self._alike(rank)
        if key not in self._near:
            zone = self.arrays.zone_of(rank)
            nics = set(self.arrays.nearest_nics(rank))
            rails = [rail for rail, nic in enumerate(self.nics(zone)) if nic in nics]
            paths = {rail: self.path(rank, rail) for rail in rails}
            best = min(paths.values(), default=None)
            self._near[key] = tuple(
                rail for rail, path in paths.items() if path == best
            )
        return self._near[key]

    def choice(self, rank: int, channel: int) -> int:
        """Return the rail a rank uses on a channel, or -1 without a NIC.

        Ranks with the same nearest NICs alternate.
        """
        nearest = self.nearest_rails(rank)
        if not nearest:
            return -1
        zone = self.arrays.zone_of(rank)
        if zone not in self._mates:
            mates: dict[tuple[int, ...], list[int]] = {}
            for other in self._ranks_in(zone):
                mates.setdefault(self.nearest_rails(other), []).append(other)
            self._mates[zone] = mates
        sharers = self._mates[zone][nearest]
        return nearest[(sharers.index(rank) + channel * len(sharers)) % len(nearest)]

    def _ranks_in(self, zone: int) -> list[int]:
        arrays = self.arrays
        home = arrays.nodes["zone"][arrays.endpoints["node"][arrays.rank_endpoint]]
        result: list[int] = np.flatnonzero(home == zone).tolist()
        return result

    def heads(self, ranks: Sequence[int], rail: int) -> list[int]:
        """Return the `ranks`, all of one node, that are nearest to a NIC, its assigned rank first."""
        paths = {
            rank: self.path(rank, rail)
            for rank in ranks
            if rail < len(self.nics(self.arrays.zone_of(rank)))
        }
        best = min(paths.values(), default=(PathType.NONE, 0))
        result = [
            rank
            for rank, path in paths.items()
            if path == best and path[0] < PathType.NONE
        ]
        if len(result) > 1:
            first = self.nearest_rails(result[0])
            turn = first.index(rail) if rail in first else rail
            result = result[turn % len(result) :] + result[: turn % len(result)]
        return result

    def _alike(self, rank: int) -> tuple[int, ...]:
        """Return a key shared by ranks in the same place of equal nodes."""
        cached = self._keys.get(rank)
        if cached is not None:
            return cached
        arrays = self.arrays
        node = arrays.node_of(rank)
        zone = int(arrays.nodes["zone"][node])
        machines = arrays.machines
        self.nics(zone)
        key = (
            int(machines.template[zone]),
            int(machines.position[node]),
            *self._live[zone],
        )
        return self._keys.setdefault(rank, key)
