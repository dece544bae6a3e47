"""Wires: rate, queues, credit, owed control bytes and counters (sections 2, 3 and 4)."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from clusim.engine.abi import Kind
from clusim.engine.reference.classes import Classes
from clusim.engine.reference.model import Model
from clusim.engine.reference.packets import Packet
from clusim.engine.reference.specs import PAYLOAD_KINDS, WireSpec, ceil_div, hash32


@dataclass(slots=True)
class Counters:
    """Counters of section 4; the stall times without stalls in progress."""

    packets: int = 0
    grants: int = 0
    bytes: int = 0
    payload: int = 0
    control_bytes: int = 0
    busy_ps: int = 0
    stall_credit_ps: int = 0
    stall_arbitration_ps: int = 0
    queued_bytes: int = 0
    queued_max: int = 0
    replays: int = 0
    overflows: int = 0
    pauses: int = 0
    marks: int = 0
    held_max: int = 0
    drops: int = 0
    dropped_bytes: int = 0
    trims: int = 0
    trimmed_bytes: int = 0


@dataclass(slots=True)
class Pause:
    """Pause instead of credit (section 4), per VC: bytes held, pause asked, sender stopped."""

    held: list[int]
    asked: list[bool]
    stopped: list[bool]


@dataclass(slots=True)
class Wire:
    """One wire's state.

    Attributes
    ----------
    num, den : int
        Present rate; `num` is 0 while the wire is down.
    credit : list of int
        Free bytes of the far buffer, per VC; not used with `pause`.
    pause : Pause or None
        The state of pausing, on wires with `xoff_bytes`.
    classes : Classes or None
        Its classes, with a schedule.
    owed : int
        Control bytes owed, in 1/256 byte.
    queues : dict
        The virtual output queues that are not empty, by candidate index.
    last_granted : int
        Candidate index of the last grant, -1 before the first.
    stalled_since_ps : int or None
        Start of the present credit stall.
    arbitration_counted : bool
        True if the packet on the wire is already counted in `stall_arbitration_ps`.
    forwarded : int
        Packets so far that congestion could have marked.
    header_bytes : int
        Wire bytes of trimmed packets in its queues.
    due_before_ps, bytes_before : int
        Up to the last change of its rate: the least time of its bytes, and their number.
    """

    index: int
    spec: WireSpec
    num: int
    den: int
    credit: list[int]
    pause: Pause | None = None
    classes: Classes | None = None
    rem: int = 0
    free_at_ps: int = 0
    owed: int = 0
    drained_at_ps: int = 0
    queues: dict[int, deque[Packet]] = field(default_factory=dict)
    last_granted: int = -1
    stalled_since_ps: int | None = None
    arbitration_counted: bool = False
    forwarded: int = 0
    header_bytes: int = 0
    due_before_ps: int = 0
    bytes_before: int = 0
    counters: Counters = field(default_factory=Counters)

    @property
    def down(self) -> bool:
        """True if the wire is down by a fault."""
        return self.num == 0

    @property
    def due_ps(self) -> int:
        """Least time of its bytes so far at its rates [ps] (section 12)."""
        size = (self.counters.bytes - self.bytes_before) * min(
            1024, *self.spec.format.service_1024
        )
        return self.due_before_ps + (
            size * self.den // (1024 * self.num) if self.num else 0
        )

    def estimate_ps(self, size_bytes: int) -> int:
        """Return est(b) (section 2), at the image's rate if the wire is down (section 4, 6.)."""
        num, den = (
            (self.spec.rate_num, self.spec.rate_den)
            if self.down
            else (self.num, self.den)
        )
        return ceil_div(size_bytes * den, num)

    def occupy_ps(self, size_bytes: int) -> int:
        """Occupy the wire with `size_bytes`; return how long (section 2)."""
        total = size_bytes * self.den + self.rem
        self.rem = total % self.num
        return total // self.num

    def drain(self, now_ps: int) -> None:
        """Let owed control bytes leave through the time the wire was idle (section 3)."""
        flit = self.spec.format.flit_bytes
        idle_ps = now_ps - max(self.free_at_ps, self.drained_at_ps)
        if idle_ps > 0 and not self.down:
            room = (idle_ps * self.num // self.den) // flit
            flits = min((self.owed >> 8) // flit, room)
            self.owed -= flits * flit * 256
            self.counters.control_bytes += flits * flit
        self.drained_at_ps = now_ps

    def take_control_bytes(self, now_ps: int) -> int:
        """Return the control bytes that precede a packet granted now (section 4, 1.)."""
        self.drain(now_ps)
        flit = self.spec.format.flit_bytes
        control = ((self.owed >> 8) // flit) * flit
        self.owed -= control * 256
        self.counters.control_bytes += control
        return control

    def enqueue(
        self, candidate: int, packet: Packet, model: Model, now_ps: int
    ) -> None:
        """Let a packet enter a virtual output queue (section 4, stall counters)."""
        self.queues.setdefault(candidate, deque()).append(packet)
        packet.entered_ps = now_ps
        counters = self.counters
        counters.queued_bytes += packet.wire_bytes(model, self.index)
        self._count_header(packet, model, 1)
        counters.queued_max = max(counters.queued_max, counters.queued_bytes)
        if self.free_at_ps > now_ps and not self.arbitration_counted:
            counters.stall_arbitration_ps += self.free_at_ps - now_ps
            self.arbitration_counted = True

    def _count_header(self, packet: Packet, model: Model, sign: int) -> None:
        if packet.kind == Kind.TRIMMED:
            self.header_bytes += sign * packet.wire_bytes(model, self.index)

    @property
    def full_bytes(self) -> int:
        """Bytes in its queues without trimmed packets."""
        headers = self.header_bytes if self.spec.queue_bytes else 0
        return self.counters.queued_bytes - headers

    def marks_packet(self, seed: int, size_bytes: int) -> bool:
        """True if the packet that is to enter a queue is marked (section 4); counts the packet."""
        if self.spec.ecn_departure:
            return False
        return self._is_congested(seed, self.full_bytes + size_bytes)

    def mark_departure(self, seed: int, packet: Packet) -> None:
        """Mark a packet that arrived over a wire and left a long queue behind (section 4); counts the packet."""
        spec = self.spec
        if packet.buffer is None or packet.kind == Kind.TRIMMED:
            return
        if spec.ecn_departure and spec.policy is None:
            marked = self._is_congested(seed, self.full_bytes)
            self.counters.marks += marked
            packet.marked |= marked

    def _is_congested(self, seed: int, q: int) -> bool:
        """True if a packet of a queue of `q` bytes is marked; counts the packet."""
        least, most = self.spec.ecn_min_bytes, self.spec.ecn_max_bytes
        if most == 0:
            return False
        n = self.forwarded
        self.forwarded += 1
        marked = q >= most
        if not marked and q > least:
            bound = self.spec.ecn_threshold * (q - least) // (most - least)
            marked = hash32(seed, self.index ^ 2**31, n) < bound
        return marked

    def is_full(self, size_bytes: int, shared: tuple[int, int]) -> bool:
        """True if a packet does not fit into the queues, or into shared memory (all, used) (section 4)."""
        all_bytes, used = shared
        beyond = all_bytes > 0 and used + size_bytes > all_bytes
        return beyond or self.full_bytes + size_bytes > self.spec.queue_bytes

    def has_its_part(self, shared: tuple[int, int]) -> bool:
        """True if the queues have their part of the free shared memory (all, used) (section 4)."""
        spec, free = self.spec, shared[0] - shared[1]
        return (
            shared[0] > 0
            and spec.alpha_1024 > 0
            and self.full_bytes >= (spec.alpha_1024 * free) >> 10
        )

    def overflows_header(self, size_bytes: int, shared: tuple[int, int]) -> bool:
        """True if a trimmed packet does not fit into the queues, or into shared memory (all, used) (section 4)."""
        all_bytes, used = shared
        beyond = all_bytes > 0 and used + size_bytes > all_bytes
        return beyond or self.header_bytes + size_bytes > self.spec.queue_bytes

    def dequeue(self, candidate: int, model: Model) -> Packet:
        """Remove and return the head of a virtual output queue."""
        queue = self.queues[candidate]
        packet = queue.popleft()
        if not queue:
            del self.queues[candidate]
        self.counters.queued_bytes -= packet.wire_bytes(model, self.index)
        self._count_header(packet, model, -1)
        return packet

    def change_rate(self, num: int, den: int, now_ps: int) -> None:
        """Apply a fault of kind 0 (section 11)."""
        self.due_before_ps, self.bytes_before = self.due_ps, self.counters.bytes
        self.num, self.den, self.rem = num, den, 0
        if self.down:
            self.end_credit_stall(now_ps)

    def note_credit_stall(self, now_ps: int) -> None:
        """Start a credit stall: phase B found the wire idle and a ready candidate without credit."""
        if self.stalled_since_ps is None:
            self.stalled_since_ps = now_ps

    def end_credit_stall(self, now_ps: int) -> None:
        """End a credit stall, by a grant or a fault."""
        if self.stalled_since_ps is not None:
            self.counters.stall_credit_ps += now_ps - self.stalled_since_ps
            self.stalled_since_ps = None

    def can_take(self, vc: int, wire_bytes: int) -> bool:
        """True if credit, or pausing, lets a packet leave."""
        if self.pause is not None:
            return not self.pause.stopped[vc]
        return self.credit[vc] >= wire_bytes

    def count_grant(
        self, packet: Packet, model: Model, wire_bytes: int, busy_ps: int
    ) -> None:
        """Count a granted packet (section 4, 7.)."""
        counters = self.counters
        counters.packets += packet.exact_packets(model, self.index)
        counters.grants += 1
        counters.bytes += wire_bytes
        counters.payload += packet.p if packet.kind in PAYLOAD_KINDS else 0
        counters.busy_ps += busy_ps

    def count_arbitration(self, lost: bool, busy_ps: int) -> None:
        """Note whether another candidate was ready at the grant of the packet now on the wire."""
        self.arbitration_counted = lost
        if lost:
            self.counters.stall_arbitration_ps += busy_ps

    def read(self, now_ps: int) -> dict[str, int]:
        """Return the values of the counters at `now_ps` (sections 4 and 12)."""
        values = {name: getattr(self.counters, name) for name in Counters.__slots__}
        beyond_ps = max(0, self.free_at_ps - now_ps)
        values["busy_ps"] -= beyond_ps
        if self.arbitration_counted:
            values["stall_arbitration_ps"] -= beyond_ps
        if self.stalled_since_ps is not None:
            values["stall_credit_ps"] += now_ps - self.stalled_since_ps
        return values
