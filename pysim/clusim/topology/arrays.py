"""Lowering: a `Fabric` as the flat arrays of an image."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field

import numpy as np

from clusim.base.arrays import Array
from clusim.base.errors import InputError, TopologyError
from clusim.base.records import dataclass
from clusim.engine.abi import NONE
from clusim.topology.model import Fabric
from clusim.topology.routing import Wiring
from clusim.topology.routing_tables import Machines, Zoned
from clusim.topology.rows import (
    WireClasses,
    WireNames,
    lower_formats,
    lower_nodes,
    lower_wires,
    schedule_wires,
    unrouted_wires,
)
from clusim.topology.zones import lay_out


@dataclass(frozen=True, slots=True)
class FabricArrays:
    """Topology as arrays with the layouts of an image; the receive buffers are the topology's.

    Attributes
    ----------
    targets : ndarray
        Destinations of routing: endpoints, with the same index as in `endpoints`, then NICs.
    wire_names : sequence of str
        ``gpu0->nvswitch1.0``: ends and number among the parallel wires.
    wire_class : sequence of str
        Class of each wire's link.
    wire_weight : ndarray, shape (num_wires,)
        Hops each wire counts as.
    rank_endpoint : ndarray, shape (num_ranks,)
        Endpoint index of every rank.
    machines : Machines
        Graph nodes and targets of each zone.
    """

    fabric: Fabric
    nodes: Array
    endpoints: Array
    formats: Array
    wires: Array
    schedules: Array
    targets: Array
    routes: Array
    group_off: Array
    group_wires: Array
    units: Array
    wire_names: WireNames
    wire_class: WireClasses
    wire_weight: Array
    rank_endpoint: Array
    format_names: list[str]
    machines: Machines
    _nearest: dict[tuple[int, int], list[tuple[int, int]]] = field(
        default_factory=dict, repr=False, compare=False
    )
    _leaving: dict[str, Array] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    @property
    def num_ranks(self) -> int:
        """Number of ranks."""
        return len(self.rank_endpoint)

    @property
    def nic_targets(self) -> Array:
        """Target indices of all NICs."""
        return np.arange(len(self.endpoints), len(self.targets))

    @property
    def l2_bytes(self) -> Array:
        """L2 of every endpoint [bytes]; 0: its memory traffic is a fixed share of its packets."""
        ends = (
            self.fabric.nodes[node].endpoint
            for node in self.endpoints["node"].tolist()
        )
        return np.array(
            [end.l2_bytes if end is not None else 0 for end in ends], np.int64
        )

    def node_of(self, rank: int) -> int:
        """Return the node index of a rank."""
        if not 0 <= rank < self.num_ranks:
            raise InputError(
                f"rank {rank}: no such rank; {self.fabric.name} has 0..{self.num_ranks - 1}"
            )
        return int(self.endpoints["node"][self.rank_endpoint[rank]])

    def zone_of(self, rank: int) -> int:
        """Return the node number of a rank."""
        return int(self.nodes["zone"][self.node_of(rank)])

    def group_number(self, node: int, target: int) -> int:
        """Return the route group from a node towards a target, or NONE."""
        row, goal = self.nodes[node], self.targets[target]
        if row["zone"] == goal["zone"]:
            entry = int(row["route_lo"]) + int(goal["local"])
        else:
            entry = int(row["wide_lo"]) + int(goal["wide"]) * int(row["wide_stride"])
        return int(self.routes[entry])

    def group(self, node: int, target: int) -> list[int]:
        """Return the wires that lead from a node to a target; an endpoint's index is its target's."""
        number = self.group_number(node, target)
        if number == NONE:
            return []
        low, high = self.group_off[number : number + 2]
        members: list[int] = self.group_wires[low:high].tolist()
        return members

    def vias(self, src_rank: int, dst_rank: int) -> tuple[int, int] | None:
        """Return the default NICs (target indices) between two ranks, or None if not needed.

        They are the nearest to both ranks; of several equally near, two of the same rail if possible, and
        neighbouring ranks use different ones.
        """
        node, target = self.node_of(src_rank), self._endpoint(dst_rank)
        if (
            node == int(self.targets["node"][target])
            or self.group_number(node, target) != NONE
        ):
            return None
        source_rails, far = self._near_rails(src_rank), self._near_rails(dst_rank)
        if not source_rails or not far:
            return None
        ours, theirs = (
            self.nics(self.zone_of(src_rank)),
            self.nics(self.zone_of(dst_rank)),
        )
        turns = [
            int(self.machines.position[self.node_of(r)])
            for r in (src_rank, dst_rank)
        ]
        closest = [
            [item for item in rails if item[0] == rails[0][0]]
            for rails in (source_rails, far)
        ]
        for firsts, lasts in (closest, (source_rails, far)):
            routes = [
                (
                    weight + other,
                    first != last,
                    (place - turns[0]) % len(firsts),
                    (index - turns[1]) % len(lasts),
                    (ours[first], theirs[last]),
                )
                for place, (weight, first) in enumerate(firsts)
                for index, (other, last) in enumerate(lasts)
                if self.on_same_plane(ours[first], theirs[last])
            ]
            if routes:
                return min(routes)[-1]
        return None

    def on_same_plane(self, one: int, two: int) -> bool:
        """True if two NICs are different and on the same plane of the network."""
        if one == two:
            return False
        planes, plane = self.machines.planes, self.machines.plane
        a, b = int(plane[one]), int(plane[two])
        if min(a, b) < 0:
            return (
                self.fabric.num_zones == 1
                and self.group_number(self._at(one), two) != NONE
            )
        return a == b or not planes[a].isdisjoint(planes[b])

    def _at(self, target: int) -> int:
        return int(self.targets["node"][target])

    def first_groups(self) -> Array:
        """Return the route groups of endpoints inside their nodes, each once."""
        node = self.endpoints["node"]
        zone = self.nodes["zone"][node]
        width = np.diff(self.machines.target_lo)[zone]
        begin = np.repeat(self.nodes["route_lo"][node].astype(np.int64), width)
        place = np.arange(int(width.sum())) - np.repeat(
            np.cumsum(width) - width, width
        )
        groups = np.unique(self.routes[begin + place])
        result: Array = groups[groups != NONE]
        return result

    def first_wires(self, src_rank: int, dst_rank: int) -> list[int]:
        """Return the first-hop group from one rank to another, or to its NIC if in another node."""
        vias = self.vias(src_rank, dst_rank)
        goal = vias[0] if vias else self._endpoint(dst_rank)
        return self.group(self.node_of(src_rank), goal)

    def path(self, src_rank: int, dst_rank: int) -> list[int]:
        """Return the wires of the first shortest path between two ranks, over `vias` if needed."""
        goals = (*(self.vias(src_rank, dst_rank) or ()), self._endpoint(dst_rank))
        wires = self._walk(self.node_of(src_rank), goals)
        if wires is None:
            raise TopologyError(
                f"{self.fabric.name}: no path from rank {src_rank} to rank {dst_rank}; add a link"
            )
        return wires

    def steps(self, src_node: int, targets: Sequence[int]) -> list[int]:
        """Return the wires of the first shortest path from a graph node over `targets` in order."""
        wires = self._walk(src_node, targets)
        if wires is None:
            names = [
                self.fabric.nodes[int(self.targets["node"][t])].name for t in targets
            ]
            start = self.fabric.nodes[src_node].name
            raise TopologyError(
                f"{self.fabric.name}: no path from {start} over {', '.join(names)}; add a link"
            )
        return wires

    def _walk(self, node: int, targets: Sequence[int]) -> list[int] | None:
        wires: list[int] = []
        for target in targets:
            goal, max_steps = (
                int(self.targets["node"][target]),
                len(wires) + len(self.nodes),
            )
            while node != goal:
                group = self.group(node, target)
                if not group or len(wires) > max_steps:
                    return None
                wires.append(group[0])
                node = int(self.wires["dst"][group[0]])
        return wires

    def _endpoint(self, rank: int) -> int:
        self.node_of(rank)
        return int(self.rank_endpoint[rank])

    def latency_ps(self, wires: Sequence[int]) -> int:
        """Return the latency of a header-only write over `wires` without contention [ps].

        The sum of the wires' latencies and header serialisation, and of the latencies of the graph nodes
        between.
        """
        total = 0
        for hop, wire in enumerate(wires):
            row = self.wires[wire]
            form = self.fabric.formats[self.format_names[int(row["format"])]]
            size, num, den = (
                form.header_wire_bytes(),
                int(row["rate_num"]),
                int(row["rate_den"]),
            )
            total += int(row["latency_ps"]) - (-size * den // num)
            if hop:
                total += int(self.nodes["latency_ps"][row["src"]])
        return total

    def nics(self, zone: int) -> list[int]:
        """Return the NICs of a node (target indices); in a cluster only NICs on the network."""
        of_zone = self._all_nics(zone)
        if self.fabric.num_zones > 1:
            of_zone = of_zone[self.machines.plane[of_zone] >= 0]
        result: list[int] = of_zone.tolist()
        return result

    def _all_nics(self, zone: int) -> Array:
        low, high = self.machines.target_lo[zone : zone + 2]
        of_zone = self.machines.targets[low:high]
        result: Array = of_zone[of_zone >= len(self.endpoints)]
        return result

    def nearest_nics(self, rank: int) -> list[int]:
        """Return the NICs a rank can reach in its node (target indices), nearest first."""
        nics = self.nics(self.zone_of(rank))
        return [nics[rail] for _, rail in self._near_rails(rank)]

    def _near_rails(self, rank: int) -> list[tuple[int, int]]:
        """Return (path weight, rail) of the NICs near a rank, by weight; cached for equal nodes."""
        node, zone = self.node_of(rank), self.zone_of(rank)
        nics = self.nics(zone)
        key = int(self.machines.template[zone]), int(self.machines.position[node])
        if len(nics) != len(self._all_nics(zone)):
            key = -1 - zone, key[1]
        if key not in self._nearest:
            reach = (
                (self.distance(node, nic), rail) for rail, nic in enumerate(nics)
            )
            self._nearest[key] = sorted(item for item in reach if item[0] >= 0)
        return self._nearest[key]

    def distance(self, node: int, target: int) -> int:
        """Return the weight of the shortest path to a target, or -1 if it is unreachable."""
        wires = self._walk(node, (target,))
        return -1 if wires is None else int(self.wire_weight[wires].sum())

    def memory_of(self, rank: int) -> int:
        """Return the endpoint index of the host memory nearest to a rank, or NONE."""
        node, zone = self.node_of(rank), self.zone_of(rank)
        low, high = self.machines.target_lo[zone : zone + 2]
        result = [
            (self.distance(node, target), target)
            for target in self.machines.targets[low:high].tolist()
            if self.fabric.nodes[int(self.targets["node"][target])].kind == "memory"
        ]
        return min((item for item in result if item[0] >= 0), default=(0, NONE))[1]

    def parallel_wires(self, node_a: int | str, node_b: int | str) -> list[int]:
        """Return the wires from one node to another (by index or name), in order of id."""
        a, b = self._node(node_a), self._node(node_b)
        return [
            int(w)
            for w in np.flatnonzero(
                (self.wires["src"] == a) & (self.wires["dst"] == b)
            )
        ]

    def unit_wires(self, rank: int) -> list[int]:
        """Return the wires from a rank to switches with a reduction unit, in order of id."""
        outgoing = self.wires_from(self.node_of(rank))
        result: list[int] = outgoing[
            self.nodes["unit"][self.wires["dst"][outgoing]] != NONE
        ].tolist()
        return result

    def wires_from(self, node: int) -> Array:
        """Return the wires that leave a node, in order of id."""
        if not self._leaving:
            source = self.wires["src"]
            order = np.argsort(source, kind="stable")
            self._leaving["wires"] = order
            self._leaving["off"] = np.searchsorted(
                source[order], np.arange(len(self.nodes) + 1)
            )
        low, high = self._leaving["off"][node : node + 2]
        return self._leaving["wires"][low:high]

    def _node(self, node: int | str) -> int:
        if isinstance(node, int):
            return node
        if node not in self.fabric.node_index:
            raise InputError(
                f"{node!r}: no such node; {self.fabric.name} has {_some(self.fabric)}"
            )
        return self.fabric.node_index[node]


def _some(fabric: Fabric) -> str:
    names = [node.name for node in fabric.nodes]
    return (
        ", ".join(names)
        if len(names) <= 6
        else f"{', '.join(names[:4])}, ... {names[-1]}"
    )


def arrays_of(fabric: Fabric) -> FabricArrays:
    """Return a topology as flat arrays, computed once."""
    cache = fabric.cache
    if "arrays" not in cache:
        cache["arrays"] = lower(fabric)
    result: FabricArrays = cache["arrays"]
    return result


def lower(fabric: Fabric, dead: Sequence[int] = ()) -> FabricArrays:
    """Lower a topology without the wires `dead`; raise `TopologyError` if it cannot work."""
    nodes, endpoints, units = lower_nodes(fabric)
    format_names = list(fabric.formats)
    wires, weight, classes = lower_wires(fabric, format_names)
    nics = [index for index, node in enumerate(fabric.nodes) if node.kind == "nic"]
    is_nic = np.zeros(len(nodes), bool)
    is_nic[nics] = True
    zoned = Zoned(
        zone=np.array([node.zone for node in fabric.nodes], np.int64),
        nic=is_nic,
        dimension_order=fabric.routing == "dimension-order",
        network_dimension_order=fabric.network_routing == "dimension-order",
    )
    ends = wires["dst"].astype(np.int64)
    unused = [*dead, *unrouted_wires(fabric)]
    ends[unused] = wires["src"][unused]  # an unused wire loops back to its source
    wiring = Wiring(
        src=wires["src"].astype(np.int64),
        dst=ends,
        dim=wires["dim"].astype(np.int64),
        weight=weight,
        forwards=np.array([node.forwards for node in fabric.nodes], bool),
        targets=np.concatenate(
            (endpoints["node"].astype(np.int64), np.array(nics, np.int64))
        ),
    )
    _check_zones(fabric, zoned, wiring)
    result = lay_out(wiring, zoned)
    for name in ("route_lo", "wide_lo", "wide_stride"):
        nodes[name] = getattr(result, name)
    ranks = [
        i
        for i, n in enumerate(endpoints["node"])
        if fabric.nodes[n].kind in ("gpu", "host")
    ]
    return FabricArrays(
        fabric=fabric,
        nodes=nodes,
        endpoints=endpoints,
        formats=lower_formats(fabric, format_names),
        wires=wires,
        schedules=schedule_wires(fabric, wires),
        targets=result.targets,
        routes=result.routes,
        group_off=result.group_off,
        group_wires=result.group_wires,
        units=units,
        wire_names=WireNames(
            [node.name for node in fabric.nodes], fabric.node_index, wires
        ),
        wire_class=classes,
        wire_weight=weight,
        rank_endpoint=np.array(ranks, np.uint32),
        format_names=format_names,
        machines=result.machines,
    )


def _check_zones(fabric: Fabric, zoned: Zoned, wiring: Wiring) -> None:
    """Reject unroutable topologies.

    These have endpoints in the network, or nodes joined other than by NICs and switches.
    """
    lost = np.flatnonzero(zoned.zone[wiring.targets] < 0)
    if len(lost):
        name = fabric.nodes[int(wiring.targets[lost[0]])].name
        raise TopologyError(
            f"{fabric.name}: {name} is in the network; only switches can be there"
        )
    src, dst = wiring.src, wiring.dst
    leaves = (zoned.zone[src] != zoned.zone[dst]) & (zoned.zone[src] >= 0)
    for wire in np.flatnonzero(leaves & ~(zoned.nic[src] & (zoned.zone[dst] < 0)))[
        :1
    ]:
        one, two = fabric.nodes[int(src[wire])], fabric.nodes[int(dst[wire])]
        raise TopologyError(
            f"{fabric.name}: link {one.name} - {two.name} leaves node {one.zone};"
            " nodes are joined by links from their NICs to switches of the network"
        )
