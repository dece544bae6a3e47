"""Network of an image: stages of transfers, their latency, and names of wires and links."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from clusim.base.arrays import Array
from clusim.engine.abi import NONE, ConnKind, FaultKind, Kind, Op, Policy
from clusim.results.trace.held import Inputs


def link_name(name: str) -> str:
    """Return the name of a wire's link, written from this wire's source."""
    return name.replace("->", "<->")


class Stage(NamedTuple):
    """Hop of a transfer: the wires that its packets may cross, and their parallel wires."""

    lanes: list[int]
    group: list[int]


class Delay(NamedTuple):
    """Part of a latency: its figure, a name of `clusim.analysis.whatif.Change`, and its wire or -1."""

    what: str
    ps: int
    wire: int = -1


class Network:
    """Wires, routes and endpoints of a traced run.

    Attributes
    ----------
    wires : ndarray
        The image's wires.
    names, classes : list of str
        Name and class of each wire.
    ranks : list of int
        Rank of each endpoint, or the endpoint's number if it has no rank (host memory).
    with_rank : set of int
        Endpoints that have a rank.
    num_programs : int
        Instances of the schedule; later instances of the image are proxies.
    """

    def __init__(
        self, inputs: Inputs, names: Sequence[str], classes: Sequence[str]
    ) -> None:
        self.image: Mapping[str, Array] = inputs.image
        self.wires = self.image["wires"]
        self.names, self.classes = list(names), list(classes)
        self.nodes = inputs.nodes
        endpoints = self.image["endpoints"]
        self.ranks = list(range(len(endpoints)))
        self.with_rank = set(inputs.rank_endpoint.tolist())
        self.num_programs = len(inputs.numbers("instances/task"))
        for rank, endpoint in enumerate(inputs.rank_endpoint.tolist()):
            self.ranks[endpoint] = rank
        self._endpoint_nodes = endpoints["node"].astype(np.int64)
        self._stages: dict[tuple[int, int, int, tuple[int, ...]], list[Stage]] = {}
        self._of: dict[tuple[int, int, int], list[Stage]] = {}
        self._faults = self.image["faults"]

    def endpoint_name(self, endpoint: int) -> str:
        """Return the name of an endpoint's node."""
        return self.nodes[int(self._endpoint_nodes[endpoint])]

    def link(self, wire: int) -> str:
        """Return the name of a wire's link, the same for both directions."""
        back = int(self.wires["reverse"][wire])
        return link_name(self.names[wire if back == NONE else min(wire, back)])

    def _route(self, node: int, target: int) -> list[int]:
        """Return the wires from a node towards a target: an endpoint or a NIC."""
        origin, goal_node = self.image["nodes"][node], self.image["targets"][target]
        if int(origin["zone"]) == int(goal_node["zone"]):
            place = int(origin["route_lo"]) + int(goal_node["local"])
        else:
            place = int(origin["wide_lo"]) + int(goal_node["wide"]) * int(
                origin["wide_stride"]
            )
        group = int(self.image["routes"][place])
        return [] if group == NONE else self.group(group)

    def group(self, number: int) -> list[int]:
        """Return the wires of a route group."""
        off = self.image["group_off"]
        return [
            int(w) for w in self.image["group_wires"][off[number] : off[number + 1]]
        ]

    def stages(
        self,
        source: int,
        target: int,
        first_group: int = NONE,
        vias: tuple[int, ...] = (),
    ) -> list[Stage]:
        """Return the wires between two endpoints over given NICs, hop by hop."""
        key = (source, target, first_group, vias)
        if key not in self._stages:
            self._stages[key], _ = self._legs(source, [*vias, target], first_group)
        return self._stages[key]

    def _legs(
        self,
        source: int,
        goals: list[int],
        first_group: int = NONE,
        key: int | None = None,
    ) -> tuple[list[Stage], int | None]:
        """Return the stages from an endpoint to each of some goals in turn, and the rest of a route key."""
        result: list[Stage] = []
        node = int(self._endpoint_nodes[source])
        for goal in goals:
            is_first = first_group != NONE and not result
            hop = self.group(first_group) if is_first else self._route(node, goal)
            leg, key = self._follow(
                hop, goal, key, result[-1].lanes[0] if result else None
            )
            result += leg
            node = int(self.image["targets"]["node"][goal])
        return result, key

    def _follow(
        self, hop: list[int], target: int, key: int | None, came: int | None
    ) -> tuple[list[Stage], int | None]:
        """Return the stages from a group of wires to a target, and the rest of a route key.

        With a key all packets use one wire of each group, otherwise any.
        """
        goal = int(self.image["targets"]["node"][target])
        result: list[Stage] = []
        while hop and len(result) <= len(self.nodes):
            lanes = hop
            if key is not None:
                ordinal = 0 if came is None else int(self.wires["ordinal"][came])
                came = hop[(key + ordinal) % len(hop)]
                lanes, key = [came], key // len(hop)
            result.append(Stage(lanes, hop))
            ahead = {int(self.wires["dst"][wire]) for wire in lanes} - {goal}
            hops = [self._route(node, target) for node in sorted(ahead)]
            hop = (
                hops[0]
                if key is not None and hops
                else sorted({w for one in hops for w in one})
            )
        return result, key

    def stages_of_source(self, number: int) -> list[Stage]:
        """Return the stages of the first message of a traffic source."""
        source = self.image["sources"][number]
        message = self.image["messages"][int(source["msg_lo"])]
        goals = [*self._vias(message), int(message["dst"])]
        key = int(message["key"]) if int(source["policy"]) == Policy.PINNED else None
        return self._legs(int(source["endpoint"]), goals, key=key)[0]

    def stages_of(self, connection: int, endpoint: int, flags: int) -> list[Stage]:
        """Return the stages of a transfer's data on a connection, requested by an endpoint."""
        key = (connection, endpoint, flags)
        if key not in self._of:
            self._of[key] = self._find_stages(connection, endpoint, flags)
        return self._of[key]

    def _find_stages(
        self, connection: int, endpoint: int, flags: int
    ) -> list[Stage]:
        conn = self.image["conns"][connection]
        kind = int(conn["kind"])
        if kind == ConnKind.MULTIMEM:
            return self._multimem(conn, endpoint, flags)
        path = int(conn["path_back"] if kind == ConnKind.READ else conn["path"])
        if kind == ConnKind.AGGREGATION or path != NONE:
            fixed = kind != ConnKind.AGGREGATION
            wires = (
                self._path(path) if fixed else self._up_and_down(int(conn["vertex"]))
            )
            return [Stage([wire], [wire]) for wire in wires]
        source, target, read = self._ends(conn, endpoint)
        first = int(conn["first_group"])
        if int(conn["policy"]) == Policy.PINNED:
            return self._fixed_path(conn, endpoint)
        if not read:
            return self.stages(source, target, first, self._vias(conn))
        # Responses use the same links as the requests.
        request_stages = self.stages(target, source, first)
        back = self.stages(source, target)
        leaving = self._reverse(request_stages[-1].lanes) if request_stages else []
        return [Stage(leaving, leaving), *back[1:]] if leaving else back

    def _path(self, number: int) -> list[int]:
        off = self.image["path_off"]
        return list(self.image["path_wires"][off[number] : off[number + 1]].tolist())

    def _reverse(self, wires: list[int]) -> list[int]:
        """Return the opposite wires, where there are any."""
        return [
            int(wire) for wire in self.wires["reverse"][wires] if int(wire) != NONE
        ]

    def _ends(self, conn: Any, endpoint: int) -> tuple[int, int, bool]:
        """Return source and destination of an endpoint's transfer, and whether it is a read."""
        source, target, stage = (
            int(conn["src"]),
            int(conn["dst"]),
            int(conn["stage"]),
        )
        if stage == NONE:
            return source, target, int(conn["kind"]) == ConnKind.READ
        return (
            (stage, target, True) if endpoint == target else (source, stage, False)
        )

    @staticmethod
    def _vias(row: Any) -> tuple[int, ...]:
        """Return the NICs that the writes of a connection, or a message, are steered over."""
        return tuple(
            int(via)
            for via in (row["via_first"], row["via_last"])
            if int(via) != NONE
        )

    def _up_and_down(self, vertex: int) -> list[int]:
        """Return the wires from a member of an aggregation tree to its root and back."""
        vertices = self.image["vertices"]
        up: list[int] = []
        down: list[int] = []
        while int(vertices["parent"][vertex]) != NONE:
            up += self._path(int(vertices["path_up"][vertex]))
            down = self._path(int(vertices["path_down"][vertex])) + down
            vertex = int(vertices["parent"][vertex])
        return up + down

    def _fixed_path(self, conn: Any, endpoint: int) -> list[Stage]:
        """Return the path of a connection whose packets all use the same wires."""
        source, target, read = self._ends(conn, endpoint)
        if not read:
            goals = [*self._vias(conn), target]
            return self._legs(
                source, goals, int(conn["first_group"]), int(conn["key"])
            )[0]
        stages, key = self._legs(
            target, [source], int(conn["first_group"]), int(conn["key"])
        )
        last = self._reverse(stages[-1].lanes) if stages else []
        if not last:
            return []
        first = Stage(last, self._route(int(self._endpoint_nodes[source]), target))
        node = int(self.wires["dst"][last[0]])
        behind, _ = self._follow(self._route(node, target), target, key, last[0])
        return [first, *behind]

    def _multimem(self, conn: Any, endpoint: int, flags: int) -> list[Stage]:
        """Return the stages of a multicast (flag 4), an in-network reduction (8) or both."""
        up = self.group(int(conn["first_group"]))
        switches = sorted({int(self.wires["dst"][wire]) for wire in up})
        off = self.image["mgroup_off"]
        group = int(conn["mgroup"])
        members = self.image["mgroup_members"][off[group] : off[group + 1]].tolist()
        down = sorted(
            {w for s in switches for m in members for w in self._route(s, m)}
        )
        gather, back = self._reverse(down), self._reverse(up)
        paths = [gather, back] if flags & Op.REDUCE else []
        paths += [up, down] if flags & Op.MCAST or not paths else []
        return [Stage(lanes, lanes) for lanes in paths]

    def narrow_to(self, stages: list[Stage], wire: int) -> list[Stage]:
        """Return the stages with only the lanes to or from the wire that the last data crossed."""
        where = next(
            (i for i, stage in enumerate(stages) if wire in stage.lanes), None
        )
        if where is None:
            return stages
        result = list(stages)
        result[where] = Stage([wire], stages[where].group)
        source, target = self.wires["src"], self.wires["dst"]
        for onward, close, far in ((1, target, source), (-1, source, target)):
            i = where + onward
            while 0 <= i < len(stages):
                ends = {int(close[w]) for w in result[i - onward].lanes}
                lanes = [w for w in stages[i].lanes if int(far[w]) in ends]
                result[i] = Stage(lanes or stages[i].lanes, stages[i].group)
                i += onward
        return result

    def units_of(self, connection: int) -> list[int]:
        """Return the reduction units of a multimem or aggregation connection."""
        conn = self.image["conns"][connection]
        if int(conn["kind"]) == ConnKind.AGGREGATION:
            return self._units_above(int(conn["vertex"]))
        if int(conn["kind"]) != ConnKind.MULTIMEM:
            return []
        up = self.group(int(conn["first_group"]))
        units = {
            int(self.image["nodes"]["unit"][self.wires["dst"][wire]]) for wire in up
        }
        return sorted(units - {NONE})

    def _units_above(self, vertex: int) -> list[int]:
        vertices, result = self.image["vertices"], []
        while int(vertices["parent"][vertex]) != NONE:
            vertex = int(vertices["parent"][vertex])
            result.append(int(vertices["unit"][vertex]))
        return sorted(set(result))

    def rate(self, wire: int, time_ps: int) -> float:
        """Return the rate of a wire at a time, faults counted [bytes/ps]."""
        row = self.wires[wire]
        rate = int(row["rate_num"]) / int(row["rate_den"])
        faults = self._faults
        mine = (
            (faults["kind"] == FaultKind.RATE)
            & (faults["index"] == wire)
            & (faults["time_ps"] <= time_ps)
        )
        for fault in faults[mine]:
            rate = int(fault["num"]) / max(1, int(fault["den"]))
        return rate

    def way_rate(self, connection: int, endpoint: int, flags: int) -> float:
        """Return the total nominal rate of a transfer's slowest stage [bytes/ps]; 0 if empty."""
        rates = self.wires["rate_num"] / np.maximum(1, self.wires["rate_den"])
        stages = self.stages_of(connection, endpoint, flags)
        return min(
            (float(rates[stage.lanes].sum()) for stage in stages), default=0.0
        )

    def slow_1024(self, endpoint: int, time_ps: int) -> int:
        """Return the slow-down of CTAs and kernels of an endpoint at a time; 1024 is nominal."""
        slow = int(self.image["endpoints"]["slow_1024"][endpoint])
        faults = self._faults
        mine = (faults["kind"] == FaultKind.SLOW) & (faults["index"] == endpoint)
        for fault in faults[mine & (faults["time_ps"] <= time_ps)]:
            slow = int(fault["num"])
        return slow

    def cost_ps(self, what: str, instance: int, time_ps: int) -> int:
        """Return the ``fixed_ps`` or ``after_ps`` of a slice of an instance that starts at a time [ps]."""
        row = self.image["instances"][instance]
        slow = self.slow_1024(int(row["endpoint"]), time_ps)
        return (int(self.image["costs"][what][int(row["cost"])]) * slow) >> 10

    def copy_ps(self, instance: int, prim: int, size: int, time_ps: int) -> int:
        """Return the time in which an instance copies or reduces the bytes of a primitive [ps]."""
        row, opcode = (
            self.image["instances"][instance],
            int(self.image["prims"]["opcode"][prim]),
        )
        per_byte = int(self.image["costs"]["op_cost16"][int(row["cost"])][opcode])
        slow = self.slow_1024(int(row["endpoint"]), time_ps)
        return (size * ((per_byte * slow) >> 10)) >> 16

    def _header_ps(self, wire: int, kind: int) -> int:
        row = self.wires[wire]
        form = self.image["formats"][int(row["format"])]
        flit = max(1, int(form["flit_bytes"]))
        size = -(-int(form["header_bytes"][kind]) // flit) * flit
        return -(-size * int(row["rate_den"]) // int(row["rate_num"]))

    def _head_latencies(self, stages: list[Stage], kind: int) -> Iterator[Delay]:
        """Yield the latencies of a packet's head over each stage's first wire if idle."""
        for hop, stage in enumerate(stages):
            wire = stage.lanes[0]
            yield Delay("wire latency", int(self.wires["latency_ps"][wire]), wire)
            yield Delay("wires", self._header_ps(wire, kind), wire)
            if hop:
                node = self.wires["src"][wire]
                yield Delay("switches", int(self.image["nodes"]["latency_ps"][node]))

    def flight(self, connection: int) -> Iterator[Delay]:
        """Yield the latencies of a written or multicast packet, from its end on the first wire to visible."""
        conn = self.image["conns"][connection]
        if int(conn["kind"]) == ConnKind.MULTIMEM:
            yield from self._switch_latencies(connection, int(conn["src"]), Op.MCAST)
        if int(conn["kind"]) != ConnKind.WRITE:
            return
        _, target, _ = self._ends(conn, int(conn["src"]))
        yield from self._head_latencies(
            self.stages_of(connection, int(conn["src"]), 0), Kind.WRITE
        )
        latency_ps = int(self.image["endpoints"]["write_latency_ps"][target])
        yield Delay("memory latency", latency_ps)

    def flight_ps(self, connection: int) -> int:
        """Return the total of `flight` [ps]."""
        return sum(delay.ps for delay in self.flight(connection))

    def latency_ps(self, connection: int, endpoint: int, flags: int) -> int:
        """Return the total of `latencies` [ps]."""
        return sum(delay.ps for delay in self.latencies(connection, endpoint, flags))

    def latencies(
        self, connection: int, endpoint: int, flags: int
    ) -> Iterator[Delay]:
        """Yield the latencies of a requested transfer without data: round trips, memory, units."""
        conn = self.image["conns"][connection]
        ends = self.image["endpoints"]
        response = Delay(
            "memory latency", int(ends["response_latency_ps"][endpoint])
        )
        source, _, read = self._ends(conn, endpoint)
        if int(conn["kind"]) == ConnKind.AGGREGATION:
            yield from self._aggregation(connection, endpoint, flags)
        elif read:
            yield from self._head_latencies(
                self.stages(endpoint, source), Kind.READ_REQ
            )
            yield from self._head_latencies(
                self.stages_of(connection, endpoint, flags), Kind.READ_RESP
            )
            yield Delay("memory latency", int(ends["read_latency_ps"][source]))
            yield response
        elif int(conn["kind"]) == ConnKind.MULTIMEM:
            yield from self._switch_latencies(connection, endpoint, flags)
            if flags & Op.REDUCE:
                yield response

    def _switch_latencies(
        self, connection: int, endpoint: int, flags: int
    ) -> Iterator[Delay]:
        """Yield the latencies of a multicast to all members, or of a reduction back to the requester."""
        conn, ends = self.image["conns"][connection], self.image["endpoints"]
        stages, members = (
            self._multimem(conn, endpoint, flags),
            self.image["mgroup_members"],
        )
        if not flags & Op.REDUCE:
            yield from self._head_latencies(stages, Kind.MCAST)
            yield Delay(
                "memory latency",
                int(ends["write_latency_ps"][members].max(initial=0)),
            )
            return
        up = self.group(int(conn["first_group"]))
        yield from self._head_latencies([Stage(up, up), stages[0]], Kind.READ_REQ)
        yield from self._head_latencies(stages, Kind.READ_RESP)
        yield Delay(
            "memory latency", int(ends["read_latency_ps"][members].max(initial=0))
        )
        units = self.units_of(connection)
        unit_ps = max(
            (int(self.image["units"]["latency_ps"][u]) for u in units), default=0
        )
        yield Delay("switches", unit_ps)

    def _aggregation(
        self, connection: int, endpoint: int, flags: int
    ) -> Iterator[Delay]:
        """Yield the latencies of a packet up to its tree's root and of the result to memory."""
        yield from self._head_latencies(
            self.stages_of(connection, endpoint, flags), Kind.AGG_UP
        )
        for unit in self.units_of(connection):
            yield Delay("switches", int(self.image["units"]["latency_ps"][unit]))
        latency_ps = int(self.image["endpoints"]["write_latency_ps"][endpoint])
        yield Delay("memory latency", latency_ps)
