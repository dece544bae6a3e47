"""A builder that makes images concise to write in tests.

Everything has a default that disturbs little: packets of 99 + 1 bytes at 10 ps per byte, flits of 1 byte, wide
buffers, memory that takes no time, CTAs that cost nothing. A switch takes 90 ps and the header 10 ps, so that a
packet is ready for an output of the same rate 100 ps after its head. A test sets the one thing that it is about.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from clusim.engine.abi import CLASSES, KINDS, NONE, OPCODE_SLOTS, ConnKind, Policy, TaskKind
from clusim.engine.image import DTYPES, OPCODES, Image
from clusim.policies.choice import BoundSender, Sender, find_policy
from support.routes import NETWORK, ShortestPaths, route_rows

__all__ = ["NETWORK", "ImageBuilder", "Place", "prim"]

Row = dict[str, Any]

CONN_KINDS = {kind.name.lower(): kind for kind in ConnKind}
POLICIES = {policy.name.lower(): policy for policy in Policy}
TASK_KINDS = {kind.name.lower(): kind for kind in TaskKind}
UNLIMITED = 1 << 30
LINE_RATE = (1 << 30) // 10  # a rate control at the speed of a default wire


@dataclass(frozen=True)
class Place:
    """A node, with its endpoint index if it is one, and the machine it is in."""

    node: int
    endpoint: int | None = None
    zone: int = 0

    @property
    def ep(self) -> int:
        """The endpoint index."""
        assert self.endpoint is not None
        return self.endpoint


def prim(opcode: str, *, recv: int | None = None, send: int | None = None, **fields: Any) -> Row:
    """Return a primitive; `recv` and `send` are positions in the instance's connections."""
    row: Row = {"base": 0, "coef": 0, "step": 0, "repeat": 1, "flags": 0}
    row.update(fields)
    row["opcode"] = OPCODES[opcode].number
    row["recv"] = NONE if recv is None else recv
    row["send"] = NONE if send is None else send
    return row


@dataclass
class ImageBuilder:
    """Collects rows; `build` makes the image. Methods return the index of what they add."""

    nvc: int = 1
    seed: int = 0
    rows: dict[str, list[Row]] = field(default_factory=dict)
    relays: set[int] = field(default_factory=set)
    _routes: dict[tuple[int, int], list[int]] = field(default_factory=dict)
    _groups: list[tuple[int, ...]] = field(default_factory=list)
    _paths: list[tuple[int, ...]] = field(default_factory=list)
    _mgroups: list[tuple[int, ...]] = field(default_factory=list)
    _nics: list[Place] = field(default_factory=list)
    _inst_conns: list[int] = field(default_factory=list)
    _queue_keys: list[int] = field(default_factory=list)
    _senders: list[BoundSender | None] = field(default_factory=list)
    _deps: dict[int, list[int]] = field(default_factory=dict)
    _paths_known: tuple[tuple[int, int], ShortestPaths] | None = None

    def _add(self, name: str, defaults: Row, given: Row) -> int:
        unknown = set(given) - set(DTYPES[name].names or ())
        assert not unknown, f"{name} has no {unknown}"
        rows = self.rows.setdefault(name, [])
        rows.append({**defaults, **given})
        return len(rows) - 1

    # Fabric

    def format(
        self,
        flit: int = 1,
        header: Any = 1,
        control: Any = 0,
        service: Any = 1024,
        limit: Any = NONE,
    ) -> int:
        """Add a packet format; all but the flit per kind, as a list or dict, or for all kinds.

        `control` is in 1/256 byte; a dict leaves the other kinds at the default.
        """

        def per_kind(value: Any, default: int) -> list[int]:
            if isinstance(value, dict):
                return [value.get(kind, default) for kind in range(KINDS)]
            return [value] * KINDS if isinstance(value, int) else list(value)

        row = {
            "flit_bytes": flit,
            "header_bytes": per_kind(header, 1),
            "control_256": per_kind(control, 0),
            "service_1024": per_kind(service, 1024),
            "limit_bytes": per_kind(limit, NONE),
        }
        return self._add("formats", {}, row)

    def endpoint(
        self, latency_ps: int = 1, relay: bool = False, zone: int = 0, **fields: int
    ) -> Place:
        """Add an endpoint and its node."""
        node = len(self.rows.get("nodes", []))
        defaults = {
            "write_latency_ps": 10,
            "read_latency_ps": 20,
            "response_latency_ps": 30,
            "mem_quantum_ps": 1000,
            "node": node,
            "sms": 16,
            "cta_slots": 16,
            "slow_1024": 1024,
            "mem_cost16": 1,  # 2^-16 ps per byte: as good as nothing
            "deliver_256": 256,
            "read_256": 256,
            "inject_256": 0,
        }
        index = self._add("endpoints", defaults, fields)
        row = {"latency_ps": latency_ps, "kind": 0, "endpoint": index, "unit": NONE, "zone": zone}
        self._add("nodes", {}, row)
        if relay:
            self.relays.add(node)
        return Place(node, index, zone)

    def switch(
        self,
        latency_ps: int = 90,
        store_and_forward: bool = False,
        unit: Row | None = None,
        zone: int = 0,
        bridge: bool = False,
    ) -> Place:
        """Add a switch; `unit` gives it a reduction unit, `bridge` makes WRITE of FETCH."""
        node = len(self.rows.get("nodes", []))
        index = NONE if unit is None else self._add("units", {"node": node}, unit)
        row = {
            "latency_ps": latency_ps,
            "kind": 1,
            "flags": int(store_and_forward) + 2 * bridge,
            "endpoint": NONE,
            "unit": index,
            "zone": zone,
        }
        self._add("nodes", {}, row)
        return Place(node, None, zone)

    def nic(self, latency_ps: int = 90, wide_stride: int = 0, **fields: Any) -> Place:
        """Add a NIC: a bridge to which packets can be steered.

        With a `wide_stride` of 0 it has one group for all other machines: its wires to nodes of other zones.
        """
        place = self.switch(latency_ps, bridge=True, **fields)
        self.rows["nodes"][place.node]["wide_stride"] = wide_stride
        self._nics.append(place)
        return place

    def wire(self, src: Place, dst: Place, rate: tuple[int, int] = (1, 10), **fields: int) -> int:
        """Add one direction; `rate` is (bytes, ps)."""
        if "formats" not in self.rows:
            self.format()
        ends = (src.node, dst.node)
        twins = [w for w in self.rows.get("wires", []) if (w["src"], w["dst"]) == ends]
        defaults = {
            "rate_num": rate[0],
            "rate_den": rate[1],
            "latency_ps": 1000,
            "buffer_bytes": UNLIMITED,
            "src": src.node,
            "dst": dst.node,
            "reverse": NONE,
            "ordinal": len(twins),
        }
        return self._add("wires", defaults, fields)

    def link(self, a: Place, b: Place, rate: tuple[int, int] = (1, 10), **fields: int) -> int:
        """Add both directions of a link; return the wire from `a`, the next one is its reverse."""
        there = self.wire(a, b, rate, **fields)
        back = self.wire(b, a, rate, **fields)
        self.rows["wires"][there]["reverse"] = back
        self.rows["wires"][back]["reverse"] = there
        return there

    def group(self, *wires: int) -> int:
        """Return the index of a route group."""
        if wires not in self._groups:
            self._groups.append(wires)
        return self._groups.index(wires)

    def path(self, *wires: int) -> int:
        """Add an explicit path."""
        self._paths.append(wires)
        return len(self._paths) - 1

    def mgroup(self, *members: Place) -> int:
        """Add a multicast group."""
        self._mgroups.append(tuple(member.ep for member in members))
        return len(self._mgroups) - 1

    def route(self, node: Place, dst: Place, *wires: int) -> None:
        """Set a route by hand, instead of the shortest paths."""
        self._routes[node.node, dst.node] = list(wires)

    def shortest(self, node: int, goal: int, anywhere: bool = False) -> list[int]:
        """Return the wires out of `node` on shortest paths to the node `goal`, those of packets without a path.

        With `anywhere` also over other machines than the two, as explicit paths may.
        """
        key = (len(self.rows.get("wires", [])), len(self.relays))
        if self._paths_known is None or self._paths_known[0] != key:
            self._paths_known = (key, ShortestPaths(self.rows, self.relays))
        return self._paths_known[1].wires(node, goal, anywhere)

    # Schedule

    def conn(self, src: Place, dst: Place, kind: str = "write", **fields: Any) -> int:
        """Add a connection from `src` to `dst`; `policy` may be a name."""
        fields["policy"] = POLICIES[fields.get("policy", "stripe")]
        defaults = {
            "tail_ps": 0,
            "head_ps": 0,
            "src": src.ep,
            "dst": dst.ep,
            "kind": CONN_KINDS[kind],
            "first_group": NONE,
            "path": NONE,
            "path_back": NONE,
            "mgroup": NONE,
            "packet_bytes": 99,
            "burst": 1,
            "slots": 8,
            "expand_120": 120,
            "via_first": NONE,
            "via_last": NONE,
            "stage": NONE,
            "control": NONE,
            "spread": NONE,
            "vertex": NONE,
        }
        return self._add("conns", defaults, fields)

    def queues(self, *keys: int) -> Row:
        """Return the fields of a connection with queue pairs of these keys."""
        low = len(self._queue_keys)
        self._queue_keys += keys
        return {"queue_lo": low, "queue_hi": low + len(keys)}

    def control(self, policy: Sender | None = None, **fields: int) -> int:
        """Add a rate control: 1 byte per 10 ps, no timer within any test unless it sets one."""
        defaults = {
            "alpha_timer_ps": 1 << 40,
            "increase_timer_ps": 1 << 40,
            "cnp_interval_ps": 1,
            "cnp_delay_ps": 1,
            "byte_counter": 1 << 40,
            "line_rate": LINE_RATE,
            "min_rate": 1,
            "additive": 0,
            "hyper": 0,
            "g_65536": 0,
            "fast_recovery": 5,
            "kept_65536": 0,
            "clamp": 1,
        }
        fields |= {"sender": 0 if policy is None else find_policy(policy.name).mode}
        row = self._add("controls", defaults, fields)
        values = tuple(self.rows["controls"][row].items())
        self._senders.append(None if policy is None else BoundSender(policy, values))
        return row

    def schedule(self, priority: Sequence[int] = (), quantum: Sequence[int] = ()) -> int:
        """Add a schedule by class; return the number that wires have. Defaults: priority 0, 100 bytes."""
        rows = {"priority": [*priority, *[0] * (CLASSES - len(priority))]}
        rows["quantum"] = [*quantum, *[100] * (CLASSES - len(quantum))]
        return 1 + self._add("schedules", {}, rows)

    def spread(self, **fields: int) -> int:
        """Add a spread; without fields its packets choose as without one, and are accepted in any order."""
        return self._add("spreads", {"nak_ps": 1000}, fields)

    def tree(self, *vertices: Row) -> list[int]:
        """Add the vertices of an aggregation tree, the root first, children of one parent together.

        A row has `place` (an endpoint, or a switch with a unit), `parent` (position in `vertices`, not for the
        root), the wires of the paths `up` and `down`, and perhaps `slots`.
        """
        first = len(self.rows.get("vertices", []))
        parents = [row.get("parent") for row in vertices]
        for position, row in enumerate(vertices):
            children = [i for i, parent in enumerate(parents) if parent == position]
            assert children == list(
                range(len(children) and children[0], len(children) and children[-1] + 1)
            )
            place, lo = row["place"], first + (children[0] if children else 0)
            fields = {
                "parent": NONE if row.get("parent") is None else first + row["parent"],
                "unit": self.rows["nodes"][place.node]["unit"],
                "endpoint": NONE if place.endpoint is None else place.endpoint,
                "path_up": self.path(*row["up"]) if "up" in row else NONE,
                "path_down": self.path(*row["down"]) if "down" in row else NONE,
                "child_lo": lo,
                "child_hi": lo + len(children),
                "slots": row.get("slots", 1 << 10),
            }
            self._add("vertices", {}, fields)
        return list(range(first, first + len(vertices)))

    def cost(self, fixed_ps: int = 0, default: int = 0, after_ps: int = 0, **by_opcode: int) -> int:
        """Add step costs; `by_opcode` in 2^-16 ps per byte, `default` for the others."""
        costs = [by_opcode.get(name, default) for name in OPCODES]
        costs += [0] * (OPCODE_SLOTS - len(costs))
        return self._add(
            "costs", {}, {"fixed_ps": fixed_ps, "after_ps": after_ps, "op_cost16": costs}
        )

    def template(self, *prims: Row, nchunks: int = 1, mode: int = 0) -> int:
        """Add a template of primitives made by `prim`."""
        lo = len(self.rows.get("prims", []))
        for row in prims:
            self._add("prims", {}, row)
        row = {"prim_lo": lo, "prim_hi": lo + len(prims), "nchunks": nchunks, "mode": mode}
        return self._add("templates", {}, row)

    def task(self, kind: str = "program", after: tuple[int, ...] = (), **fields: int) -> int:
        """Add a task that follows the tasks `after`."""
        index = self._add("tasks", {"kind": TASK_KINDS[kind], "sms": 1}, fields)
        self._deps[index] = sorted(set(after))
        return index

    def instance(
        self, task: int, place: Place, template: int, conns: tuple[int, ...] = (), **fields: int
    ) -> int:
        """Add an instance; instances must be added in the order of their tasks."""
        if "costs" not in self.rows:
            self.cost()
        length = fields.get("length", 99)
        defaults = {
            "length": length,
            "chunk_bytes": max(1, length),
            "stride": length,
            "limit": UNLIMITED,
            "slice_min": 1,
            "task": task,
            "endpoint": place.ep,
            "template": template,
            "conn_off": len(self._inst_conns),
            "align": 1,
            "slices": 1,
            "slots_per_slice": 1,
            "thread": NONE,
        }
        self._inst_conns.extend(conns)
        before = self.rows.get("instances", [])
        assert not before or before[-1]["task"] <= task, "add instances in the order of their tasks"
        return self._add("instances", defaults, fields)

    def run_alone(self, place: Place, *prims: Row, conns: tuple[int, ...], **fields: int) -> int:
        """Add a task with one instance with its own template of one chunk; return the instance."""
        task = self.task()
        return self.instance(task, place, self.template(*prims), conns, **fields)

    def source(
        self,
        place: Place,
        messages: list[tuple[int, int, Place]],
        key: int = 0,
        vias: Sequence[tuple[Any, Any]] = (),
        **fields: Any,
    ) -> int:
        """Add a source with messages (start_ps, bytes, destination), each over its `vias`."""
        lo = len(self.rows.get("messages", []))
        for i, (start_ps, size, dst) in enumerate(messages):
            row = {"start_ps": start_ps, "bytes": size, "dst": dst.ep, "key": key}
            row["via_first"], row["via_last"] = vias[i] if vias else (NONE, NONE)
            self._add("messages", {}, row)
        fields["policy"] = POLICIES[fields.get("policy", "stripe")]
        defaults = {
            "endpoint": place.ep,
            "msg_lo": lo,
            "msg_hi": lo + len(messages),
            "packet_bytes": 99,
            "burst": 1,
            "control": NONE,
            "spread": NONE,
        }
        return self._add("sources", defaults, fields)

    def fault(self, time_ps: int, *, wire: int | None = None, **fields: int) -> int:
        """Add a fault: `num`/`den` of a wire, or `num` as `slow_1024` of endpoint `index`."""
        row = {"time_ps": time_ps, "kind": 1, "den": 1, **fields}
        if wire is not None:
            row.update(kind=0, index=wire)
        return self._add("faults", {}, row)

    # Image

    def build(self) -> Image:
        """Return the image."""
        self._finish_tasks()
        routes = self._route_array()
        arrays = {
            name: self._array(name) for name, dtype in DTYPES.items() if dtype.names is not None
        }
        group_off, group_wires = _ragged(self._groups)
        path_off, path_wires = _ragged(self._paths)
        mgroup_off, mgroup_members = _ragged(self._mgroups)
        return Image(
            nvc=self.nvc,
            seed=self.seed,
            **arrays,
            routes=routes,
            group_off=group_off,
            group_wires=group_wires,
            path_off=path_off,
            path_wires=path_wires,
            mgroup_off=mgroup_off,
            mgroup_members=mgroup_members,
            inst_conns=np.array(self._inst_conns, DTYPES["inst_conns"]),
            queue_keys=np.array(self._queue_keys, DTYPES["queue_keys"]),
            succ=np.array(self._succ, DTYPES["succ"]),
            senders=tuple(self._senders) if any(self._senders) else (),
        )

    def _array(self, name: str) -> np.ndarray[Any, Any]:
        rows = self.rows.get(name, [])
        array = np.zeros(len(rows), DTYPES[name])
        for i, row in enumerate(rows):
            for key, value in row.items():
                place = isinstance(value, Place)
                array[key][i] = self._target(value) if place else value
        return array

    def _target(self, place: Place) -> int:
        """Return the target index of an endpoint or NIC."""
        if place.endpoint is not None:
            return place.endpoint
        return len(self.rows["endpoints"]) + self._nics.index(place)

    def _finish_tasks(self) -> None:
        tasks = self.rows.setdefault("tasks", [])
        self._succ: list[int] = []
        for index, task in enumerate(tasks):
            members = [
                i for i, r in enumerate(self.rows.get("instances", [])) if r["task"] == index
            ]
            task["inst_lo"] = members[0] if members else 0
            task["inst_hi"] = members[-1] + 1 if members else 0
            task["num_deps"] = len(self._deps[index])
            task["succ_lo"] = len(self._succ)
            self._succ += [later for later, deps in self._deps.items() if index in deps]
            task["succ_hi"] = len(self._succ)

    def _route_array(self) -> np.ndarray[Any, Any]:
        """Return the routes, and fill in `targets` and where the nodes' rows are."""
        nics = [nic.node for nic in self._nics]
        return np.array(route_rows(self.rows, nics, self._group_towards), DTYPES["routes"])

    def _group_towards(self, node: int, goal: int) -> int:
        wires = self._routes.get((node, goal)) or self.shortest(node, goal)
        return self.group(*wires) if wires else NONE


def _ragged(lists: list[tuple[int, ...]]) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    off = np.cumsum([0, *(len(item) for item in lists)]).astype("<u4")
    return off, np.array([value for item in lists for value in item], "<u4")
