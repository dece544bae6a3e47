"""The image as plain Python objects: what never changes during a run.

Field names are those of ``clusim.image`` and of the contract. Absent indices (`NONE`) become ``None``.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from clusim.image import NONE, Image
from clusim.reference.arithmetic import ceil_div, round_up

__all__ = [
    "PAYLOAD_KINDS",
    "ConnSpec",
    "CostSpec",
    "EndpointSpec",
    "FaultSpec",
    "Format",
    "InstanceSpec",
    "Kind",
    "MessageSpec",
    "Model",
    "NodeSpec",
    "Policy",
    "PrimSpec",
    "SourceSpec",
    "TaskSpec",
    "TemplateSpec",
    "UnitSpec",
    "WireSpec",
]


class Kind:
    """Packet kinds (section 3)."""

    WRITE = 0
    READ_REQ = 1
    READ_RESP = 2
    MCAST = 3
    RED_REQ = 4
    RED_FETCH = 5
    RED_DATA = 6
    RED_RESULT = 7


PAYLOAD_KINDS = frozenset({Kind.WRITE, Kind.READ_RESP, Kind.MCAST, Kind.RED_DATA, Kind.RED_RESULT})
"""Kinds whose payload is on the wire; the others only stand for it."""


class Policy:
    """How a transfer spreads over parallel wires (section 5)."""

    STRIPE = 0
    PINNED = 1
    ADAPTIVE = 2


@dataclass(frozen=True, slots=True)
class Format:
    """A packet format; header, control and service are indexed by kind."""

    flit_bytes: int
    header_bytes: tuple[int, ...]
    control_256: tuple[int, ...]
    service_1024: tuple[int, ...]

    def wire_bytes(self, kind: int, p: int, packet_bytes: int) -> int:
        """Return the bytes on the wire of a packet that stands for `p` payload bytes (section 3)."""
        header = self.header_bytes[kind]
        m = ceil_div(p, packet_bytes)
        if kind not in PAYLOAD_KINDS:
            return m * round_up(header, self.flit_bytes)
        full = round_up(header + packet_bytes, self.flit_bytes)
        last = round_up(header + p - (m - 1) * packet_bytes, self.flit_bytes)
        return (m - 1) * full + last

    def occupancy(self, kind: int, wire_bytes: int) -> int:
        """Return the bytes' worth of wire time that `wire_bytes` of this kind take (section 3)."""
        return (wire_bytes * self.service_1024[kind] + 1023) >> 10

    def header_on_wire(self, kind: int) -> int:
        """Return the header in whole flits, `up(header_bytes[kind])` (section 4, 6.)."""
        return round_up(self.header_bytes[kind], self.flit_bytes)


@dataclass(frozen=True, slots=True)
class NodeSpec:
    """A node; `endpoint` and `unit` are indices or None."""

    latency_ps: int
    store_and_forward: bool
    endpoint: int | None
    unit: int | None
    incoming: tuple[int, ...]  # wires, ascending
    outgoing: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class EndpointSpec:
    """An endpoint's constants."""

    write_latency_ps: int
    read_latency_ps: int
    response_latency_ps: int
    mem_quantum_ps: int
    node: int
    sms: int
    cta_slots: int
    slow_1024: int
    mem_cost16: int
    deliver_256: int
    read_256: int
    inject_256: int


@dataclass(frozen=True, slots=True)
class WireSpec:
    """A wire's constants; the rate is the one at time 0."""

    rate_num: int
    rate_den: int
    latency_ps: int
    buffer_bytes: int
    replay_ps: int
    src: int
    dst: int
    reverse: int | None
    format: Format
    ordinal: int
    error_threshold: int
    dim: int
    dateline: int
    in_local: int  # index among the incoming wires of dst


@dataclass(frozen=True, slots=True)
class UnitSpec:
    """A switch's reduction unit."""

    latency_ps: int
    capacity_bytes: int
    node: int
    cost16: int


@dataclass(frozen=True, slots=True)
class ConnSpec:
    """A connection's constants."""

    tail_ps: int
    head_ps: int
    src: int
    dst: int
    kind: int
    policy: int
    first_group: int | None
    path: tuple[int, ...] | None
    path_back: tuple[int, ...] | None
    key: int
    members: tuple[int, ...]  # of its multicast group; empty unless kind 3
    packet_bytes: int
    burst: int
    vc: int
    vc_response: int
    slots: int
    expand_120: int
    window_bytes: int


@dataclass(frozen=True, slots=True)
class CostSpec:
    """Step costs of a protocol."""

    fixed_ps: int
    op_cost16: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class PrimSpec:
    """One primitive of a template."""

    opcode: int
    recv: int | None
    send: int | None
    sync: bool
    base: int
    coef: int
    step: int
    repeat: int


@dataclass(frozen=True, slots=True)
class TemplateSpec:
    """The primitives shared by instances; `prim_lo` is the image's index of the first."""

    prims: tuple[PrimSpec, ...]
    prim_lo: int
    nchunks: int
    mode: int


@dataclass(frozen=True, slots=True)
class InstanceSpec:
    """A template bound to an endpoint, connections and a range of bytes."""

    start_ps: int
    offset: int
    length: int
    chunk_bytes: int
    stride: int
    limit: int
    slice_min: int
    task: int
    endpoint: int
    template: TemplateSpec
    rotation: int
    conn_off: int
    align: int
    slices: int
    slots_per_slice: int
    cost: CostSpec
    sm: int


@dataclass(frozen=True, slots=True)
class TaskSpec:
    """A node of the task graph."""

    delay_ps: int
    compute_ps: int
    mem_bytes: int
    kind: int
    endpoint: int
    sms: int
    num_deps: int
    inst_lo: int
    inst_hi: int
    successors: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class SourceSpec:
    """A generator of messages."""

    endpoint: int
    msg_lo: int
    msg_hi: int
    packet_bytes: int
    burst: int
    policy: int
    vc: int
    serial: bool


@dataclass(frozen=True, slots=True)
class MessageSpec:
    """One message of a source."""

    start_ps: int
    bytes: int
    dst: int
    key: int


@dataclass(frozen=True, slots=True)
class FaultSpec:
    """A change at a given time."""

    time_ps: int
    num: int
    den: int
    kind: int
    index: int


def _index(value: Any) -> int | None:
    return None if int(value) == NONE else int(value)


def _row(array: Any, position: int, *names: str) -> dict[str, int]:
    return {name: int(array[name][position]) for name in names}


def _plain(array: Any, position: int, *without: str) -> dict[str, int]:
    return _row(array, position, *(n for n in array.dtype.names if n not in without))


def _numbers(array: Any) -> tuple[int, ...]:
    return tuple(int(value) for value in array)


def _ragged(off: Any, flat: Any) -> tuple[tuple[int, ...], ...]:
    return tuple(_numbers(flat[off[i] : off[i + 1]]) for i in range(len(off) - 1))


class Model:
    """Every constant of a run, as tuples of the objects above."""

    def __init__(self, image: Image) -> None:
        self.nvc = int(image.nvc)
        self.seed = int(image.seed)
        self.groups = _ragged(image.group_off, image.group_wires)
        self._read_fabric(image)
        self._read_connections(image)
        self._read_programs(image)
        self._read_tasks(image)

    def route(self, node: int, endpoint: int) -> tuple[int, ...]:
        """Return the route group from `node` towards `endpoint`."""
        group = self._routes[node * len(self.endpoints) + endpoint]
        if group is None:
            raise ValueError(f"no route from node {node} to endpoint {endpoint}")
        return self.groups[group]

    def fastest(self, group: tuple[int, ...]) -> int:
        """Return the wire with the highest rate, then the lowest id, at the rates of the image."""
        rates = {
            wire: Fraction(self.wires[wire].rate_num, self.wires[wire].rate_den) for wire in group
        }
        return min(group, key=lambda wire: (-rates[wire], wire))

    def _read_fabric(self, image: Image) -> None:
        self.endpoints = tuple(
            EndpointSpec(**_plain(image.endpoints, i)) for i in range(len(image.endpoints))
        )
        self.formats = tuple(
            Format(int(row["flit_bytes"]), *(_numbers(row[n]) for n in Format.__slots__[1:]))
            for row in image.formats
        )
        self._routes = tuple(_index(group) for group in image.routes)
        self.units = tuple(UnitSpec(**_plain(image.units, i)) for i in range(len(image.units)))
        wires = image.wires
        incoming: list[list[int]] = [[] for _ in image.nodes]
        outgoing: list[list[int]] = [[] for _ in image.nodes]
        specs = []
        for i in range(len(wires)):
            dst = int(wires["dst"][i])
            plain = _plain(wires, i, "reverse", "format", "pad")
            specs.append(
                WireSpec(
                    **plain,
                    reverse=_index(wires["reverse"][i]),
                    format=self.formats[int(wires["format"][i])],
                    in_local=len(incoming[dst]),
                )
            )
            incoming[dst].append(i)
            outgoing[plain["src"]].append(i)
        self.wires = tuple(specs)
        self.nodes = tuple(
            NodeSpec(
                latency_ps=int(row["latency_ps"]),
                store_and_forward=bool(int(row["flags"]) & 1),
                endpoint=_index(row["endpoint"]),
                unit=_index(row["unit"]),
                incoming=tuple(incoming[i]),
                outgoing=tuple(outgoing[i]),
            )
            for i, row in enumerate(image.nodes)
        )

    def _read_connections(self, image: Image) -> None:
        paths = dict(enumerate(_ragged(image.path_off, image.path_wires)))
        mgroups = _ragged(image.mgroup_off, image.mgroup_members)
        conns = image.conns
        special = ("first_group", "path", "path_back", "mgroup")
        self.conns = tuple(
            ConnSpec(
                **_plain(conns, i, *special),
                first_group=_index(conns["first_group"][i]),
                path=paths.get(int(conns["path"][i])),
                path_back=paths.get(int(conns["path_back"][i])),
                members=mgroups[int(conns["mgroup"][i])] if int(conns["kind"][i]) == 3 else (),
            )
            for i in range(len(conns))
        )

    def _read_programs(self, image: Image) -> None:
        costs = tuple(CostSpec(int(r["fixed_ps"]), _numbers(r["op_cost16"])) for r in image.costs)
        prims = tuple(
            PrimSpec(
                **_row(image.prims, i, "opcode", "base", "coef", "step", "repeat"),
                recv=_index(row["recv"]),
                send=_index(row["send"]),
                sync=bool(int(row["flags"]) & 1),
            )
            for i, row in enumerate(image.prims)
        )
        templates = tuple(
            TemplateSpec(prims[lo:hi], lo, nchunks, mode)
            for lo, hi, nchunks, mode in (_numbers(row) for row in image.templates)
        )
        self.instances = tuple(
            InstanceSpec(
                **_plain(image.instances, i, "template", "cost"),
                template=templates[int(row["template"])],
                cost=costs[int(row["cost"])],
            )
            for i, row in enumerate(image.instances)
        )
        self.inst_conns = _numbers(image.inst_conns)

    def _read_tasks(self, image: Image) -> None:
        self.tasks = tuple(
            TaskSpec(
                **_plain(image.tasks, i, "succ_lo", "succ_hi"),
                successors=_numbers(image.succ[row["succ_lo"] : row["succ_hi"]]),
            )
            for i, row in enumerate(image.tasks)
        )
        self.sources = tuple(
            SourceSpec(**_plain(image.sources, i, "flags"), serial=bool(int(row["flags"]) & 1))
            for i, row in enumerate(image.sources)
        )
        self.messages = tuple(
            MessageSpec(**_plain(image.messages, i)) for i in range(len(image.messages))
        )
        self.faults = tuple(FaultSpec(**_plain(image.faults, i)) for i in range(len(image.faults)))
