"""State of a run that the sections share: time, events, waves, wires, memories, flows.

Scheduled events are in the order of section 1 of the contract. The memory of an endpoint is a clock of
accepted bytes (section 8); the waves of phase A are the due work of the present time in its order
(section 1, 5.).

Laws of conservation are checked at the end of a run (section 12).
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Protocol

from clusim.base.errors import InternalError
from clusim.engine.abi import NEVER, Beyond, range_exceeded
from clusim.engine.ranges import MEM_BYTES_256_END, OWED_256_END, TIME_END_PS
from clusim.engine.reference.classes import Classes
from clusim.engine.reference.conservation import OrderCounters, Payload
from clusim.engine.reference.model import Model
from clusim.engine.reference.operations import UnitState, Vertex
from clusim.engine.reference.packets import (
    Buffer,
    Line,
    Packet,
    Transfer,
)
from clusim.engine.reference.specs import FlowRate, Sampled
from clusim.engine.reference.wires import Pause, Wire
from clusim.policies.kinds import ClassHead


class Class(IntEnum):
    """Classes of phase A at one timestamp, in their order; the last two only touch wires."""

    FAULT = 1
    ARRIVE = 2
    RESPOND = 3
    RESULT = 4
    FREE = 5
    PAUSE = 6  # and RESUME
    NOTIFY = 7
    ALARM = 8  # of a sender policy
    REPEAT = 9
    TIMEOUT = 10  # of a queue pair with retransmission
    RESEND = 11
    TIMER = 12
    CREDIT = 13  # adds credit; no other event of phase A depends on it
    WAKE = 14  # adds a wire to phase B of this timestamp


@dataclass(order=True, slots=True)
class _Event:
    time_ps: int
    kind: Class
    major: int  # fault, wire or unit index
    minor: int  # order within `major`
    sequence: int
    action: Callable[[], None] = field(compare=False)


class Scheduler:
    """A heap of events ordered by (time, class, the contract's ids, order of insertion)."""

    def __init__(self) -> None:
        self._heap: list[_Event] = []
        self._sequence = 0

    def add(
        self,
        time_ps: int,
        kind: Class,
        action: Callable[[], None],
        order: tuple[int, int] = (0, 0),
    ) -> None:
        """Let `action` happen at `time_ps`; `order` ranks it inside its class."""
        self._sequence += 1
        event = _Event(time_ps, kind, order[0], order[1], self._sequence, action)
        heapq.heappush(self._heap, event)

    def next_time(self) -> int | None:
        """Return the time of the earliest event [ps], or None."""
        return self._heap[0].time_ps if self._heap else None

    def pop(self, now_ps: int) -> Callable[[], None] | None:
        """Remove and return the next event of `now_ps`, or None after the last."""
        if not self._heap or self._heap[0].time_ps != now_ps:
            return None
        return heapq.heappop(self._heap).action


class Actor(Protocol):
    """The part of the schedule that waves call."""

    def start_task(self, task: int) -> None:
        """Start a task."""
        ...

    def start_instances(self) -> None:
        """Assign free CTA slots to waiting instances."""
        ...

    def advance(self, instance: int) -> None:
        """Advance an instance until it must wait."""
        ...


class Waves:
    """Due work of the present time.

    Attributes
    ----------
    tasks, runnable : set of int
        Tasks after the end of their predecessors; instances that may be able to continue.
    slots_changed : bool
        True if a CTA slot was freed or an instance began to wait for one.
    """

    def __init__(self) -> None:
        self.tasks: set[int] = set()
        self.runnable: set[int] = set()
        self.slots_changed = False
        self._delays: list[Callable[[], None]] = []

    def later(self, action: Callable[[], None]) -> None:
        """Let `action` happen at the beginning of the next wave: a delay of 0."""
        self._delays.append(action)

    def run(self, actor: Actor) -> None:
        """Run waves until no work is due."""
        while self._delays or self.tasks or self.runnable or self.slots_changed:
            delays, self._delays = self._delays, []
            for action in delays:
                action()
            tasks, self.tasks = sorted(self.tasks), set()
            for task in tasks:
                actor.start_task(task)
            self.slots_changed = False
            actor.start_instances()
            runnable, self.runnable = sorted(self.runnable), set()
            for instance in runnable:
                actor.advance(instance)


@dataclass(slots=True)
class MemoryState:
    """The memory server of one endpoint.

    Attributes
    ----------
    cost16 : int
        Present cost of communication, in 2^-16 ps per byte.
    clock16 : int
        Time until which it is taken, in 2^-16 ps.
    bytes_256 : int
        All traffic so far, in 1/256 byte.
    """

    cost16: int
    clock16: int = 0
    bytes_256: int = 0

    def accept_ps(self, size_256: int, now_ps: int) -> int:
        """Charge `size_256` (1/256 byte) at `now_ps`; return when the memory accepts it [ps]."""
        accepted16 = max(self.clock16, now_ps << 16)
        self.clock16 = accepted16 + ((size_256 * self.cost16) >> 8)
        self.bytes_256 += size_256
        return (accepted16 + 65535) >> 16


class Judge(Protocol):
    """Policy of the queues of a wire."""

    def judge(
        self, machine: Machine, packet: Packet, shared: tuple[int, int]
    ) -> int:
        """Return the answer for a packet."""
        ...


class Chooser(Protocol):
    """Policy of the classes of a wire."""

    def choose(self, heads: list[ClassHead]) -> int | None:
        """Return the class of the next packet; None after an illegal answer."""
        ...


class PathChooser(Protocol):
    """Policy of the paths of a switch."""

    def choose(self, packet: Packet, group: tuple[int, ...]) -> int:
        """Return the wire of a packet, of several."""
        ...


Who = tuple[Beyond, int]
"""Owner of a time, named if a run ends because it would leave the ranges (section 1)."""


def _pause(nvc: int) -> Pause:
    return Pause([0] * nvc, [False] * nvc, [False] * nvc)


class Machine:
    """The state of the network that changes during a run.

    Attributes
    ----------
    flows : list of dict
        Per endpoint: the transfer that each CTA slot is injecting.
    thread_free_ps : list of int
        Time at which the host thread of every endpoint is free for its next slice.
    slow_1024 : list of int
        Present speed factor of each endpoint.
    examine : set of int
        Wires that may have changed; phase B examines these.
    beyond : tuple or None
        Object that left the ranges in this timestamp: the run ends with it.
    failures : dict
        Errors of policies by owner.
    controls : dict
        Rate control of connections and sources that have one.
    payload : Payload
        Payload of complete transfers.
    credits : dict
        Rate control of flows that send on credit, by flow number and receiver.
    finished : bool
        True after the end of the run, while packets drain.
    drained : int
        Timers of receivers after the end of the run.
    queues, schedules, paths : dict
        Policies of the queues and of the classes of wires, and of the paths of switches.
    flowlets : dict
        Last wire of each flow to a target at a node, and the time of its last packet there.
    """

    def __init__(self, model: Model) -> None:
        self.model = model
        self.now_ps = 0
        self.scheduler = Scheduler()
        self.waves = Waves()
        self.wires = [
            Wire(
                i,
                spec,
                spec.rate_num,
                spec.rate_den,
                [spec.buffer_bytes] * model.nvc,
                _pause(model.nvc) if spec.xoff_bytes else None,
                Classes(spec.schedule, model.nvc) if spec.schedule else None,
            )
            for i, spec in enumerate(model.wires)
        ]
        self.memories = [MemoryState(spec.mem_cost16) for spec in model.endpoints]
        self.units = [UnitState(i, spec) for i, spec in enumerate(model.units)]
        self.vertices = [Vertex(i, spec) for i, spec in enumerate(model.vertices)]
        self.flows: list[dict[int, Transfer]] = [{} for _ in model.endpoints]
        self.slow_1024 = [spec.slow_1024 for spec in model.endpoints]
        self.thread_free_ps = [0] * len(model.endpoints)
        self.examine: set[int] = set()
        self.beyond: Who | None = None
        self.failures: dict[Who, Exception] = {}
        self.controls: dict[Who, Sampled] = {}
        self.credits: dict[tuple[int, int], FlowRate] = {}
        self.finished, self.drained = False, 0
        self.payload = Payload(len(model.endpoints))
        self.orders = [OrderCounters() for _ in model.targets]
        self.lines: dict[tuple[int, int, tuple[int, ...], int], Line] = {}
        self.turns: dict[tuple[int, int, tuple[int, ...]], int] = {}
        self.flowlets: dict[tuple[int, int, int], tuple[int, int]] = {}
        self.promised: dict[tuple[int, int], int] = {}
        self.queues: dict[int, Judge] = {}
        self.schedules: dict[int, Chooser] = {}
        self.paths: dict[int, PathChooser] = {}

    def refuse(self, who: Who) -> None:
        """Note that something left the ranges; of several in a timestamp the first is named."""
        self.beyond = who if self.beyond is None else min(self.beyond, who)

    def fail(self, who: Who, error: Exception) -> None:
        """End the run with the error of a policy, unless something before it is named."""
        self.failures.setdefault(who, error)
        self.refuse(who)

    def raise_refusal(self) -> None:
        """Raise the error of a refused run: of a policy, or of the ranges."""
        if self.beyond is not None:
            raise self.failures.get(self.beyond) or range_exceeded(*self.beyond)

    def in_range(self, time_ps: int, who: Who) -> bool:
        """True if a time is within the range of a run; if not, the run ends."""
        if time_ps < TIME_END_PS:
            return True
        self.refuse(who)
        return False

    def plan(
        self,
        time_ps: int,
        kind: Class,
        action: Callable[[], None],
        who: Who,
        order: tuple[int, int] = (0, 0),
    ) -> None:
        """Schedule `action` at `time_ps` in a class; from the end of time on, end the run instead."""
        if self.in_range(time_ps, who):
            self.scheduler.add(time_ps, kind, action, order)

    def at(self, time_ps: int, action: Callable[[], None], who: Who) -> None:
        """Let `action` happen as a TIMER at `time_ps`."""
        self.plan(time_ps, Class.TIMER, action, who)

    def accept_ps(self, endpoint: int, size_256: int) -> int:
        """Charge the memory of an endpoint now; return when it accepts (section 8) [ps]."""
        memory = self.memories[endpoint]
        time_ps = memory.accept_ps(size_256, self.now_ps)
        self.in_range(time_ps, (Beyond.ENDPOINT, endpoint))
        if memory.bytes_256 >= MEM_BYTES_256_END:
            self.refuse((Beyond.ENDPOINT, endpoint))
        return time_ps

    def check_owed(self, wire: Wire) -> None:
        """Refuse a run in which a wire owes too much when it might drain (section 3)."""
        if wire.owed >= OWED_256_END:
            self.refuse((Beyond.WIRE, wire.index))

    def look_at(self, wire: int, time_ps: int) -> None:
        """Schedule `wire` for phase B of `time_ps`."""
        if time_ps <= self.now_ps:
            self.examine.add(wire)
        else:
            self.scheduler.add(time_ps, Class.WAKE, lambda: self.examine.add(wire))

    def expect(self, transfer: Transfer, wire: int) -> None:
        """Schedule phase B of a wire for when the transfer's next packet for it is available."""
        i = transfer.next_packet(wire)
        if i is not None and transfer.available_ps(i) < NEVER:
            self.look_at(wire, transfer.available_ps(i))

    def credit_ps(self, wire: int) -> int:
        """Return the travel time of a credit for `wire` (section 4, 5.)."""
        reverse = self.model.wires[wire].reverse
        return self.model.wires[wire if reverse is None else reverse].latency_ps

    def take_in(self, wire: Wire, vc: int, wire_bytes: int) -> None:
        """Count the bytes of a packet that arrives over a wire that pauses (section 4)."""
        pause = wire.pause
        if pause is None:
            return
        pause.held[vc] += wire_bytes
        wire.counters.overflows += pause.held[vc] > wire.spec.buffer_bytes
        wire.counters.held_max = max(wire.counters.held_max, pause.held[vc])
        if pause.held[vc] > wire.spec.xoff_bytes and not pause.asked[vc]:
            pause.asked[vc] = True
            self._signal(wire, vc, stop=True)

    def _signal(self, wire: Wire, vc: int, stop: bool) -> None:
        """Let a PAUSE or RESUME travel to the sender of a wire."""

        def act() -> None:
            assert wire.pause is not None
            wire.pause.stopped[vc] = stop
            wire.counters.pauses += stop
            self.examine.add(wire.index)

        time_ps = self.now_ps + self.credit_ps(wire.index)
        self.plan(
            time_ps, Class.PAUSE, act, (Beyond.WIRE, wire.index), (wire.index, 0)
        )

    def release(self, buffer: Buffer, free_ps: int, granted: bool = False) -> None:
        """Release an input buffer for one holder at `free_ps`; the last returns the credit.

        On a wire that pauses this is a FREE, not before the next timestamp if a grant is the reason (`granted`).
        """
        buffer.holders -= 1
        buffer.free_ps = max(buffer.free_ps, free_ps)
        if buffer.holders:
            return
        who = (Beyond.WIRE, buffer.wire)
        if self.wires[buffer.wire].pause is None:
            time_ps = buffer.free_ps + self.credit_ps(buffer.wire)
            self.plan(
                time_ps, Class.CREDIT, lambda: self._return_credit(buffer), who
            )
        else:
            time_ps = (
                max(buffer.free_ps, self.now_ps + 1) if granted else buffer.free_ps
            )
            order = (buffer.wire, 0)
            self.plan(time_ps, Class.FREE, lambda: self._free(buffer), who, order)

    def _return_credit(self, buffer: Buffer) -> None:
        self.wires[buffer.wire].credit[buffer.vc] += buffer.bytes
        self.examine.add(buffer.wire)

    def _free(self, buffer: Buffer) -> None:
        """Subtract a packet that left its buffer from the bytes held (FREE)."""
        wire, vc = self.wires[buffer.wire], buffer.vc
        assert wire.pause is not None
        wire.pause.held[vc] -= buffer.bytes
        if wire.pause.asked[vc] and wire.pause.held[vc] <= wire.spec.xon_bytes:
            wire.pause.asked[vc] = False
            self._signal(wire, vc, stop=False)

    def usable(self, group: tuple[int, ...]) -> tuple[int, ...]:
        """Return the wires of a group that are up, or the full group if all are down."""
        up = tuple(wire for wire in group if not self.wires[wire].down)
        return up or group


def check_balance(machine: Machine) -> None:
    """Raise `InternalError` unless credits add up and remaining packets have a cause.

    Accepted causes are a wire that is down, and a packet larger than the buffer it must fit in: packets that wait
    for these, directly or in a queue, stay.
    """
    packets = _packets_left(machine)
    if not may_wait(machine):
        if packets:
            raise InternalError(
                f"conservation: {len(packets)} packets left; expected 0"
            )
        machine.payload.check_order()
        if any(unit.in_use_bytes or unit.operations for unit in machine.units):
            raise InternalError(
                "conservation: a reduction unit is in use; all should be idle"
            )
        if any(vertex.open for vertex in machine.vertices):
            raise InternalError(
                "conservation: an aggregation is open; all should be finished"
            )
    _check_buffers(machine, packets)


def may_wait(machine: Machine) -> bool:
    """Return True if a packet may wait for ever: wire down or buffer too small."""
    return any(wire.down or _is_stuck(wire, machine) for wire in machine.wires)


def _is_stuck(wire: Wire, machine: Machine) -> bool:
    if wire.pause is not None:
        return False
    heads = [queue[0] for queue in wire.queues.values() if queue]
    room = wire.spec.buffer_bytes
    return any(head.wire_bytes(machine.model, wire.index) > room for head in heads)


def _packets_left(machine: Machine) -> list[Packet]:
    left = [
        packet
        for wire in machine.wires
        for queue in wire.queues.values()
        for packet in queue
    ]
    left += [packet for unit in machine.units for packet in unit.waiting]
    return left + [
        packet for vertex in machine.vertices for packet in vertex.waiting
    ]


def _check_buffers(machine: Machine, packets: list[Packet]) -> None:
    held: dict[tuple[int, int], int] = {}
    buffers = {id(p.buffer): p.buffer for p in packets if p.buffer is not None}
    for buffer in buffers.values():
        place = (buffer.wire, buffer.vc)
        held[place] = held.get(place, 0) + buffer.bytes
    for wire in machine.wires:
        for vc in range(machine.model.nvc):
            _check_buffer(wire, vc, held.get((wire.index, vc), 0))


def _check_buffer(wire: Wire, vc: int, packets_bytes: int) -> None:
    """Compare credit, or the bytes held by the receiver, with the remaining packets."""
    where = f"conservation: wire {wire.index} VC {vc}"
    pause = wire.pause
    if pause is None:
        total = wire.credit[vc] + packets_bytes
        if total != wire.spec.buffer_bytes:
            raise InternalError(
                f"{where}: {total} bytes of credit and packets; expected {wire.spec.buffer_bytes}"
            )
        return
    if pause.held[vc] != packets_bytes:
        raise InternalError(
            f"{where}: {pause.held[vc]} bytes held; the packets left have {packets_bytes}"
        )
    if pause.asked[vc] != pause.stopped[vc] or (
        pause.asked[vc] and not packets_bytes
    ):
        raise InternalError(f"{where}: still paused, without a cause")
