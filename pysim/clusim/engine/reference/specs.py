"""Constants of a run as plain Python objects, and the integer arithmetic of the contract.

Names are those of ``clusim.engine.image`` and of the contract; absent indices (`NONE`) are ``None``. The arithmetic
rounds and mixes (section 12).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from clusim.engine.abi import Kind
from clusim.policies.choice import BoundSender

_MASK = 2**64 - 1


def ceil_div(a: int, b: int) -> int:
    """Divide, rounding up."""
    return -(-a // b)


def round_up(value: int, unit: int) -> int:
    """Round `value` up to a multiple of `unit`."""
    return ceil_div(value, unit) * unit


def mix(a: int, b: int) -> int:
    """Mix two 64-bit numbers into one (section 12)."""
    x = (a + 0x9E3779B97F4A7C15 + b * 0xBF58476D1CE4E5B9) & _MASK
    x ^= x >> 30
    x = (x * 0xBF58476D1CE4E5B9) & _MASK
    x ^= x >> 27
    x = (x * 0x94D049BB133111EB) & _MASK
    return x ^ (x >> 31)


def hash32(seed: int, wire: int, grant: int) -> int:
    """Return the 32-bit number that decides whether a grant is replayed (sections 4, 12)."""
    return mix(mix(seed, wire), grant) >> 32


PAYLOAD_KINDS = frozenset(Kind) - {
    Kind.READ_REQ,
    Kind.RED_REQ,
    Kind.RED_FETCH,
    Kind.TRIMMED,
}
"""Kinds with payload on the wire; the others only represent it."""


@dataclass(frozen=True, slots=True)
class ImageFormat:
    """A packet format; all but the flit are indexed by kind."""

    flit_bytes: int
    header_bytes: tuple[int, ...]
    control_256: tuple[int, ...]
    service_1024: tuple[int, ...]
    limit_bytes: tuple[int, ...]

    def largest_payload(self, kind: int, packet_bytes: int) -> int:
        """Return the most payload bytes of an exact packet, L (section 3)."""
        return min(packet_bytes, self.limit_bytes[kind])

    def exact_packets(self, kind: int, p: int, packet_bytes: int) -> int:
        """Return the number of exact packets of `p` payload bytes, m (section 3)."""
        return ceil_div(p, self.largest_payload(kind, packet_bytes))

    def wire_bytes(self, kind: int, p: int, packet_bytes: int) -> int:
        """Return the bytes on the wire of a packet for `p` payload bytes (section 3)."""
        header, most = (
            self.header_bytes[kind],
            self.largest_payload(kind, packet_bytes),
        )
        m = self.exact_packets(kind, p, packet_bytes)
        if kind not in PAYLOAD_KINDS:
            return m * round_up(header, self.flit_bytes)
        full = round_up(header + most, self.flit_bytes)
        last = round_up(header + p - (m - 1) * most, self.flit_bytes)
        return (m - 1) * full + last

    def occupancy(self, kind: int, wire_bytes: int) -> int:
        """Return the wire time of `wire_bytes` of this kind, in bytes (section 3)."""
        return (wire_bytes * self.service_1024[kind] + 1023) >> 10

    @property
    def least_occupancy(self) -> int:
        """Least wire time of a packet, of all kinds and payloads [bytes]."""
        kinds = range(len(self.header_bytes))
        return min(
            self.occupancy(kind, self.wire_bytes(kind, 1, 1)) for kind in kinds
        )

    def header_on_wire(self, kind: int) -> int:
        """Return the header rounded up to flits, `up(header_bytes[kind])` (section 4, 6.)."""
        return round_up(self.header_bytes[kind], self.flit_bytes)


@dataclass(frozen=True, slots=True)
class ImageNode:
    """A node; `endpoint` and `unit` are indices or None."""

    latency_ps: int
    store_and_forward: bool
    bridge: bool
    endpoint: int | None
    unit: int | None
    zone: int
    route_lo: int
    wide_lo: int
    wide_stride: int
    shared_bytes: int
    policy: ControlSpec | None
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
class ClassSchedule:
    """Schedule of the classes of an output, by VC."""

    priority: tuple[int, ...]
    quantum: tuple[int, ...]
    policy: ControlSpec | None


@dataclass(frozen=True, slots=True)
class WireSpec:
    """A wire's constants; the rate is the one at time 0."""

    rate_num: int
    rate_den: int
    latency_ps: int
    buffer_bytes: int
    replay_ps: int
    xoff_bytes: int
    xon_bytes: int
    ecn_min_bytes: int
    ecn_max_bytes: int
    queue_bytes: int
    src: int
    dst: int
    reverse: int | None
    format: ImageFormat
    ordinal: int
    error_threshold: int
    dim: int
    dateline: int
    ecn_threshold: int
    alpha_1024: int
    red: bool
    trim_vc: int
    schedule: ClassSchedule | None
    policy: ControlSpec | None
    ecn_departure: bool
    in_local: int  # index among the incoming wires of dst


@dataclass(frozen=True, slots=True)
class TargetSpec:
    """A place that packets can be steered to: an endpoint or a NIC."""

    node: int
    zone: int
    local: int
    wide: int


@dataclass(frozen=True, slots=True)
class UnitSpec:
    """A switch's reduction unit."""

    latency_ps: int
    capacity_bytes: int
    node: int
    cost16: int


@dataclass(frozen=True, slots=True)
class VertexSpec:
    """A vertex of an aggregation tree: of a member (`endpoint`) or a reduction unit (`unit`)."""

    parent: int | None
    unit: int | None
    endpoint: int | None
    path_up: tuple[int, ...]  # empty at the root
    path_down: tuple[int, ...]
    children: tuple[int, ...]
    slots: int


@dataclass(frozen=True, slots=True)
class ControlSpec:
    """Rate control of a flow: the delays of its notices, and its policy; DCQCN is one."""

    cnp_interval_ps: int
    cnp_delay_ps: int
    bound: BoundSender
    receiver: int  # one more than the row of the policy of its receivers, or 0


@dataclass(frozen=True, slots=True)
class SpreadSpec:
    """Spreading of packets over paths, and order at their receiver."""

    gap_ps: int
    nak_ps: int
    timeout_ps: int
    reorder_bytes: int
    ordered: int
    estimate: int
    detours: tuple[int, int]  # first target, and the one after the last
    detour_vcs: int
    bias_bytes: int
    minimal_vc: int
    selective: bool
    retries: int
    trimmed: bool


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
    via_first: int | None  # targets
    via_last: int | None
    stage: int | None  # endpoint
    control: ControlSpec | None
    vertex: int | None  # kind 4: the member
    queue_keys: tuple[int, ...]
    split: bool
    spread: SpreadSpec | None


@dataclass(frozen=True, slots=True)
class CostSpec:
    """Step costs of a protocol."""

    fixed_ps: int
    after_ps: int
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
    thread: int | None


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
    control: ControlSpec | None
    spread: SpreadSpec | None


@dataclass(frozen=True, slots=True)
class MessageSpec:
    """One message of a source."""

    start_ps: int
    bytes: int
    dst: int
    key: int
    via_first: int | None
    via_last: int | None


@dataclass(frozen=True, slots=True)
class FaultSpec:
    """A change at a given time."""

    time_ps: int
    num: int
    den: int
    kind: int
    index: int


class Sampled(Protocol):
    """Counters of a flow with rate control."""

    def sample(self) -> tuple[int, ...]:
        """Return the present state as a row of `clusim.engine.abi.FLOW_SAMPLE`."""
        ...


class FlowRate(Protocol):
    """Rate control of a connection or source, or of its transfers to one receiver."""

    @property
    def next_ps(self) -> int:
        """Earliest start of the next packet [ps]."""
        ...

    blocked: list[Callable[[], None]]
    """Repeats that wait for the window or for credit."""

    def lose(self, packets: list[tuple[Any, int]], more_bytes: int) -> None:
        """Packets of transfers were found lost, now; `more_bytes` more wait to be sent again."""
        ...

    def start(self, transfer: Any) -> None:
        """A transfer starts, now."""
        ...

    def finish(self) -> None:
        """All packets of the transfer were granted, now."""
        ...

    def count_sent(self, packet: Any) -> None:
        """A packet was granted, now."""
        ...

    def notice_delivery(self, packet: Any) -> None:
        """A packet was delivered, now."""
        ...

    def notice_trimmed(self, packet: Any) -> None:
        """The header of a packet arrived, now."""
        ...

    def route_key(self, key: int, wires: int) -> int:
        """Return the route key of the next packet of a pinned transfer."""
        ...
