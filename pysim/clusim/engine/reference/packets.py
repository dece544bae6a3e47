"""Packets, buffers and transfers of the reference engine (sections 3 and 5 of the contract)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from clusim.engine.abi import NONE, Kind, Policy
from clusim.engine.reference.specs import (
    FlowRate,
    SpreadSpec,
    ceil_div,
)
from clusim.policies.kinds import SwitchHop

if TYPE_CHECKING:
    from clusim.engine.reference.model import Model


class TransferOwner(Protocol):
    """Owner of a transfer: an instance or a source."""

    def all_granted(self, end_ps: int) -> None:
        """The last packet was granted; `end_ps` is the greatest end of the packets."""
        ...

    def note_completion(self, transfer: Transfer, v_ps: int) -> None:
        """The transfer is complete, now, at `v_ps`."""
        ...


def steered(
    via_first: int | None, via_last: int | None, dst: int
) -> tuple[int, ...]:
    """Return the targets of a packet, in order (section 5)."""
    return tuple(
        target for target in (via_first, via_last, dst) if target is not None
    )


@dataclass(frozen=True, slots=True)
class Terms:
    """Properties that a transfer inherits from its connection or source."""

    kind: int  # of the packets injected: WRITE, FETCH, READ_REQ, MCAST, RED_REQ or AGG_UP
    requester: int  # endpoint
    targets: tuple[
        int, ...
    ]  # empty where a unit, a multicast group or a tree is addressed
    policy: int
    packet_bytes: int
    burst: int
    vc: int
    vc_response: int
    path: tuple[int, ...] | None = None
    path_back: tuple[int, ...] | None = None
    members: tuple[int, ...] = ()
    multicast_result: bool = False  # REDUCE_MCAST
    window_bytes: int = 0
    vertex: int | None = None  # AGGREGATE: the member

    @property
    def answered(self) -> bool:
        """True if every packet has a response, so that windows apply."""
        return self.kind in (Kind.READ_REQ, Kind.RED_REQ, Kind.AGG_UP)


@dataclass(slots=True)
class QueuePair:
    """A queue pair whose packets are accepted in order only; packets have numbers in it, over its transfers.

    Attributes
    ----------
    sent : list
        Transfer and number in it of every packet of the started transfers.
    expected : int
        Number of the next packet to be accepted.
    kept : dict
        Early packets by number, with the wires over which they arrived.
    refused, lost : bool
        True while a refusal is on its way to the sender; if a packet was dropped after the last had reached it.
    refused_at : int or None
        `expected` at the last refusal.
    seen : int
        One more than the highest number that arrived.
    progress_ps, tries : int
        Last time at which a packet was accepted or repeated [ps]; timeouts since a packet was accepted.
    timing : bool
        True if a TIMEOUT is scheduled.
    """

    sent: list[tuple[Transfer, int]] = field(default_factory=list)
    expected: int = 0
    kept: dict[int, tuple[Packet, int]] = field(default_factory=dict)
    kept_bytes: int = 0
    refused: bool = False
    lost: bool = False
    refused_at: int | None = None
    seen: int = 0
    progress_ps: int = 0
    tries: int = 0
    timing: bool = False

    def accept(self, now_ps: int) -> None:
        """Count the expected packet as accepted."""
        self.expected += 1
        self.seen = max(self.seen, self.expected)
        self.progress_ps, self.tries = now_ps, 0

    def knows(self, number: int) -> bool:
        """True if a packet was accepted or is kept."""
        return number < self.expected or number in self.kept

    def list_lost(self, numbers: range | None) -> list[int]:
        """Return granted packets that are not accepted: all, or those of `numbers` that are not kept."""
        all_left = range(self.expected, len(self.sent))
        return [n for n in all_left if self._is_lost(n, numbers)]

    def _is_lost(self, number: int, numbers: range | None) -> bool:
        transfer, i = self.sent[number]
        chosen = numbers is None or (number in numbers and number not in self.kept)
        return chosen and transfer.was_granted(i)


@dataclass(slots=True)
class Line:
    """Transfers of a queue pair, or of several over which the packets of each transfer alternate.

    Attributes
    ----------
    pairs : tuple of QueuePair
        Queue pairs, by turn of the packets.
    repeats : int
        Packets that wait to be sent again.
    newest : Transfer or None
        The last transfer that started.
    backlog : list
        With retransmission: packets to repeat that are in no queue, as queue pairs and numbers.
    busy : bool
        True while a repeat is in a queue or on its wire, or waits for a time or a window.
    """

    pairs: tuple[QueuePair, ...] = ()
    repeats: int = 0
    newest: Transfer | None = None
    backlog: list[tuple[QueuePair, int]] = field(default_factory=list)
    busy: bool = False

    def start(self, transfer: Transfer) -> None:
        """Let the packets of a transfer follow."""
        transfer.line, self.newest = self, transfer
        transfer.first = [len(pair.sent) for pair in self.pairs]
        for i in range(transfer.count):
            self.pairs[i % len(self.pairs)].sent.append((transfer, i))


@dataclass(slots=True)
class Transfer:
    """A transfer being injected and delivered (section 5).

    Attributes
    ----------
    wires : tuple of int
        The first-hop group, without the wires that were down at the start.
    base : int
        The running packet count `b` of the connection before this transfer.
    granted, outstanding : dict
        Granted packets, and granted requests without a response, per first-hop wire.
    rate : FlowRate or None
        Rate control of its connection or source.
    first_number : int
        AGGREGATE: number of its first packet.
    queues : tuple of int
        Keys over which its packets alternate; empty if they all have `base`.
    spread, flow : SpreadSpec or None, int
        Spreading of its packets, and number of its connection or source.
    line, first : Line, list of int
        Its line of queue pairs, and the number of its first packet in each; without order an empty one.
    """

    terms: Terms
    owner: TransferOwner
    bytes: int
    start_ps: int
    cost16: int
    wires: tuple[int, ...]
    base: int = 0
    rate: FlowRate | None = None
    first_number: int = 0
    queues: tuple[int, ...] = ()
    spread: SpreadSpec | None = None
    flow: int = 0
    line: Line = field(default_factory=Line, compare=False)
    first: list[int] = field(default_factory=list)
    granted: dict[int, int] = field(default_factory=dict)
    outstanding: dict[int, int] = field(default_factory=dict)
    greatest_end_ps: int = 0
    delivered: int = 0
    delivered_bytes: int = 0
    visible_ps: int = 0
    complete: bool = False
    last_end_wire: int = NONE
    last_visible_wire: int = NONE

    def note_end(self, end_ps: int, wire: int) -> None:
        """Count a packet that left; remember the wire of the last to end."""
        if (end_ps, -wire) > (self.greatest_end_ps, -self.last_end_wire):
            self.greatest_end_ps, self.last_end_wire = end_ps, wire

    def note_visible(self, visible_ps: int, wire: int) -> None:
        """Count a packet that is delivered; remember the wire of the last to be visible."""
        if (visible_ps, -wire) > (self.visible_ps, -self.last_visible_wire):
            self.visible_ps, self.last_visible_wire = visible_ps, wire

    @property
    def stride(self) -> int:
        """Payload bytes of a full packet, P0*k."""
        return self.terms.packet_bytes * self.terms.burst

    @property
    def count(self) -> int:
        """Packets of the transfer, N."""
        return ceil_div(self.bytes, self.stride)

    @property
    def deliveries(self) -> int:
        """Deliveries that complete the transfer (section 6)."""
        terms = self.terms
        copies = terms.kind == Kind.MCAST or terms.multicast_result
        return self.count * (len(terms.members) if copies else 1)

    def packet_size(self, i: int) -> int:
        """Return the payload bytes `p` of packet `i`."""
        return min(self.stride, self.bytes - i * self.stride)

    def available_ps(self, i: int) -> int:
        """Return the time from which packet `i` can be granted [ps]."""
        time_ps = self.start_ps + ((i * self.stride * self.cost16) >> 16)
        return time_ps if self.rate is None else max(time_ps, self.rate.next_ps)

    def route_key(self, i: int) -> int:
        """Return the route key of packet `i`."""
        if self.terms.policy == Policy.PINNED:
            if self.queues:
                return self.queues[i % len(self.queues)] // len(self.wires)
            if self.rate is not None and self.terms.path is None:
                return self.rate.route_key(self.base, len(self.wires))
            return self.base // len(self.wires)
        count = (self.base + i) % 2**32
        return (
            count // len(self.wires) if self.terms.policy == Policy.STRIPE else count
        )

    def next_packet(self, wire: int) -> int | None:
        """Return the lowest ungranted packet that belongs to `wire`, or None."""
        if wire not in self.wires:
            return None
        number, n = self.wires.index(wire), len(self.wires)
        if self.terms.policy == Policy.STRIPE:
            i = (number - self.base) % n + n * self.granted.get(wire, 0)
        elif self.terms.policy == Policy.PINNED and number != self.base % n:
            return None
        else:
            i = self.granted_count
        return i if i < self.count else None

    def was_granted(self, i: int) -> bool:
        """True if packet `i` was granted."""
        if self.terms.policy != Policy.STRIPE:
            return i < self.granted_count
        n = len(self.wires)
        return i // n < self.granted.get(self.wires[(self.base + i) % n], 0)

    def place(self, i: int) -> tuple[QueuePair, int]:
        """Return the queue pair of packet `i`, and its number there."""
        turn = i % len(self.line.pairs)
        return self.line.pairs[turn], self.first[turn] + i // len(self.line.pairs)

    def packet(self, i: int, wire: int) -> Packet:
        """Return packet `i` as it would leave on `wire`, without its VC there."""
        terms = self.terms
        return Packet(
            transfer=self,
            kind=terms.kind,
            p=self.packet_size(i),
            targets=terms.targets,
            key=self.route_key(i),
            first_vc=terms.vc,
            vc=terms.vc,
            request_wire=wire,
            path=terms.path,
            vertex=terms.vertex,
            number=(self.first_number + i) % 2**32,
        )

    @property
    def granted_count(self) -> int:
        """Packets granted so far."""
        return sum(self.granted.values())

    def window_open(self, wire: int) -> bool:
        """True if the window lets one more request leave on `wire`."""
        terms = self.terms
        if self.line.repeats:
            return False
        if terms.window_bytes == 0 or not terms.answered:
            return True
        if terms.policy == Policy.ADAPTIVE:
            allowed = max(1, terms.window_bytes // self.stride)
            return sum(self.outstanding.values()) < allowed
        n = 1 if terms.policy == Policy.PINNED else len(self.wires)
        allowed = max(1, terms.window_bytes // (n * self.stride))
        return self.outstanding.get(wire, 0) < allowed


@dataclass(slots=True)
class Buffer:
    """Room taken in the receive buffer of `wire`; copies of a multicast packet share it."""

    wire: int
    vc: int
    bytes: int
    holders: int = 1
    free_ps: int = 0


@dataclass(slots=True)
class Packet:
    """A packet (a burst of `m` exact packets) in flight.

    Attributes
    ----------
    targets : tuple of int
        Targets of its steering, in order; empty for a RED_REQ, RED_DATA, a MCAST packet before its fan-out and
        packets towards a unit's vertex.
    first_vc : int
        Its VC before any dateline: `vc` or `vc_response`.
    vc : int
        Its VC on the present wire or on the wire for which it waits.
    arrived_over : int or None
        The last wire that it crossed; None at its origin.
    request_wire : int
        First-hop wire of its original request; the window is counted there.
    operation : int or None
        Operation of a reduction unit to which it belongs.
    vertex, number : int or None
        The vertex with the `path_up` or `path_down` that it follows, and its number there.
    marked : bool
        True if it met congestion.
    away, decided : bool
        True on a detour (`targets` begins with its turning point), and after the decision on one.
    repeated : bool
        True if it waits to be sent again.
    promised : bool
        True if it waits, with credit, on a minimal path.
    unneeded, whole : bool
        True if it was accepted already when its sender repeated it; if it is dropped, and not trimmed.
    entered_ps : int
        Time at which it entered its queue [ps].
    hops : list
        Its telemetry (section 5).
    """

    transfer: Transfer
    kind: int
    p: int
    targets: tuple[int, ...]
    key: int
    first_vc: int
    vc: int
    request_wire: int
    path: tuple[int, ...] | None = None
    hop: int = 0
    arrived_over: int | None = None
    buffer: Buffer | None = None
    operation: int | None = None
    vertex: int | None = None
    number: int = 0
    marked: bool = False
    away: bool = False
    decided: bool = False
    repeated: bool = False
    promised: bool = False
    unneeded: bool = False
    whole: bool = False
    entered_ps: int = 0
    hops: list[SwitchHop] = field(default_factory=list)

    @property
    def on_last_wire(self) -> bool:
        """True if the wire it is on, or waits for, is the last of its explicit path."""
        return self.path is not None and self.hop == len(self.path) - 1

    def exact_packets(self, model: Model, wire: int) -> int:
        """Return the number of exact packets on `wire`, m."""
        form = model.wires[wire].format
        return form.exact_packets(
            self.kind, self.p, self.transfer.terms.packet_bytes
        )

    @property
    def adaptive(self) -> bool:
        """True if it chooses its wires by their load."""
        spread = self.transfer.spread
        by_flowlet = spread is not None and spread.gap_ps > 0
        return by_flowlet or self.transfer.terms.policy == Policy.ADAPTIVE

    @property
    def has_retransmission(self) -> bool:
        """True if its sender repeats it after a loss."""
        spread = self.transfer.spread
        return spread is not None and spread.timeout_ps > 0

    def wire_bytes(self, model: Model, wire: int, kind: int | None = None) -> int:
        """Return its bytes on `wire`, as the kind it is or will be there."""
        form = model.wires[wire].format
        kind = self.kind if kind is None else kind
        return form.wire_bytes(kind, self.p, self.transfer.terms.packet_bytes)

    def occupancy(self, model: Model, wire: int, kind: int | None = None) -> int:
        """Return its wire time on `wire`, in bytes, as the kind that it has or will have there."""
        form = model.wires[wire].format
        return form.occupancy(
            self.kind if kind is None else kind, self.wire_bytes(model, wire, kind)
        )
