"""Capacity of a topology: bisection inside a node and between nodes, and oversubscription per tier.

A bisection is the maximum flow between two sets of graph nodes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

import numpy as np
from numpy.typing import NDArray

from clusim.base.tables import group_values
from clusim.base.units import format_rate
from clusim.topology.arrays import FabricArrays
from clusim.topology.check_links import HOST_CLASSES, Finding
from clusim.topology.model import Fabric
from clusim.topology.node import NETWORK


def max_flow(
    arrays: FabricArrays,
    sources: Iterable[int],
    sinks: Iterable[int],
    *,
    only: NDArray[np.bool_] | None = None,
) -> float:
    """Return the maximum flow from the graph nodes `sources` to the graph nodes `sinks` [B/s].

    `only` restricts it to some wires; all by default. Rates are rounded to whole bytes per second. A graph node in
    both sets makes the flow infinite.
    """
    import networkx as nx
    from networkx.algorithms.flow import shortest_augmenting_path

    wires = arrays.wires if only is None else arrays.wires[only]
    rates_Bps = np.rint(wires["rate_num"] / wires["rate_den"] * 1e12).astype(
        np.int64
    )
    forwards = [node.forwards for node in arrays.fabric.nodes]
    source_set, sink_set = {int(n) for n in sources}, {int(n) for n in sinks}
    if source_set & sink_set:
        return float("inf")
    network = nx.DiGraph()
    network.add_nodes_from(("source", "sink"))
    for src, dst, rate_Bps in zip(
        wires["src"].tolist(), wires["dst"].tolist(), rates_Bps.tolist(), strict=True
    ):
        if (forwards[src] or src in source_set) and (
            forwards[dst] or dst in sink_set
        ):
            parallel_Bps = network.get_edge_data(src, dst, {"capacity": 0})[
                "capacity"
            ]
            network.add_edge(src, dst, capacity=parallel_Bps + rate_Bps)
    network.add_edges_from(("source", node) for node in source_set)
    network.add_edges_from((node, "sink") for node in sink_set)
    how = shortest_augmenting_path
    return float(nx.maximum_flow_value(network, "source", "sink", flow_func=how))


MAX_ENDPOINTS = 512
MAX_NETWORK_ARCS = 40_000
"""Most arcs of a network; above this a maximum flow needs more than some seconds."""
EVEN = 1.001
"""Ratio of bandwidths up to which they are equal."""

MAX_DEVICE_SHARE = 3
"""Largest usual ratio of one device's rate to the uplink of its PCIe switch: a generation is 2, two are 4."""


def wire_rates_Bps(arrays: FabricArrays) -> NDArray[np.float64]:
    """Return the rate of every wire [B/s]."""
    rates: NDArray[np.float64] = (
        arrays.wires["rate_num"] / arrays.wires["rate_den"] * 1e12
    )
    return rates


def device_wires(arrays: FabricArrays) -> NDArray[np.bool_]:
    """Return a mask of the wires that do not belong to the host."""
    classes = arrays.wire_class
    host = np.array([name in HOST_CLASSES for name in classes.names], bool)
    return ~host[classes.codes] if len(host) else np.zeros(len(arrays.wires), bool)


def peer_wires(arrays: FabricArrays) -> NDArray[np.bool_]:
    """Return a mask of the wires between ranks of a node.

    These are the wires between GPUs if every rank has some, otherwise all.
    """
    result = device_wires(arrays)
    ranks = arrays.endpoints["node"][arrays.rank_endpoint]
    if np.isin(ranks, arrays.wires["src"][result]).all():
        return result
    return np.ones(len(result), bool)


def endpoint_rates_Bps(arrays: FabricArrays) -> NDArray[np.float64]:
    """Return the bandwidth out of every rank towards other ranks [B/s]."""
    between = peer_wires(arrays)
    total = np.zeros(len(arrays.nodes), np.float64)
    np.add.at(total, arrays.wires["src"][between], wire_rates_Bps(arrays)[between])
    result: NDArray[np.float64] = total[
        arrays.endpoints["node"][arrays.rank_endpoint]
    ]
    return result


def bisection_Bps(arrays: FabricArrays) -> float:
    """Return the one-way bandwidth between the lower and upper half of the first node's ranks [B/s].

    It is the maximum flow over the directed graph, an upper bound for any routing between the halves. If
    GPUs have direct links, links of the host are excluded.
    """
    nodes = arrays.endpoints["node"][arrays.rank_endpoint]
    nodes = nodes[arrays.nodes["zone"][nodes] == 0]
    half = len(nodes) // 2
    return max_flow(
        arrays,
        nodes[:half].tolist(),
        nodes[half : 2 * half].tolist(),
        only=peer_wires(arrays),
    )


def network_bisection_Bps(arrays: FabricArrays) -> float:
    """Return the one-way bandwidth between NICs of the lower and upper half of nodes [B/s]."""
    zone = arrays.nodes["zone"]
    nics = arrays.targets["node"][arrays.nic_targets]
    half = arrays.fabric.num_zones // 2
    home = zone[nics].astype(np.int64)
    outside = zone == np.uint32(NETWORK & 0xFFFFFFFF)
    only = outside[arrays.wires["src"]] | outside[arrays.wires["dst"]]
    low, high = nics[home < half], nics[(home >= half) & (home < 2 * half)]
    return max_flow(arrays, low.tolist(), high.tolist(), only=only)


def check_flow(fabric: Fabric, arrays: FabricArrays) -> list[Finding]:
    """Return bisection and oversubscription as findings."""
    return [
        *_machine(fabric, arrays),
        *_network(fabric, arrays),
        *_host_tiers(fabric),
        *_network_tiers(fabric),
    ]


def _machine(fabric: Fabric, arrays: FabricArrays) -> Iterator[Finding]:
    homes = arrays.nodes["zone"][arrays.endpoints["node"][arrays.rank_endpoint]]
    ranks = int((homes == 0).sum())
    if not 2 <= ranks <= MAX_ENDPOINTS:
        return
    width = bisection_Bps(arrays)
    injected = float(endpoint_rates_Bps(arrays)[homes == 0][: ranks // 2].sum())
    share = width / injected if injected else 0.0
    where = "bisection of a node" if fabric.num_zones > 1 else "bisection"
    message = f"{where} {format_rate(width)} one way, {share:.0%} of the rate of half of the endpoints"
    yield Finding("info", message)


def _network(fabric: Fabric, arrays: FabricArrays) -> Iterator[Finding]:
    if fabric.num_zones < 2 or not len(arrays.nic_targets):
        return
    arcs = {
        (link.a, link.b) for end, _, link in fabric.ends() if end.zone == NETWORK
    }
    if len(arcs) > MAX_NETWORK_ARCS:
        yield Finding("info", "network too large to find its bisection quickly")
        return
    width = network_bisection_Bps(arrays)
    half = fabric.num_zones // 2
    injected = sum(
        link.rate.bytes_per_s * link.count
        for end, other, link in fabric.ends()
        if 0 <= end.zone < half and other.zone == NETWORK
    )
    share = width / injected if injected else 0.0
    message = f"bisection of the network {format_rate(width)} one way, {share:.0%} of the rate of half of the nodes"
    yield Finding("info", message)


def _host_tiers(fabric: Fabric) -> Iterator[Finding]:
    """Report the rates of PCIe switches downwards and towards the root complex."""
    below: Counter[str] = Counter()
    above: Counter[str] = Counter()
    fastest: dict[str, float] = {}
    for end, other, link in fabric.ends():
        if link.cls == "pcie" and end.tier == "pcie":
            rate_Bps = link.rate.bytes_per_s * link.count
            side = above if other.tier == "root" else below
            side[end.name] += rate_Bps  # type: ignore[assignment]
            if other.tier != "root":
                fastest[end.name] = max(fastest.get(end.name, 0.0), rate_Bps)
    groups = Counter(
        (
            fastest[name] > MAX_DEVICE_SHARE * up_Bps,
            f"{format_rate(below[name])} below and {format_rate(up_Bps)} towards the host,"
            f" {below[name] / up_Bps:.3g}:1",
        )
        for name, up_Bps in above.items()
        if below[name]
    )
    for (slow, text), count in groups.items():
        aside = (
            "; a single device is several times faster: the uplink may have trained low"
            if slow
            else ""
        )
        yield Finding(
            "warning" if slow else "info", f"PCIe switches ({count}): {text}{aside}"
        )


def _network_tiers(fabric: Fabric) -> Iterator[Finding]:
    """Report the rates of each tier of network switches downwards, across and upwards."""
    tier = {node.name: node.tier for node in fabric.nodes}
    groups = Counter(
        (tier[name], _sides(rates)) for name, rates in _side_rates(fabric).items()
    )
    for (kind, text), count in groups.items():
        name = "network" if kind == "switch" else kind
        yield Finding("info", f"{name} switches ({count}): {text}")


def never_tapers(fabric: Fabric) -> bool:
    """True if no links cross a tier and no switch with uplinks is oversubscribed; found once."""
    cache: dict[str, bool] = fabric.cache
    if "never tapers" not in cache:
        cache["never tapers"] = not any(
            rates["across"] or 0 < rates["up"] < rates["down"] / EVEN
            for rates in _side_rates(fabric).values()
        )
    return cache["never tapers"]


def _side_rates(fabric: Fabric) -> dict[str, Counter[str]]:
    """Return the rates of network switches ``down``, ``across`` and ``up`` [bytes/s]."""
    result: dict[str, Counter[str]] = {}
    height = _heights(fabric)
    for end, other, link in fabric.ends():
        if end.zone == NETWORK and end.name in height:
            rise = height.get(other.name, 0) - height[end.name]
            side = "up" if rise > 0 else "down" if rise else "across"
            rates = result.setdefault(end.name, Counter())
            rates[side] += link.rate.bytes_per_s * link.count  # type: ignore[assignment]
    return result


def _sides(rates: Counter[str]) -> str:
    names = (("down", "down"), ("across", "to the same tier"), ("up", "up"))
    text = ", ".join(
        f"{format_rate(rates[side])} {word}" for side, word in names if rates[side]
    )
    if rates["down"] and rates["up"]:
        ratio = rates["down"] / rates["up"]
        text += (
            f", {ratio:.3g}:1 oversubscribed"
            if ratio > EVEN
            else ", not oversubscribed"
        )
    return text


def _heights(fabric: Fabric) -> dict[str, int]:
    """Return the distance of each network switch from the nearest NIC [links]."""
    neighbours = group_values(
        (one.name, other.name)
        for one, other, _ in fabric.ends()
        if other.zone == NETWORK
    )
    level = [node.name for node in fabric.nodes if node.kind == "nic"]
    height = dict.fromkeys(level, 0)
    for name in level:  # grows: breadth first
        for other in neighbours.get(name, []):
            if other not in height:
                height[other] = height[name] + 1
                level.append(other)
    return height
