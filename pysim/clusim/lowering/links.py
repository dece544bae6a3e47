"""Connections on a topology: rows of the image for a schedule, and their traffic.

A connection of the schedule becomes one row with its own number. A connection between nodes has two legs: that row is
the receiving side, and a second row, after all others, is the sending side
(`clusim.lowering.rank_paths` chooses the legs, `clusim.lowering.proxies` joins them).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np

from clusim.base.arrays import Array
from clusim.base.errors import ScheduleError
from clusim.engine.abi import NONE, ConnKind, Op, Policy
from clusim.engine.image import OPCODES, empty
from clusim.lowering.aggregation import Trees
from clusim.lowering.controls import ControlTable
from clusim.lowering.cta_contention import asking_warps
from clusim.lowering.forwarding import route_keys
from clusim.lowering.hops import CarriedTraffic, Leg, multimem_hops, protocol_of
from clusim.lowering.paths import named_wires, remember_result
from clusim.lowering.proxies import ProxiedConnection, largest_messages
from clusim.lowering.rank_paths import places_of
from clusim.lowering.spreads import SpreadTable, policy_of, spreads_of
from clusim.schedule.ir import (
    ABSENT,
    CTA_WARPS,
    Connection,
    Instance,
    Prim,
    Schedule,
)
from clusim.schedule.iteration import ChunkTotals, chunk_totals, sum_chunks
from clusim.schedule.shapes import nvls_warps
from clusim.topology.arrays import FabricArrays
from clusim.topology.node import NicTraits
from clusim.topology.rows import class_vcs

WINDOW_BURSTS = 2
"""Least number of bursts per first wire that read windows hold.

Multimem windows hold one: as with exact packets, they limit the rate of a CTA.
"""

AGGREGATION_BURSTS = 8
"""Least number of bursts, of several packets each, open per tree at a switch."""


class LinkLowering:
    """Lowering of the connections of a schedule onto a topology.

    Attributes
    ----------
    leg_of : list of Leg
        Leg of every connection of the image; the schedule's connections first.
    owner : list of int
        Connection of the schedule for each of them.
    aggregates : list of bool
        Per template, True if its programs aggregate in the network.
    links : dict
        The connections between nodes that need a proxy.
    """

    def __init__(
        self, arrays: FabricArrays, schedule: Schedule, seed: int = 0
    ) -> None:
        self.arrays, self.schedule, self.seed = arrays, schedule, seed
        self.fabric = arrays.fabric
        self.places = places_of(arrays)
        self.leg_of: list[Leg] = []
        self.owner: list[int] = list(range(len(schedule.connections)))
        self.links: dict[int, ProxiedConnection] = {}
        self.controls = ControlTable()
        self._mgroups: dict[tuple[int, ...], int] = {}
        self._unit_groups: dict[int, int] = {}
        self._tree_packets: dict[int, int] = {}
        self._paths: list[list[int]] = []
        self._queue_keys = np.empty(0, np.uint32)
        self.trees = Trees(self.arrays, self._paths)
        self._vertex: dict[int, int] = {}
        self.aggregates = [
            any(OPCODES[prim.op].flags & Op.AGGREGATE for prim in template.prims)
            for template in schedule.templates
        ]
        self._proxied = self._proxied_flags() if any(self.aggregates) else {}
        names = {item.protocol for item in schedule.connections}
        names |= {item.protocol for item in schedule.instances}
        self._expand_120 = {
            name: protocol_of(arrays, name).expand_120 for name in names
        }
        self._find_legs()

    def _find_legs(self) -> None:
        second: list[Leg] = []
        groups: dict[int, dict[int, int]] = {}
        for index, connection in enumerate(self.schedule.connections):
            if connection.kind == "multimem":
                self.leg_of.append(self._multimem_leg(connection))
            elif connection.kind == "aggregation":
                self.leg_of.append(self._aggregation_leg(connection))
                groups.setdefault(connection.key, {})[connection.src] = index
            elif index in self._proxied:
                self.leg_of.append(self._proxy_flag(index, connection))
            else:
                self._point_to_point(index, connection, second)
        self.leg_of += second
        for key, by_rank in groups.items():
            self._add_tree(key, by_rank)

    @cached_property
    def legs(self) -> list[Leg]:
        """Distinct legs."""
        return list({id(leg): leg for leg in self.leg_of}.values())

    @cached_property
    def codes(self) -> Array:
        """Number in `legs` of the leg of every connection."""
        place = {id(leg): number for number, leg in enumerate(self.legs)}
        return np.array([place[id(leg)] for leg in self.leg_of], np.int64)

    def _point_to_point(
        self, index: int, connection: Connection, second: list[Leg]
    ) -> None:
        place = self.places.of(connection)
        self.leg_of.append(place.legs[-1])
        if place.proxy is not None:
            number = len(self.schedule.connections) + len(second)
            second.append(place.legs[0])
            self.owner.append(index)
            self.links[index] = ProxiedConnection(index, number, index, place.proxy)

    def _proxied_flags(self) -> dict[int, str]:
        """Return the flags of aggregating programs by connection: ``recv`` or ``send``."""
        result: dict[int, str] = {}
        for instance in self.schedule.instances:
            if not self.aggregates[instance.template]:
                continue
            for prim in self.schedule.templates[instance.template].prims:
                if OPCODES[prim.op].flags & Op.RECV:
                    result[instance.connections[prim.recv]] = "recv"
                elif OPCODES[prim.op].flags & Op.SEND:
                    result[instance.connections[prim.send]] = "send"
        return result

    def _proxy_flag(self, index: int, connection: Connection) -> Leg:
        """Return the leg of a flag between a GPU and the proxy that aggregates for it."""
        rank, places = connection.src, self.places
        adapter = self._adapter(connection.src, connection.channel)[1]
        tail, head = places.to_host(rank), places.to_gpu(rank)
        if self._proxied[index] == "send":
            tail, head = head + adapter.completion_ps + adapter.flush_ps, tail
        end = places.endpoint(rank)
        return Leg(end, end, ConnKind.FLAG, tail, head)

    @remember_result
    def _adapter(self, rank: int, channel: int) -> tuple[int, NicTraits]:
        """Return the NIC (target index) that aggregates for a rank on a channel."""
        rail = self.places.rails.choice(rank, channel)
        if rail < 0:
            raise ScheduleError(
                f"{self.fabric.name}: rank {rank} lacks a NIC; sharp needs one for every rank, use ring"
            )
        nic = self.places.rails.nics(self.places.zones[rank])[rail]
        node = self.fabric.nodes[int(self.arrays.targets["node"][nic])]
        return nic, node.nic or NicTraits()

    def post_ps(self, rank: int, channel: int) -> int:
        """Return the cost of posting an aggregation [ps]."""
        adapter = self._adapter(rank, channel)[1]
        return self.places.host(rank).thread_ps + adapter.post_ps

    def _aggregation_leg(self, connection: Connection) -> Leg:
        nic, adapter = self._adapter(connection.src, connection.channel)
        end = self.places.endpoint(connection.src)
        path = self.trees.way_up(end, nic)
        if connection.key not in self._tree_packets:
            adapters = (
                self._adapter(rank, connection.channel)[1]
                for rank in connection.members
            )
            self._tree_packets[connection.key] = min(
                item.mtu_bytes for item in adapters
            )
        return Leg(
            src=end,
            dst=end,
            kind=ConnKind.AGGREGATION,
            hops=2 * len(path),
            packet_bytes=self._tree_packets[connection.key],
            forms=self.places.formats(path),
            nic=adapter,
        )

    def _add_tree(self, key: int, by_rank: dict[int, int]) -> None:
        """Add the tree of a group; `by_rank` maps ranks to the connections of the members."""
        first = self.schedule.connections[next(iter(by_rank.values()))]
        nics = [self._adapter(rank, first.channel)[0] for rank in first.members]
        ends = [self.places.endpoint(rank) for rank in first.members]
        vertices = self.trees.add(list(zip(ends, nics, strict=True)), key)
        for rank, vertex in zip(first.members, vertices, strict=True):
            self._vertex[by_rank[rank]] = vertex

    def _multimem_leg(self, connection: Connection) -> Leg:
        rank = connection.src
        wires = self.unit_wires(rank)
        end = self.places.endpoint(rank)
        packet, forms = self._unit_packets(rank)
        hops = 3 + 3 * len(connection.members)
        return Leg(end, 0, ConnKind.MULTIMEM, 0, 0, hops, packet, len(wires), forms)

    @remember_result
    def _unit_packets(self, rank: int) -> tuple[int, frozenset[int]]:
        """Return the payload limit [bytes] and the formats of packets of a rank to reduction units."""
        wires = self.unit_wires(rank)
        return self.places.packet_limit(rank, wires), self.places.formats(wires)

    @remember_result
    def unit_wires(self, rank: int) -> list[int]:
        """Return the wires a multimem connection of `rank` may leave on, to switches that reach its partners."""
        members = [
            self.places.endpoint(other) for other in self._partners.get(rank, ())
        ]
        ends, reaches = self.arrays.wires["dst"], self.places.reaches
        wires = [
            wire
            for wire in self.arrays.unit_wires(rank)
            if all(reaches(int(ends[wire]), member) for member in members)
        ]
        if not wires:
            raise ScheduleError(
                f"{self.fabric.name}: rank {rank} reaches no switch with a reduction unit;"
                " use ring or tree instead of nvls"
            )
        return wires

    @cached_property
    def _partners(self) -> dict[int, set[int]]:
        """The members of every rank's multimem connections."""
        result: dict[int, set[int]] = {}
        for connection in self.schedule.connections:
            if connection.kind == "multimem":
                result.setdefault(connection.src, set()).update(connection.members)
        return result

    def traffic(self) -> list[CarriedTraffic]:
        """Return the traffic of each connection of the image."""
        nothing = CarriedTraffic()
        result = [
            nothing
            if leg.kind == ConnKind.FLAG
            else CarriedTraffic(hops=max(1, leg.hops))
            for leg in self.leg_of
        ]
        connections = self.schedule.connections
        for instance in self.schedule.instances:
            for slot, prims in self._sending[instance.template].items():
                number = instance.connections[slot]
                leg = self.leg_of[number]
                if leg.kind == ConnKind.FLAG:
                    continue
                item = result[number]
                if leg.kind == ConnKind.MULTIMEM:
                    item.hops = max(
                        multimem_hops(connections[number], prim.op) for prim in prims
                    )
                moved_bytes, slices = self._slot_traffic(instance, slot)
                expand_120 = self._expand_120[connections[number].protocol]
                item.wire_bytes += -(-moved_bytes * expand_120 // 120)
                item.slices += slices
        for link in self.links.values():
            if self.leg_of[link.first].kind != ConnKind.FLAG:
                source, copy = result[link.second], result[link.first]
                copy.wire_bytes, copy.slices = source.wire_bytes, source.slices
        return result

    @cached_property
    def _sending(self) -> list[dict[int, list[Prim]]]:
        """Per template, the primitives that send data, by connection slot."""
        result: list[dict[int, list[Prim]]] = []
        for template in self.schedule.templates:
            by_slot: dict[int, list[Prim]] = {}
            for prim in template.prims:
                if prim.send != ABSENT and not prim.sync:
                    by_slot.setdefault(prim.send, []).append(prim)
            result.append(by_slot)
        return result

    def _slot_traffic(self, instance: Instance, slot: int) -> tuple[int, int]:
        """Return the bytes and slices that an instance sends on a slot."""
        totals = chunk_totals(instance, self.schedule.templates[instance.template])
        rotation = 0 if totals.even else instance.rotation
        return self._sum_chunks(totals, instance.template, slot, rotation)

    @remember_result
    def _sum_chunks(
        self, totals: ChunkTotals, template: int, slot: int, rotation: int
    ) -> tuple[int, int]:
        return sum_chunks(totals, self._sending[template][slot], rotation)

    def conns(self, packets: Sequence[int], bursts: Sequence[int]) -> Array:
        """Return the rows of all connections of the image, for these packet sizes and bursts."""
        rows = empty("conns", len(self.leg_of))
        legs, codes = self.legs, self.codes
        for name in (
            "src",
            "dst",
            "kind",
            "tail_ps",
            "head_ps",
            "via_first",
            "via_last",
            "stage",
        ):
            values = [getattr(leg, name) for leg in legs]
            rows[name] = np.array(values, rows.dtype[name])[codes]
        of_leg = [self.schedule.connections[index] for index in self.owner]
        rows["policy"] = [
            _policy(c, leg) for c, leg in zip(of_leg, self.leg_of, strict=True)
        ]
        keys = route_keys(self.arrays, of_leg, self.leg_of, self.seed)
        rows["key"] = keys[:, 0]
        rows["slots"] = [connection.slots for connection in of_leg]
        rows["packet_bytes"], rows["burst"] = packets, bursts
        for index, size in largest_messages(
            self.schedule, self.links, self._expand_120
        ).items():
            proxy = self.links[index].proxy
            if size <= proxy.nic.eager_bytes:
                rows["head_ps"][index] -= proxy.ask_ps
            else:
                rows["tail_ps"][index] += proxy.nic.rendezvous_ps
        rows["vc_response"] = self.fabric.response_vc
        of_nic = [0 if leg.nic is None else leg.nic.traffic_class for leg in legs]
        rows["vc"] = class_vcs(self.fabric, np.array(of_nic, np.int64))[codes]
        rows["expand_120"] = [
            self._expand_120[connection.protocol] for connection in of_leg
        ]
        for name in ("first_group", "path", "path_back", "mgroup", "vertex"):
            rows[name] = NONE
        rows["spread"] = self.spreads.numbers[codes]
        self._put_queues(rows, keys)
        controls = [self._control(leg) for leg in legs]
        rows["control"] = np.array(controls, np.uint32)[codes]
        by_path = np.array([bool(connection.path) for connection in of_leg], bool)
        rows["window_bytes"] = self._windows(rows, bursts, by_path)
        for index, connection in enumerate(self.schedule.connections):
            if connection.kind == "multimem":
                self._multimem(rows[index], connection)
            elif connection.kind == "aggregation":
                rows[index]["vertex"] = self._vertex[index]
            elif connection.path:
                self._pin_path(rows[index], connection)
        return rows

    @cached_property
    def spreads(self) -> SpreadTable:
        """Spreads of the legs with several paths."""
        return spreads_of(self.arrays, self.legs)

    def _put_queues(self, rows: Array, keys: Array) -> None:
        """Give connections the `keys` of their queue pairs, where paths or the order of packets depend on these."""
        pinned = (rows["policy"] == Policy.PINNED) & (keys != keys[:, :1]).any(
            axis=1
        )
        count, spreads = keys.shape[1], self.spreads.rows
        in_order = np.isin(rows["spread"], np.flatnonzero(spreads["ordered"])) & (
            count > 1
        )
        several = np.flatnonzero(
            (rows["kind"] == ConnKind.WRITE) & (pinned | in_order)
        )
        rows["queue_lo"][several] = np.arange(len(several)) * count
        rows["queue_hi"][several] = rows["queue_lo"][several] + count
        rows["split"][several] = self.fabric.forwarding.split
        self._queue_keys = keys[several].ravel()

    def _control(self, leg: Leg) -> int:
        """Return the rate control of a leg, or NONE."""
        if leg.nic is None or leg.nic.rate_control is None or leg.line_wire == NONE:
            return NONE
        row = self.arrays.wires[leg.line_wire]
        return self.controls.add(
            leg.nic, int(row["rate_num"]) * 10**12 / int(row["rate_den"])
        )

    def _windows(self, rows: Array, bursts: Sequence[int], by_path: Array) -> Array:
        """Return the limit of outstanding requests of each connection [bytes]; 0 is unlimited."""
        window = self.fabric.window_bytes
        burst = np.asarray(bursts, np.int64)
        size, kind = rows["packet_bytes"].astype(np.int64) * burst, rows["kind"]
        pinned = by_path | (
            (rows["policy"] == Policy.PINNED) & (rows["stage"] == NONE)
        )
        width = np.array([leg.width for leg in self.legs], np.int64)[self.codes]
        result = np.zeros(len(rows), np.int64)
        if window:
            min_window = WINDOW_BURSTS * np.where(pinned, 1, width) * size
            reads = (kind == ConnKind.READ) | (rows["stage"] != NONE)
            requested = (
                window
                * np.array(asking_warps(self.schedule))[self.owner]
                // CTA_WARPS
            )
            result[reads] = np.where(
                burst > 1, np.maximum(requested, min_window), requested
            )[reads]
            for members, group in self._mgroups.items():
                of_group = (kind == ConnKind.MULTIMEM) & (rows["mgroup"] == group)
                result[of_group] = (
                    window * nvls_warps(len(members)).reduce // CTA_WARPS
                )
        if self._vertex:
            result[kind == ConnKind.AGGREGATION] = (
                self.vertex_slots(bursts) * size
            )[kind == ConnKind.AGGREGATION]
        return result

    def vertex_slots(self, bursts: Sequence[int]) -> int:
        """Return the open packets (or bursts) of an aggregation tree at a switch."""
        burst = max((bursts[index] for index in self._vertex), default=1)
        slots = self.trees.slots()
        return (
            slots
            if burst == 1
            else max(min(slots, AGGREGATION_BURSTS), slots // burst)
        )

    def _multimem(self, row: Any, connection: Connection) -> None:
        members = tuple(
            int(self.arrays.rank_endpoint[rank]) for rank in connection.members
        )
        row["mgroup"] = self._mgroups.setdefault(members, len(self._mgroups))
        group = len(self.arrays.group_off) - 1 + len(self._unit_groups)
        row["first_group"] = self._unit_groups.setdefault(connection.src, group)

    def _pin_path(self, row: Any, connection: Connection) -> None:
        forward = named_wires(self.arrays, connection)
        backward = [
            int(self.arrays.wires["reverse"][wire]) for wire in reversed(forward)
        ]
        if row["stage"] != NONE or row["via_last"] != NONE:
            return
        if row["kind"] == ConnKind.WRITE:
            paths = {"path": forward}
        elif row["kind"] == ConnKind.READ:
            paths = {"path": backward, "path_back": forward}
        else:
            return
        row["queue_hi"] = row["queue_lo"]
        for name, wires in paths.items():
            row[name] = len(self._paths)
            self._paths.append(wires)

    def connection_arrays(
        self, packets: Sequence[int], bursts: Sequence[int]
    ) -> dict[str, Any]:
        """Return connections, route groups, paths, multicast groups, trees, rate controls and senders.

        The route groups are the topology's, then the groups of multimem connections.
        """
        result = {
            "conns": self.conns(packets, bursts),
            "queue_keys": self._queue_keys,
        }
        for name, body, lists in (
            (
                "group_off",
                "group_wires",
                [self.unit_wires(rank) for rank in self._unit_groups],
            ),
            ("path_off", "path_wires", self._paths),
            ("mgroup_off", "mgroup_members", list(self._mgroups)),
        ):
            result[name] = np.cumsum([0, *map(len, lists)]).astype(np.uint32)
            result[body] = np.array(
                [item for rows in lists for item in rows], np.uint32
            )
        arrays = self.arrays
        ends = result["group_off"][1:] + arrays.group_off[-1]
        result["group_off"] = np.concatenate((arrays.group_off, ends)).astype(
            np.uint32
        )
        wires = np.concatenate((arrays.group_wires, result["group_wires"]))
        result["group_wires"] = wires.astype(np.uint32)
        result["vertices"] = self.trees.rows(
            self.vertex_slots(bursts) if self._vertex else None
        )
        result["spreads"] = self.spreads.rows
        return result | self.controls.tables()


def _policy(connection: Connection, leg: Leg) -> int:
    if leg.routing is not None:
        return policy_of(leg.routing)
    return Policy[connection.policy.upper()]
