"""Lowering: a `Fabric` as the flat arrays an image is made of."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clusim.errors import InputError, TopologyError
from clusim.fabric.model import Fabric
from clusim.fabric.routing import NONE, Wiring, route
from clusim.image import empty

__all__ = ["FabricArrays", "lower"]

Array = NDArray[Any]


@dataclass(frozen=True, slots=True)
class FabricArrays:
    """A fabric as arrays with the layouts of an image; the receive buffers are those of the fabric.

    Attributes
    ----------
    wire_names : list of str
        ``gpu0->nvswitch1.0``: ends and number among the parallel wires.
    wire_class : list of str
        Class of each wire, as its link has it.
    rank_endpoint : ndarray, shape (num_ranks,)
        Endpoint index of every rank.
    """

    fabric: Fabric
    nodes: Array
    endpoints: Array
    formats: Array
    wires: Array
    routes: Array
    group_off: Array
    group_wires: Array
    units: Array
    wire_names: list[str]
    wire_class: list[str]
    rank_endpoint: Array
    format_names: list[str]

    @property
    def num_ranks(self) -> int:
        """Number of ranks."""
        return len(self.rank_endpoint)

    def node_of(self, rank: int) -> int:
        """Return the node index of a rank."""
        if not 0 <= rank < self.num_ranks:
            raise InputError(
                f"rank {rank}: no such rank; {self.fabric.name} has 0..{self.num_ranks - 1}"
            )
        return int(self.endpoints["node"][self.rank_endpoint[rank]])

    def group(self, node: int, endpoint: int) -> list[int]:
        """Return the wires that lead from a node to an endpoint."""
        number = int(self.routes[node * len(self.endpoints) + endpoint])
        if number == NONE:
            return []
        return [
            int(w) for w in self.group_wires[self.group_off[number] : self.group_off[number + 1]]
        ]

    def first_wires(self, src_rank: int, dst_rank: int) -> list[int]:
        """Return the first-hop group from one rank to another."""
        return self.group(self.node_of(src_rank), int(self.rank_endpoint[dst_rank]))

    def path(self, src_rank: int, dst_rank: int) -> list[int]:
        """Return the wires of the first shortest path from one rank to another."""
        node, target = self.node_of(src_rank), self.node_of(dst_rank)
        wires: list[int] = []
        while node != target:
            group = self.group(node, int(self.rank_endpoint[dst_rank]))
            if not group or len(wires) > len(self.nodes):
                raise TopologyError(
                    f"{self.fabric.name}: no path from rank {src_rank} to rank {dst_rank}; add a link"
                )
            wires.append(group[0])
            node = int(self.wires["dst"][group[0]])
        return wires

    def hop_latency_ps(self, src_rank: int, dst_rank: int) -> int:
        """Return the latency of a header-only write between two ranks without any contention [ps].

        The wires' latencies and header serialisation and the latencies of the nodes between, along the first
        shortest path; nothing of the endpoints.
        """
        total = 0
        for hop, wire in enumerate(self.path(src_rank, dst_rank)):
            row = self.wires[wire]
            form = self.fabric.formats[self.format_names[int(row["format"])]]
            size, num, den = form.header_wire_bytes(), int(row["rate_num"]), int(row["rate_den"])
            total += int(row["latency_ps"]) - (-size * den // num)
            if hop:
                total += int(self.nodes["latency_ps"][row["src"]])
        return total

    def parallel_wires(self, node_a: int | str, node_b: int | str) -> list[int]:
        """Return the wires from one node to another (by index or name), in order of id."""
        a, b = self._node(node_a), self._node(node_b)
        return [int(w) for w in np.flatnonzero((self.wires["src"] == a) & (self.wires["dst"] == b))]

    def unit_wires(self, rank: int) -> list[int]:
        """Return the wires from a rank to switches with a reduction unit, in order of id."""
        own = self.wires["src"] == self.node_of(rank)
        return [
            int(w) for w in np.flatnonzero(own & (self.nodes["unit"][self.wires["dst"]] != NONE))
        ]

    def _node(self, node: int | str) -> int:
        if isinstance(node, int):
            return node
        if node not in self.fabric.node_index:
            raise InputError(f"{node!r}: no such node; {self.fabric.name} has {_some(self.fabric)}")
        return self.fabric.node_index[node]


def _some(fabric: Fabric) -> str:
    names = [node.name for node in fabric.nodes]
    return ", ".join(names) if len(names) <= 6 else f"{', '.join(names[:4])}, ... {names[-1]}"


def lower(fabric: Fabric) -> FabricArrays:
    """Lower a fabric; raises `TopologyError` where it cannot work at all."""
    nodes, endpoints, units = _lower_nodes(fabric)
    format_names = list(fabric.formats)
    wires, names, classes = _lower_wires(fabric, format_names)
    wiring = Wiring(
        src=wires["src"].astype(np.int64),
        dst=wires["dst"].astype(np.int64),
        dim=wires["dim"].astype(np.int64),
        weight=np.repeat(
            [link.weight for link in fabric.links], [2 * link.count for link in fabric.links]
        ),
        forwards=np.array([node.forwards for node in fabric.nodes], bool),
        endpoints=endpoints["node"].astype(np.int64),
    )
    table = route(wiring, dimension_order=fabric.routing == "dimension-order")
    return FabricArrays(
        fabric=fabric,
        nodes=nodes,
        endpoints=endpoints,
        formats=_lower_formats(fabric, format_names),
        wires=wires,
        routes=table.routes,
        group_off=table.group_off,
        group_wires=table.group_wires,
        units=units,
        wire_names=names,
        wire_class=classes,
        rank_endpoint=np.arange(len(endpoints), dtype=np.uint32),
        format_names=format_names,
    )


def _lower_nodes(fabric: Fabric) -> tuple[Array, Array, Array]:
    nodes = empty("nodes", len(fabric.nodes))
    endpoints = empty("endpoints", sum(node.endpoint is not None for node in fabric.nodes))
    units = empty("units", sum(node.unit is not None for node in fabric.nodes))
    nodes["endpoint"] = nodes["unit"] = NONE
    num_endpoints = num_units = 0
    for index, node in enumerate(fabric.nodes):
        row = nodes[index]
        row["latency_ps"] = node.latency_ps
        row["kind"] = node.endpoint is None
        row["flags"] = node.store_and_forward or node.endpoint is not None
        if node.endpoint is not None:
            row["endpoint"] = num_endpoints
            end = endpoints[num_endpoints]
            for name in _ENDPOINT_FIELDS:
                end[name] = getattr(node.endpoint, name)
            end["node"] = index
            num_endpoints += 1
        if node.unit is not None:
            row["unit"] = num_units
            unit = node.unit
            units[num_units] = (unit.latency_ps, unit.capacity_bytes, index, unit.cost16)
            num_units += 1
    return nodes, endpoints, units


_ENDPOINT_FIELDS = (
    "write_latency_ps",
    "read_latency_ps",
    "response_latency_ps",
    "mem_quantum_ps",
    "sms",
    "cta_slots",
    "slow_1024",
    "mem_cost16",
    "deliver_256",
    "read_256",
    "inject_256",
)


def _lower_formats(fabric: Fabric, names: list[str]) -> Array:
    formats = empty("formats", len(names))
    for row, name in zip(formats, names, strict=True):
        form = fabric.formats[name]
        row["flit_bytes"] = form.flit_bytes
        row["header_bytes"] = form.header_bytes
        row["control_256"] = form.control_256
        row["service_1024"] = form.service_1024
    return formats


def _lower_wires(fabric: Fabric, format_names: list[str]) -> tuple[Array, list[str], list[str]]:
    """Lay out two wires per link: ids follow the order of links, a->b before b->a."""
    wires = empty("wires", 2 * sum(link.count for link in fabric.links))
    format_index = {name: index for index, name in enumerate(format_names)}
    names: list[str] = []
    classes: list[str] = []
    seen: dict[tuple[int, int], int] = {}
    wire = 0
    for link in fabric.links:
        ends = fabric.node_index[link.a], fabric.node_index[link.b]
        for _ in range(link.count):
            for back, (src, dst) in enumerate((ends, ends[::-1])):
                ordinal = seen.get((src, dst), 0)
                seen[src, dst] = ordinal + 1
                wires[wire] = (
                    link.rate.num,
                    link.rate.den,
                    link.latency_ps,
                    link.buffer_bytes,
                    link.replay_ps,
                    src,
                    dst,
                    wire + 1 - 2 * back,
                    format_index[link.format],
                    ordinal,
                    min(round(link.error_rate * 2**32), 2**32 - 1),
                    link.dim,
                    link.dateline[back],
                    0,
                )
                names.append(f"{fabric.nodes[src].name}->{fabric.nodes[dst].name}.{ordinal}")
                classes.append(link.cls)
                wire += 1
    return wires, names, classes
