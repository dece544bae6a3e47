"""Cached lookup of the wires between places of a topology and their properties."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from clusim.engine.abi import NONE
from clusim.topology.arrays import FabricArrays
from clusim.topology.node import HostTraits
from clusim.topology.rails import Rails


class WireWays:
    """Shortest paths on a topology from ranks, and the nodes of ranks.

    Attributes
    ----------
    helpers : dict
        (rank, rail) -> the GPU next to the NIC that a rank sends over, or -1.
    stages : dict
        (rank, NIC) -> the host memory in which data wait between the two, or NONE.
    """

    def __init__(self, arrays: FabricArrays) -> None:
        self.arrays = arrays
        self.fabric = arrays.fabric
        self.rails = Rails(arrays)
        self._zones = [arrays.zone_of(rank) for rank in range(arrays.num_ranks)]
        self._memory: dict[int, int] = {}
        self._latency: dict[tuple[int, int], int] = {}
        self._ways: dict[tuple[int, ...], tuple[int, ...]] = {}
        self._members: dict[int, list[int]] = {}
        for rank, zone in enumerate(self._zones):
            self._members.setdefault(zone, []).append(rank)
        self.helpers: dict[tuple[int, int], int] = {}
        self.stages: dict[tuple[int, int], int] = {}
        self._reached: dict[tuple[int, int], bool] = {}
        self._live: dict[int, frozenset[int]] = {}

    def live(self, zone: int) -> frozenset[int]:
        """Return the rails of a node that are on the network; cached."""
        if zone not in self._live:
            self._live[zone] = frozenset(self.rails.live((zone,)))
        return self._live[zone]

    def steps(self, node: int, targets: tuple[int, ...]) -> tuple[int, ...]:
        """Return the first shortest path from a graph node over targets; cached."""
        key = (node, *targets)
        if key not in self._ways:
            self._ways[key] = tuple(self.arrays.steps(node, targets))
        return self._ways[key]

    def reaches(self, node: int, target: int) -> bool:
        """Return True if there is a path from a graph node to a target; cached."""
        if (node, target) not in self._reached:
            self._reached[node, target] = self.arrays.distance(node, target) >= 0
        return self._reached[node, target]

    def back(self, src: int, dst: int) -> tuple[int, ...]:
        """Return the path from one rank's destination back to it."""
        return self.steps(self.arrays.node_of(dst), (self.endpoint(src),))

    def group(self, node: int, target: int) -> list[int]:
        """Return the first wires from a node towards a target."""
        return self.arrays.group(node, target)

    def formats(self, wires: Sequence[int]) -> frozenset[int]:
        """Return the formats of wires."""
        return frozenset(int(self.arrays.wires["format"][wire]) for wire in wires)

    def packet_limit(self, rank: int, way: Sequence[int]) -> int:
        """Return the payload limit of packets of a rank, on all wires of a way [bytes].

        Packets that pass a root complex from PCIe to PCIe are cut to its peer payload.
        """
        requester = "sm" if self.fabric.nodes[self.arrays.node_of(rank)].kind == "gpu" else "nic"
        return self.limit(requester, way)

    def limit(self, requester: str, way: Sequence[int]) -> int:
        """Return the payload limit of packets of a requester class on a way [bytes]."""
        arrays = self.arrays
        limits = []
        for wire in way:
            name = arrays.format_names[int(arrays.wires["format"][wire])]
            limits.append(self.fabric.formats[name].payload_bytes[requester])
        for before, after in pairwise(way):
            node = self.fabric.nodes[int(arrays.wires["dst"][before])]
            peers = arrays.wire_class[before] == arrays.wire_class[after] == "pcie"
            if peers and node.peer_payload_bytes:
                limits.append(node.peer_payload_bytes)
        return min(limits, default=128)

    def memory(self, rank: int) -> int:
        """Return the host memory nearest to a rank, or NONE."""
        if rank not in self._memory:
            self._memory[rank] = self.arrays.memory_of(rank)
        return self._memory[rank]

    def host(self, rank: int) -> HostTraits:
        """Return the thread costs of the processor with the memory nearest to a rank."""
        memory = self.memory(rank)
        if memory == NONE:
            return HostTraits()
        root = int(self.arrays.wires["src"][self.steps(self.arrays.node_of(rank), (memory,))[-1]])
        return self.fabric.nodes[root].host or HostTraits()

    def to_host(self, rank: int) -> int:
        """Return the time from a GPU's write of a flag until the host can see it [ps]."""
        return self._flight(rank)

    def to_gpu(self, rank: int) -> int:
        """Return the time from a host's write of a flag until a polling GPU has seen it [ps]."""
        memory = self.memory(rank)
        if memory == NONE:
            return 0
        return 2 * self._flight(rank) + int(self.arrays.endpoints["read_latency_ps"][memory])

    def _flight(self, rank: int) -> int:
        memory = self.memory(rank)
        if memory == NONE:
            return 0
        key = self.arrays.node_of(rank), memory
        if key not in self._latency:
            self._latency[key] = self.arrays.latency_ps(self.steps(key[0], (memory,)))
        return self._latency[key]

    def endpoint(self, rank: int) -> int:
        """Return the endpoint index of a rank."""
        return int(self.arrays.rank_endpoint[rank])

    def zone(self, rank: int) -> int:
        """Return the node of a rank."""
        return self._zones[rank]

    def ranks_in(self, zone: int) -> list[int]:
        """Return the ranks of a node."""
        return self._members[zone]
