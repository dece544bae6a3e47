"""Connections on a fabric: packets, read or write, flight times, routes, and what they carry."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clusim.errors import ScheduleError, TopologyError
from clusim.fabric.arrays import FabricArrays
from clusim.fabric.model import Fabric, Protocol
from clusim.image import NONE, OPCODES, Op, empty
from clusim.lowering.programs import protocol_of
from clusim.schedule.ir import ABSENT, Connection, Prim, Schedule
from clusim.schedule.iteration import prim_totals

__all__ = ["LinkLowering", "Traffic", "least_buffer"]

NVLS_WARPS, CTA_WARPS = 5, 16
"""Warps that reduce in NVLS, of those of a CTA that the fabric's window is for (NCCL ``all_reduce.h``: 5 of 20)."""

WINDOW_BURSTS = 2
"""Least number of bursts per first wire that read windows hold; multimem windows hold one, as in exact packets they
are what limits a CTA."""

PACKETS_PER_BUFFER = 3
"""Least number of exact packets that receive buffers and reduction units hold."""

BURSTS_PER_BUFFER = 32
"""Least number of bursts, of more than one packet each, that they hold.

With three, flows that share a switch block each other as exact packets never do, and lose up to a quarter of
their rate (8 GPUs behind 4 switches, ring of 256 MiB, bursts of 16 KiB); from 16 on that effect is gone.
"""

Array = NDArray[Any]

_POLICIES = {"stripe": 0, "pinned": 1, "adaptive": 2}
_WRITE, _READ, _FLAG, _MULTIMEM = range(4)


@dataclass(frozen=True, slots=True)
class _Route:
    """What matters of the way between two ranks."""

    hops: int
    latency_ps: int
    back_latency_ps: int
    packet_bytes: int
    width: int


@dataclass(slots=True)
class Traffic:
    """What one connection carries: payload on the wire [bytes], slices and hops per packet."""

    wire_bytes: int = 0
    slices: int = 0
    hops: int = 1

    def packets(self, packet_bytes: int) -> int:
        """Return the number of packets."""
        return -(-self.wire_bytes // packet_bytes)


def least_buffer(burst: int, burst_bytes: int) -> int:
    """Return the least room for bursts of `burst` packets that take `burst_bytes` each [bytes]."""
    return burst_bytes * (BURSTS_PER_BUFFER if burst > 1 else PACKETS_PER_BUFFER)


class LinkLowering:
    """Lowers the connections of a schedule onto a fabric."""

    def __init__(self, fabric: Fabric, schedule: Schedule) -> None:
        self.fabric = fabric
        self.schedule = schedule
        self.arrays: FabricArrays = fabric.lower()
        self._routes: dict[tuple[int, int], _Route] = {}
        self._mgroups: dict[tuple[int, ...], int] = {}
        self._unit_groups: dict[int, int] = {}
        self._unit_wires: dict[int, list[int]] = {}
        self._paths: list[list[int]] = []

    def route(self, src: int, dst: int) -> _Route:
        """Return the way between two ranks; raises `ScheduleError` if there is none."""
        if (src, dst) in self._routes:
            return self._routes[src, dst]
        try:
            path = self.arrays.path(src, dst) if src != dst else []
            latency = self.arrays.hop_latency_ps(src, dst) if src != dst else 0
            back = self.arrays.hop_latency_ps(dst, src) if src != dst else 0
        except TopologyError as error:
            raise ScheduleError(
                f"{self.schedule.name}: rank {src} cannot reach rank {dst} on {self.fabric.name};"
                " use an algorithm over neighbours, such as ring"
            ) from error
        width = len(self.arrays.first_wires(src, dst)) if src != dst else 1
        found = _Route(len(path), latency, back, self._packet_bytes(src, path), width)
        self._routes[src, dst] = found
        return found

    def _packet_bytes(self, rank: int, path: Sequence[int]) -> int:
        """Return the payload limit of packets a rank makes, on all wires of a path."""
        node = self.fabric.nodes[self.arrays.node_of(rank)]
        requester = "sm" if node.kind == "gpu" else "nic"
        limits = []
        for wire in path:
            name = self.arrays.format_names[int(self.arrays.wires["format"][wire])]
            limits.append(self.fabric.formats[name].payload_bytes[requester])
        return min(limits, default=128)

    def unit_wires(self, rank: int) -> list[int]:
        """Return the wires a multimem connection of `rank` may leave on."""
        if rank not in self._unit_wires:
            self._unit_wires[rank] = self.arrays.unit_wires(rank)
        if not self._unit_wires[rank]:
            raise ScheduleError(
                f"{self.fabric.name}: rank {rank} reaches no switch with a reduction unit;"
                " use ring or tree instead of nvls"
            )
        return self._unit_wires[rank]

    def is_read(self, connection: Connection) -> bool:
        """Return whether the receiver pulls the data of a connection; LL and LL128 always push."""
        return (
            self.fabric.p2p == "read"
            and connection.kind == "data"
            and connection.protocol == "simple"
        )

    def traffic(self) -> list[Traffic]:
        """Return what each connection carries."""
        found = [Traffic() for _ in self.schedule.connections]
        for instance in self.schedule.instances:
            template = self.schedule.templates[instance.template]
            for prim in template.prims:
                if prim.send == ABSENT or prim.sync:
                    continue
                number = instance.connections[prim.send]
                connection = self.schedule.connections[number]
                hops = self._hops(connection, prim)
                if hops:
                    expand = protocol_of(self.fabric, connection.protocol).expand_120
                    item = found[number]
                    item.hops = max(hops, item.hops)
                    moved_bytes, slices = prim_totals(instance, template, prim)
                    item.wire_bytes += -(-moved_bytes * expand // 120)
                    item.slices += slices
        return found

    def _hops(self, connection: Connection, prim: Prim) -> int:
        """Return the wires a packet of a connection crosses, requests and responses counted."""
        if connection.kind == "flag":
            return 0
        if connection.kind == "data":
            hops = self.route(connection.src, connection.dst).hops
            return hops * (2 if self.is_read(connection) else 1)
        flags, members = OPCODES[prim.op].flags, len(connection.members)
        reduce, multicast = 2 + 2 * members, 1 + members
        return (reduce if flags & Op.REDUCE else 0) + (multicast if flags & Op.MCAST else 0)

    def packet_bytes(self, connection: Connection) -> int:
        """Return the payload limit of a connection's packets."""
        if connection.kind == "multimem":
            return self._packet_bytes(connection.src, self.unit_wires(connection.src))
        if connection.kind == "flag":
            return 128
        read = self.is_read(connection)
        ends = (connection.dst, connection.src) if read else (connection.src, connection.dst)
        return self.route(*ends).packet_bytes

    def conns(self, packets: Sequence[int], bursts: Sequence[int]) -> Array:
        """Return the rows of all connections, for these packet sizes and bursts."""
        known: dict[tuple[Connection, int, int], dict[str, int]] = {}
        rows: list[tuple[int, ...]] = []
        layout = empty("conns").dtype
        names = layout.names or ()
        for connection, packet, burst in zip(
            self.schedule.connections, packets, bursts, strict=True
        ):
            alike = (replace(connection, channel=0, key=0, slots=1), packet, burst)
            row = known.get(alike)
            if row is None or connection.path:
                row = known[alike] = self._row(connection, packet, burst)
            row["key"], row["slots"] = connection.key, connection.slots
            rows.append(tuple(row[name] for name in names))
        return np.array(rows, layout)

    def _row(self, connection: Connection, packet: int, burst: int) -> dict[str, int]:
        """Return the fields of one connection."""
        protocol = protocol_of(self.fabric, connection.protocol)
        row = {
            "tail_ps": 0,
            "head_ps": 0,
            "src": int(self.arrays.rank_endpoint[connection.src]),
            "dst": int(self.arrays.rank_endpoint[connection.dst]),
            "policy": _POLICIES[connection.policy],
            "first_group": NONE,
            "path": NONE,
            "path_back": NONE,
            "mgroup": NONE,
            "packet_bytes": packet,
            "burst": burst,
            "vc": 0,
            "vc_response": self.fabric.response_vc,
            "expand_120": protocol.expand_120,
        }
        if connection.kind == "multimem":
            self._multimem(row, connection)
        else:
            self._point_to_point(row, connection, protocol)
        row["window_bytes"] = self._window_bytes(connection, row["kind"], packet * burst, burst)
        return row

    def _window_bytes(self, connection: Connection, kind: int, burst_bytes: int, burst: int) -> int:
        """Return how much a CTA may have requested [bytes]; 0 is unlimited."""
        window = self.fabric.window_bytes
        if kind not in (_READ, _MULTIMEM) or window == 0:
            return 0
        if kind == _MULTIMEM:
            return window * NVLS_WARPS // CTA_WARPS
        return max(
            window, WINDOW_BURSTS * self._width(connection) * burst_bytes if burst > 1 else 0
        )

    def _width(self, connection: Connection) -> int:
        """Return the number of first wires a connection's requests spread over."""
        if connection.policy == "pinned" or connection.path:
            return 1
        if connection.kind == "multimem":
            return len(self.unit_wires(connection.src))
        read = self.is_read(connection)
        ends = (connection.dst, connection.src) if read else (connection.src, connection.dst)
        return self.route(*ends).width

    def _multimem(self, row: dict[str, int], connection: Connection) -> None:
        row["kind"], row["dst"] = _MULTIMEM, 0
        members = tuple(int(self.arrays.rank_endpoint[rank]) for rank in connection.members)
        row["mgroup"] = self._mgroups.setdefault(members, len(self._mgroups))
        group = len(self.arrays.group_off) - 1 + len(self._unit_groups)
        row["first_group"] = self._unit_groups.setdefault(connection.src, group)

    def _point_to_point(
        self, row: dict[str, int], connection: Connection, protocol: Protocol
    ) -> None:
        route = self.route(connection.src, connection.dst)
        flags_in_data = connection.kind == "data" and connection.protocol != "simple"
        if not flags_in_data:
            row["tail_ps"] = route.latency_ps + protocol.tail_fence_ps
        row["head_ps"] = route.back_latency_ps + protocol.head_fence_ps
        if connection.kind == "flag":
            row["kind"] = _FLAG
            return
        read = self.is_read(connection)
        row["kind"] = _READ if read else _WRITE
        if connection.path:
            forward = self._explicit(connection)
            backward = [int(self.arrays.wires["reverse"][wire]) for wire in reversed(forward)]
            row["path"] = self._add_path(backward if read else forward)
            if read:
                row["path_back"] = self._add_path(forward)

    def _explicit(self, connection: Connection) -> list[int]:
        """Return the wires of an explicit path of node names."""
        ends = (self.fabric.ranks[connection.src], self.fabric.ranks[connection.dst])
        if len(connection.path) < 2 or (connection.path[0], connection.path[-1]) != ends:
            raise ScheduleError(
                f"path {'-'.join(connection.path)}: must lead from {ends[0]} to {ends[1]}"
            )
        wires = []
        for a, b in pairwise(connection.path):
            parallel = self.arrays.parallel_wires(a, b)
            if not parallel:
                raise ScheduleError(f"path {'-'.join(connection.path)}: no wire from {a} to {b}")
            wires.append(parallel[connection.key % len(parallel)])
        return wires

    def _add_path(self, wires: list[int]) -> int:
        self._paths.append(wires)
        return len(self._paths) - 1

    def groups(self) -> tuple[Array, Array]:
        """Return the route groups, with those of multimem connections behind the fabric's."""
        offsets = [int(value) for value in self.arrays.group_off]
        wires = [int(value) for value in self.arrays.group_wires]
        for rank in self._unit_groups:
            wires += self.unit_wires(rank)
            offsets.append(len(wires))
        return np.array(offsets, np.uint32), np.array(wires, np.uint32)

    def connection_arrays(self, packets: Sequence[int], bursts: Sequence[int]) -> dict[str, Array]:
        """Return connections, route groups, explicit paths and multicast groups."""
        found = {"conns": self.conns(packets, bursts)}
        found["group_off"], found["group_wires"] = self.groups()
        for name, body, lists in (
            ("path_off", "path_wires", self._paths),
            ("mgroup_off", "mgroup_members", list(self._mgroups)),
        ):
            found[name] = np.cumsum([0, *map(len, lists)]).astype(np.uint32)
            found[body] = np.array([item for own in lists for item in own], np.uint32)
        return found
