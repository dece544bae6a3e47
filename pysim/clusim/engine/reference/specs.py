"""Constants of a run as plain Python objects, and the integer arithmetic of the contract.

Names are those of ``clusim.engine.image`` and of the contract; absent indices (`NONE`) are ``None``. The arithmetic
rounds and mixes (section 12). Rate control of a connection or source is in section 5.
"""

from __future__ import annotations

from dataclasses import dataclass

from clusim.engine.abi import Beyond, Kind
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


PAYLOAD_KINDS = frozenset(Kind) - {Kind.READ_REQ, Kind.RED_REQ, Kind.RED_FETCH}
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
        header, most = self.header_bytes[kind], self.largest_payload(kind, packet_bytes)
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
        return min(self.occupancy(kind, self.wire_bytes(kind, 1, 1)) for kind in kinds)

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
    xoff_bytes: int
    xon_bytes: int
    ecn_min_bytes: int
    ecn_max_bytes: int
    src: int
    dst: int
    reverse: int | None
    format: ImageFormat
    ordinal: int
    error_threshold: int
    dim: int
    dateline: int
    ecn_threshold: int
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
    """Constants of a rate control; rates in bytes per 2^30 ps."""

    alpha_timer_ps: int
    increase_timer_ps: int
    cnp_interval_ps: int
    cnp_delay_ps: int
    byte_counter: int
    line_rate: int
    min_rate: int
    additive: int
    hyper: int
    g_65536: int
    fast_recovery: int
    kept_65536: int
    clamp: int
    bound: BoundSender | None  # its sender policy


@dataclass(frozen=True, slots=True)
class SpreadSpec:
    """Spreading of packets over paths, and order at their receiver."""

    gap_ps: int
    nak_ps: int
    reorder_bytes: int
    ordered: int
    estimate: int
    detours: tuple[int, int]  # first target, and the one after the last
    detour_vcs: int
    bias_bytes: int
    minimal_vc: int


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


_ONE = 65536


@dataclass(slots=True)
class _Timer:
    """A periodic timer; `due_ps` is None before it is started."""

    period_ps: int
    due_ps: int | None = None

    def pass_until(self, now_ps: int) -> int:
        """Return the number of due times up to `now_ps`; the next time is later."""
        if self.due_ps is None or self.due_ps > now_ps:
            return 0
        times = (now_ps - self.due_ps) // self.period_ps + 1
        self.due_ps += times * self.period_ps
        return times


class FlowRate:
    """Rate control of one flow, `who`; `rate` and `target` in payload bytes per 2^30 ps."""

    def __init__(self, spec: ControlSpec, who: tuple[Beyond, int]) -> None:
        self.spec, self.who = spec, who
        self.rate = self.target = spec.line_rate
        self.alpha = _ONE
        self.next_ps = 0
        self._by_time = self._by_bytes = self._sent = 0  # T, B, sent
        self._alpha_timer = _Timer(spec.alpha_timer_ps)
        self._increase_timer = _Timer(spec.increase_timer_ps)
        self._last_ps: int | None = None

    def count_grant(self, now_ps: int, p: int) -> None:
        """Count a packet of `p` payload bytes granted now; the next one waits for its time."""
        self.advance(now_ps)
        self._sent += p
        while self._sent >= self.spec.byte_counter:
            self._sent -= self.spec.byte_counter
            self._by_bytes += 1
            self._increase()
        self.next_ps = max(self.next_ps, now_ps) + ceil_div(p << 30, self.rate)

    def answers_mark(self, now_ps: int) -> bool:
        """True if a marked packet delivered now causes a NOTIFY; this starts the interval again."""
        if self._last_ps is not None and now_ps - self._last_ps < self.spec.cnp_interval_ps:
            return False
        self._last_ps = now_ps
        return True

    def notify(self, now_ps: int) -> None:
        """Lower the rate (NOTIFY)."""
        self.advance(now_ps)
        spec, g, rate = self.spec, self.spec.g_65536, self.rate
        if spec.clamp or self._by_time > 0:
            self.target = rate
        kept = (rate * spec.kept_65536) >> 16
        self.rate = max(spec.min_rate, kept, rate - ((rate * self.alpha) >> 17))
        self.alpha = min(_ONE, ((self.alpha * (_ONE - g)) >> 16) + g)
        self._by_time = self._by_bytes = self._sent = 0
        for timer in (self._alpha_timer, self._increase_timer):
            timer.due_ps = now_ps + timer.period_ps

    def advance(self, now_ps: int) -> None:
        """Handle every timer that is due by now; the two timers are independent."""
        for _ in range(self._alpha_timer.pass_until(now_ps)):
            decayed = (self.alpha * (_ONE - self.spec.g_65536)) >> 16
            if decayed == self.alpha:
                break
            self.alpha = decayed
        due = self._increase_timer.pass_until(now_ps)
        while due > 0:
            rate, target = self.rate, self.target
            self._by_time += 1
            due -= 1
            self._increase()
            up = self.target - target
            if self.rate - rate == up:
                steps = self._steady_steps(up, due)
                self.rate += steps * up
                self.target += steps * up
                self._by_time += steps
                due -= steps

    def _steady_steps(self, up: int, due: int) -> int:
        """Return the number of the next `due` steps that add `up` to rate and target.

        A flow may be silent for days, in which its timers are due a million times.
        """
        spec, recovery = self.spec, self.spec.fast_recovery
        if self._by_time < self._by_bytes:
            return 0  # the lesser of both counts still grows, and with it the increase
        if self._by_time < recovery:
            due = min(due, recovery - 1 - self._by_time)
        return min(due, (spec.line_rate - self.target) // up) if up else due

    def _increase(self) -> None:
        spec, recovery = self.spec, self.spec.fast_recovery
        if max(self._by_time, self._by_bytes) >= recovery:
            beyond = min(self._by_time, self._by_bytes) - recovery
            step = spec.hyper * beyond if beyond > 0 else spec.additive
            self.target = min(spec.line_rate, self.target + step)
        self.rate = (self.rate + self.target + 1) // 2
