"""Cached lookup of the wires between places of a topology, and route keys.

A route key is the choice of a flow among equal paths between nodes.

**Hardware** InfiniBand switches forward by the destination address only; the subnet manager spreads
destinations over the upward paths in the order of their ports on the leaf switches (d-mod-k: Zahavi,
"Fat-tree routing and node ordering providing contention free traffic for MPI global collectives", 2012;
OpenSM's ``ftree``). Ethernet switches hash addresses and the UDP port, which is the queue pair's (ECMP):
flows meet at random. A queue pair stays on one port of its NIC; drivers assign queue pairs to ports in turn.
Parallel links inside a node take turns.
**Model** One key per connection. A graph node with n equal outputs takes the key's last digit of base n and
passes the rest on. A key therefore consists of the digits for the sending node and its NIC (the channel), for
the network (the destination's number on InfiniBand; otherwise a hash of both NICs, both ranks, the channel
and the seed of the run), and for the receiving node (the channel).
**Not modelled** Several queue pairs per connection (``NCCL_IB_QPS_PER_CONNECTION``), several addresses per
port (LMC), subnet managers with other routing engines, weighted and resilient hashing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
from itertools import pairwise
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from clusim.base.errors import ScheduleError
from clusim.engine.abi import NONE
from clusim.lowering.hops import Leg
from clusim.schedule.ir import Connection
from clusim.topology.arrays import FabricArrays
from clusim.topology.node import HostTraits
from clusim.topology.rails import PathType, Rails, path_type

Array = NDArray[Any]
Value = TypeVar("Value")

BY_DESTINATION = "infiniband"
"""Packet format of the networks with switches that forward by destination."""

MOST_CHANNELS = 1024
"""Upper bound of the number of channels, which keeps pairs of ranks distinct in hashes."""


def flow_hash(source: Array, destination: Array, number: Array, seed: int) -> Array:
    """Return a 32-bit hash of every (source, destination, number) and `seed`.

    The result is a uint32 array of the same shape.
    """
    x = source.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    x ^= destination.astype(np.uint64) * np.uint64(0xC2B2AE3D27D4EB4F)
    x += number.astype(np.uint64) * np.uint64(0x165667B19E3779F9) + np.uint64(seed)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        x ^= x >> np.uint64(shift)
        x *= np.uint64(factor)
    return np.asarray(x >> np.uint64(32), np.uint32)


def route_keys(
    arrays: FabricArrays, connections: Sequence[Connection], legs: Sequence[Leg], seed: int
) -> Array:
    """Return the route key of every connection over its leg [uint32, one per connection].

    Inside a node it is the connection's key; aggregation trees have key 0.
    """
    key_list = [0 if item.kind == "aggregation" else item.key for item in connections]
    keys = np.array(key_list, np.uint32)
    ends = np.array([(leg.via_first, leg.via_last) for leg in legs], np.int64).reshape(-1, 2)
    away = np.flatnonzero(ends[:, 1] != NONE)
    if not len(away):
        return keys
    first, last = ends[away].T
    flows = [(connections[number], legs[number]) for number in away.tolist()]
    src, dst, channel = np.array([(c.src, c.dst, c.channel) for c, _ in flows], np.int64).T
    pair = src * arrays.num_ranks + dst
    hashed = flow_hash(first, last, pair * MOST_CHANNELS + channel, seed).astype(np.int64)
    line = np.array([leg.line_wire for _, leg in flows], np.int64)
    network = np.array(arrays.format_names)[arrays.wires["format"][np.where(line == NONE, 0, line)]]
    by_destination = (line != NONE) & (network == BY_DESTINATION)
    number = np.where(by_destination, _destination_numbers(arrays)[last], hashed)
    start = arrays.endpoints["node"][[leg.src for _, leg in flows]]
    leaving, between = _choices(arrays, start.astype(np.int64), first, last)
    keys[away] = (channel % leaving + leaving * (number % between + between * channel)) % 2**32
    return keys


def _choices(arrays: FabricArrays, node: Array, first: Array, last: Array) -> tuple[Array, Array]:
    """Return the numbers of paths that leave a node, NIC included, and that cross the network.

    Products of the numbers of equal outputs along the first shortest path, from `node` over NICs `first` to `last`.
    """
    leaving, between = np.ones((2, len(node)), np.int64)
    adapter = arrays.targets["node"].astype(np.int64)
    size = np.diff(arrays.group_off.astype(np.int64))
    node, passed = node.copy(), np.zeros(len(node), bool)
    for _ in range(len(arrays.nodes)):
        network = passed.copy()
        passed |= node == adapter[first]
        moving = np.flatnonzero(~passed | (node != adapter[last]))
        if not len(moving):
            break
        target = np.where(passed, last, first)[moving]
        group = route_groups(arrays, node[moving], target)
        moving, group = moving[group != NONE], group[group != NONE]
        if not len(moving):
            break
        np.multiply.at(leaving, moving[~network[moving]], size[group[~network[moving]]])
        np.multiply.at(between, moving[network[moving]], size[group[network[moving]]])
        node[moving] = arrays.wires["dst"][arrays.group_wires[arrays.group_off[group]]]
    return leaving, between


def route_groups(arrays: FabricArrays, node: Array, target: Array) -> Array:
    """Return the route groups from graph nodes to targets, or NONE.

    Numbers are those of `FabricArrays.group_number`.
    """
    rows, goals = arrays.nodes[node], arrays.targets[target]
    near = rows["route_lo"].astype(np.int64) + goals["local"]
    far = rows["wide_lo"].astype(np.int64) + goals["wide"].astype(np.int64) * rows["wide_stride"]
    result: Array = arrays.routes[np.where(rows["zone"] == goals["zone"], near, far)]
    return result.astype(np.int64)


def _destination_numbers(arrays: FabricArrays) -> Array:
    """Return the number of every target among the NICs, by leaf switch [int64]."""
    targets = arrays.nic_targets
    leaf = np.full(len(arrays.nodes), len(arrays.nodes), np.int64)
    up = arrays.wires[arrays.nodes["zone"][arrays.wires["dst"]] == NONE]
    leaf[up["src"][::-1]] = up["dst"][::-1]  # the first of several wires counts
    order = np.lexsort((targets, leaf[arrays.targets["node"][targets]]))
    result = np.zeros(len(arrays.targets), np.int64)
    result[targets[order]] = np.arange(len(targets))
    return result


def remembered(method: Callable[..., Value]) -> Callable[..., Value]:
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

    @remembered
    def live(self, zone: int) -> frozenset[int]:
        """Return the rails of a node that are on the network."""
        return frozenset(self.rails.live((zone,)))

    @remembered
    def steps(self, node: int, targets: tuple[int, ...]) -> tuple[int, ...]:
        """Return the first shortest path from a graph node over targets."""
        return tuple(self.arrays.steps(node, targets))

    def way(self, rank: int, target: int) -> tuple[int, ...]:
        """Return the path from a rank to a target."""
        return self.steps(self.arrays.node_of(rank), (target,))

    @remembered
    def reaches(self, node: int, target: int) -> bool:
        """Return True if there is a path from a graph node to a target."""
        return self.arrays.distance(node, target) >= 0

    def formats(self, wires: Sequence[int]) -> frozenset[int]:
        """Return the formats of wires."""
        return frozenset(int(self.arrays.wires["format"][wire]) for wire in wires)

    def packet_limit(self, rank: int, way: Sequence[int]) -> int:
        """Return the payload limit of packets of a rank, on all wires of a way [bytes].

        Packets that pass a root complex from PCIe to PCIe are cut to its peer payload.
        """
        arrays, nodes = self.arrays, self.fabric.nodes
        requester = "sm" if nodes[arrays.node_of(rank)].kind == "gpu" else "nic"
        names = (arrays.format_names[int(arrays.wires["format"][wire])] for wire in way)
        limits = [self.fabric.formats[name].payload_bytes[requester] for name in names]
        for before, after in pairwise(way):
            node = nodes[int(arrays.wires["dst"][before])]
            peers = arrays.wire_class[before] == arrays.wire_class[after] == "pcie"
            if peers and node.peer_payload_bytes:
                limits.append(node.peer_payload_bytes)
        return min(limits, default=128)

    @remembered
    def memory(self, rank: int) -> int:
        """Return the host memory nearest to a rank, or NONE."""
        return self.arrays.memory_of(rank)

    def host(self, rank: int) -> HostTraits:
        """Return the thread costs of the processor with the memory nearest to a rank."""
        memory = self.memory(rank)
        if memory == NONE:
            return HostTraits()
        root = int(self.arrays.wires["src"][self.way(rank, memory)[-1]])
        return self.fabric.nodes[root].host or HostTraits()

    @remembered
    def to_host(self, rank: int) -> int:
        """Return the time from a GPU's write of a flag until the host can see it [ps]."""
        memory = self.memory(rank)
        return 0 if memory == NONE else self.arrays.latency_ps(self.way(rank, memory))

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

    def is_host(self, rank: int) -> bool:
        """Return True if a rank is a host without a GPU."""
        return self.fabric.nodes[self.arrays.node_of(rank)].kind == "host"

    @remembered
    def helper(self, rank: int, rail: int) -> int:
        """Return a GPU next to a NIC that a rank reaches over NVLink (PXN), or -1."""
        zone = self.zones[rank]
        others = [other for other, home in enumerate(self.zones) if home == zone and other != rank]
        for other in self.rails.heads(others, rail) if others else ():
            if not self.rails.direct(other, rail):
                continue
            if path_type(self.arrays, self.way(rank, self.endpoint(other))) == PathType.NVL:
                return other
        return -1

    @remembered
    def stage(self, rank: int, nic: int) -> int:
        """Return the host memory reachable by a rank and nearest to a NIC of its node, or NONE.

        Raises
        ------
        ScheduleError
            There is none, and NICs do not access the memory of GPUs.
        """
        arrays, fabric = self.arrays, self.fabric
        low, high = arrays.machines.target_lo[self.zones[rank] : self.zones[rank] + 2]
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
