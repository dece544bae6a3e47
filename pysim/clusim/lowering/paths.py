"""Cached lookup of the wires between places of a topology."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property, wraps
from itertools import pairwise
from typing import Any, TypeVar

import numpy as np

from clusim.base.arrays import Array
from clusim.base.errors import ScheduleError
from clusim.engine.abi import NONE
from clusim.schedule.ir import Connection
from clusim.topology.arrays import FabricArrays
from clusim.topology.node import HostTraits
from clusim.topology.rails import PathType, Rails, path_type

Value = TypeVar("Value")


def route_groups(arrays: FabricArrays, node: Array, target: Array) -> Array:
    """Return the route groups from graph nodes to targets, or NONE.

    Numbers are those of `FabricArrays.group_number`.
    """
    rows, goals = arrays.nodes[node], arrays.targets[target]
    rows_of_goal = rows["route_lo"].astype(np.int64) + goals["local"]
    far = (
        rows["wide_lo"].astype(np.int64)
        + goals["wide"].astype(np.int64) * rows["wide_stride"]
    )
    result: Array = arrays.routes[
        np.where(rows["zone"] == goals["zone"], rows_of_goal, far)
    ]
    return result.astype(np.int64)


def named_wires(arrays: FabricArrays, connection: Connection) -> list[int]:
    """Return the wires of an explicit path of node names."""
    fabric = arrays.fabric
    ends = (fabric.ranks[connection.src], fabric.ranks[connection.dst])
    path, name = connection.path, f"path {'-'.join(connection.path)}"
    if len(path) < 2 or (path[0], path[-1]) != ends:
        raise ScheduleError(f"{name}: must lead from {ends[0]} to {ends[1]}")
    wires = []
    for a, b in pairwise(path):
        parallel = arrays.parallel_wires(a, b)
        if not parallel:
            raise ScheduleError(f"{name}: no wire from {a} to {b}")
        wires.append(parallel[connection.key % len(parallel)])
    return wires


def remember_result(method: Callable[..., Value]) -> Callable[..., Value]:
    """Compute the result of a method once per object and positional arguments."""
    name = f"_results_of_{method.__name__}"

    @wraps(method)
    def result_of(owner: Any, *given: Any) -> Value:
        results: dict[tuple[Any, ...], Value] = owner.__dict__.setdefault(name, {})
        if given not in results:
            results[given] = method(owner, *given)
        return results[given]

    return result_of


class WireWays:
    """Shortest paths on a topology from ranks, and the nodes of ranks.

    Attributes
    ----------
    zones : list of int
        Node of every rank.
    """

    def __init__(self, arrays: FabricArrays) -> None:
        self.arrays = arrays
        self.fabric = arrays.fabric
        self.rails = Rails(arrays)
        self.zones = [arrays.zone_of(rank) for rank in range(arrays.num_ranks)]

    @remember_result
    def live(self, zone: int) -> frozenset[int]:
        """Return the rails of a node that are on the network."""
        return frozenset(self.rails.live((zone,)))

    @remember_result
    def steps(self, node: int, targets: tuple[int, ...]) -> tuple[int, ...]:
        """Return the first shortest path from a graph node over targets."""
        return tuple(self.arrays.steps(node, targets))

    def path(self, rank: int, target: int) -> tuple[int, ...]:
        """Return the path from a rank to a target."""
        return self.steps(self.arrays.node_of(rank), (target,))

    @remember_result
    def reaches(self, node: int, target: int) -> bool:
        """Return True if there is a path from a graph node to a target."""
        return self.arrays.distance(node, target) >= 0

    def formats(self, wires: Sequence[int]) -> frozenset[int]:
        """Return the formats of wires."""
        return frozenset(int(self.arrays.wires["format"][wire]) for wire in wires)

    def packet_limit(self, rank: int, path: Sequence[int]) -> int:
        """Return the payload limit of packets of a rank, on all wires of a way [bytes].

        Packets that pass a root complex from PCIe to PCIe are cut to its peer payload.
        """
        arrays, nodes = self.arrays, self.fabric.nodes
        requester = "sm" if nodes[arrays.node_of(rank)].kind == "gpu" else "nic"
        names = (
            arrays.format_names[int(arrays.wires["format"][wire])] for wire in path
        )
        limits = [
            self.fabric.formats[name].payload_bytes[requester] for name in names
        ]
        for before, after in pairwise(path):
            node = nodes[int(arrays.wires["dst"][before])]
            peers = arrays.wire_class[before] == arrays.wire_class[after] == "pcie"
            if peers and node.peer_payload_bytes:
                limits.append(node.peer_payload_bytes)
        return min(limits, default=128)

    @remember_result
    def memory(self, rank: int) -> int:
        """Return the host memory nearest to a rank, or NONE."""
        return self.arrays.memory_of(rank)

    def host(self, rank: int) -> HostTraits:
        """Return the thread costs of the processor with the memory nearest to a rank."""
        memory = self.memory(rank)
        if memory == NONE:
            return HostTraits()
        root = int(self.arrays.wires["src"][self.path(rank, memory)[-1]])
        return self.fabric.nodes[root].host or HostTraits()

    @remember_result
    def to_host(self, rank: int) -> int:
        """Return the time from a GPU's write of a flag until the host can see it [ps]."""
        memory = self.memory(rank)
        return (
            0 if memory == NONE else self.arrays.latency_ps(self.path(rank, memory))
        )

    def to_gpu(self, rank: int) -> int:
        """Return the time from a host's write of a flag until a polling GPU has seen it [ps]."""
        memory = self.memory(rank)
        if memory == NONE:
            return 0
        poll_ps = int(self.arrays.endpoints["read_latency_ps"][memory])
        return 2 * self.to_host(rank) + poll_ps

    def endpoint(self, rank: int) -> int:
        """Return the endpoint index of a rank."""
        return int(self.arrays.rank_endpoint[rank])

    def hosts_routing(self, src: int, dst: int) -> str | None:
        """Return the routing between two hosts without NICs, or None if it is the schedule's.

        It is the topology's choice. Without one, flows keep to one path, except that hosts with parallel links send
        over them in turn, as GPUs do over NVLink.
        """
        return self._of_hosts if self.is_host(src) and self.is_host(dst) else None

    @cached_property
    def _of_hosts(self) -> str | None:
        arrays, forwarding = self.arrays, self.fabric.forwarding
        widths = np.diff(arrays.group_off.astype(np.int64))[arrays.first_groups()]
        if forwarding.choice == "auto" and widths.max(initial=1) > 1:
            return None
        return forwarding.routing(adaptive=False)

    def is_host(self, rank: int) -> bool:
        """Return True if a rank is a host without a GPU."""
        return self.fabric.nodes[self.arrays.node_of(rank)].kind == "host"

    @remember_result
    def helper(self, rank: int, rail: int) -> int:
        """Return a GPU next to a NIC that a rank reaches over NVLink (PXN), or -1."""
        zone = self.zones[rank]
        peers = [
            other
            for other, home in enumerate(self.zones)
            if home == zone and other != rank
        ]
        for other in self.rails.heads(peers, rail) if peers else ():
            if not self.rails.direct(other, rail):
                continue
            if (
                path_type(self.arrays, self.path(rank, self.endpoint(other)))
                == PathType.NVL
            ):
                return other
        return -1

    @remember_result
    def stage(self, rank: int, nic: int) -> int:
        """Return the host memory reachable by a rank and nearest to a NIC of its node, or NONE.

        Raises
        ------
        ScheduleError
            There is none, and NICs do not access the memory of GPUs.
        """
        arrays, fabric = self.arrays, self.fabric
        low, high = arrays.machines.target_lo[
            self.zones[rank] : self.zones[rank] + 2
        ]
        node, start = int(arrays.targets["node"][nic]), arrays.node_of(rank)
        memories = [
            (arrays.distance(node, target), target)
            for target in arrays.machines.targets[low:high].tolist()
            if fabric.nodes[int(arrays.targets["node"][target])].kind == "memory"
            and self.reaches(start, target)
        ]
        best = min((item for item in memories if item[0] >= 0), default=(0, NONE))[1]
        if best == NONE and (fabric.gdr_level == "loc" or not fabric.gdr_read):
            raise ScheduleError(
                f"{fabric.name}: rank {rank} lacks host memory to send from or to, and GPUDirect is disabled"
                " (NCCL_NET_GDR_LEVEL, NCCL_NET_GDR_READ, or the topology); add nodes of kind memory"
            )
        return best
