"""Capacity of a topology for a traffic pattern: the load at which its first wire is full."""

from __future__ import annotations

import numpy as np

from clusim.base.arrays import Array
from clusim.engine.abi import Kind
from clusim.lowering.buffers import burst_bytes
from clusim.topology import FabricArrays

PS_PER_S = 10**12


def capacity_Bps(arrays: FabricArrays, demand: Array, packet_bytes: int) -> float:
    """Return the maximum payload rate per source, limited by the first full wire [bytes/s].

    Traffic `demand` (shares per source and destination) is spread evenly over the shortest paths; the wire
    that fills up first sets the limit. Headers count; acknowledgements do not.
    """
    load = np.zeros(len(arrays.wires))
    for destination in range(arrays.num_ranks):
        load += _wire_load(arrays, demand[:, destination], destination)
    rate_Bps = arrays.wires["rate_num"] / arrays.wires["rate_den"] * PS_PER_S
    share = packet_bytes / wire_bytes(arrays, packet_bytes)
    return float(np.min(rate_Bps[load > 0] * share[load > 0] / load[load > 0]))


def _wire_load(arrays: FabricArrays, sent: Array, destination: int) -> Array:
    """Return the traffic of each wire if every rank sends `sent` to one destination.

    Paths cross NICs where necessary.
    """
    amounts: dict[int, dict[int, float]] = {}
    for rank in np.flatnonzero(sent).tolist():
        if rank != destination:
            goals = (
                *(arrays.vias(rank, destination) or ()),
                int(arrays.rank_endpoint[destination]),
            )
            node = arrays.node_of(rank)
            for goal in goals:
                by_node = amounts.setdefault(goal, {})
                by_node[node] = by_node.get(node, 0.0) + float(sent[rank])
                node = int(arrays.targets["node"][goal])
    load = np.zeros(len(arrays.wires))
    for goal, by_node in amounts.items():
        _spread(arrays, by_node, goal, load)
    return load


def _spread(
    arrays: FabricArrays, sent: dict[int, float], goal: int, load: Array
) -> None:
    """Add to `load` the traffic per wire if graph nodes send `sent` to a target.

    The traffic is spread evenly over the shortest paths.
    """
    end = int(arrays.targets["node"][goal])
    groups: dict[int, list[int]] = {end: []}
    waiting_on: dict[int, int] = {}
    ahead: dict[int, list[int]] = {end: []}
    result = [node for node in sent if node != end]
    while result:
        node = result.pop()
        if node not in groups:
            groups[node] = arrays.group(node, goal)
            ahead[node] = np.unique(arrays.wires["dst"][groups[node]]).tolist()
            for after in ahead[node]:
                waiting_on[after] = waiting_on.get(after, 0) + 1
            result += ahead[node]
    through = {node: sent.get(node, 0.0) for node in groups}
    ready = [node for node in groups if not waiting_on.get(node, 0)]
    while ready:
        node = ready.pop()
        for wire in groups[node]:
            share = through[node] / len(groups[node])
            load[wire] += share
            through[int(arrays.wires["dst"][wire])] += share
        for after in ahead[node]:
            waiting_on[after] -= 1
            if not waiting_on[after]:
                ready.append(after)


def wire_bytes(arrays: FabricArrays, packet_bytes: int) -> Array:
    """Return the bytes of a full packet on each wire, headers and padding included.

    On wires that segment packets (PCIe): the sum of all segments, for the larger of writes and NIC reads.
    """
    kinds = (Kind.WRITE, Kind.FETCH)
    sizes = [burst_bytes(form, packet_bytes, kinds=kinds) for form in arrays.formats]
    return np.asarray(np.array(sizes)[arrays.wires["format"]])
