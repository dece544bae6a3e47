"""Receiver policies: credit of flows by the functions of a class (section 5).

The reference calls the policy's functions, the C engine their machine code.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from clusim.engine.abi import (
    NEVER,
    NONE,
    Beyond,
    SenderCall,
    SenderMode,
    policy_failed,
)
from clusim.engine.ranges import TIME_END_PS
from clusim.engine.reference.machine import Class, Machine, Who
from clusim.engine.reference.model import Model
from clusim.engine.reference.packets import Packet, Transfer
from clusim.engine.reference.specs import ControlSpec, hash32
from clusim.policies.kinds import MARK, RAISED, TRIM

_MOST_CREDIT = 2**40 - 1
_MOST_DRAINED = 2**20
_INT64 = range(-(2**63), 2**63)


def credit_control(model: Model, control: ControlSpec | None) -> ControlSpec | None:
    """Return the row of the policy of a flow's receivers; None if they grant no credit."""
    if control is None or control.bound.policy.mode == SenderMode.RECEIVER:
        return control
    return model.controls.get(control.receiver - 1)


@dataclass(slots=True)
class CreditFlow:
    """Counters of a flow over all its receivers.

    Attributes
    ----------
    number, delay_ps : int
        Number of the flow: connections, then sources; delay of its requests and credit [ps].
    sent_bytes, marked_bytes, in_flight : int
        Payload granted, delivered with a mark, and granted without having arrived [bytes].
    last : CreditLink or None
        Receiver of the last transfer.
    """

    who: Who
    number: int
    line_rate: int
    delay_ps: int
    sent_bytes: int = 0
    marked_bytes: int = 0
    in_flight: int = 0
    last: CreditLink | None = None

    def sample(self) -> tuple[int, ...]:
        """Return the present state as a row of `clusim.engine.abi.FLOW_SAMPLE`."""
        more = 0 if self.last is None else max(0, self.last.credit)
        window = self.in_flight + more
        return (
            self.sent_bytes,
            self.marked_bytes,
            self.line_rate,
            window,
            self.in_flight,
            0,
        )


@dataclass(slots=True, eq=False)
class CreditLink:
    """Credit of a flow for transfers to one receiver: their rate control.

    Attributes
    ----------
    number : int
        Number of the flow at the receiver.
    credit : int
        Payload that may be granted, if it is positive [bytes].
    resumed : callable or None
        Lets repeats of the flow try again, with a policy of senders.
    """

    flow: CreditFlow
    receiver: ReceiverState
    number: int
    credit: int = 0
    injecting: Transfer | None = None
    blocked: list[Callable[[], None]] = field(default_factory=list)
    resumed: Callable[[], None] | None = None
    _sent: set[tuple[int, int]] = field(default_factory=set)

    @property
    def next_ps(self) -> int:
        """Time of the next packet: 0, or never without credit."""
        return 0 if self.credit > 0 else NEVER

    def start(self, transfer: Transfer) -> None:
        """Request credit for a transfer."""
        self.injecting = transfer
        self.flow.last = self
        self._request(transfer.bytes, lost=False)

    def finish(self) -> None:
        """End the injection of the transfer."""
        self.injecting = None

    def count_sent(self, packet: Packet) -> None:
        """Count a packet granted now."""
        self.flow.sent_bytes += packet.p
        place = id(packet.transfer), packet.number
        self.credit -= packet.p
        if not packet.unneeded and place not in self._sent:
            self._sent.add(place)
            self.flow.in_flight += packet.p

    def notice_delivery(self, packet: Packet) -> None:
        """Notify the receiver of a packet that arrives now."""
        self.flow.marked_bytes += packet.p * packet.marked
        if packet.unneeded:
            return
        place = id(packet.transfer), packet.number
        if place in self._sent:
            self._sent.remove(place)
            self.flow.in_flight -= packet.p
        arrived = SenderCall.ARRIVED
        self.receiver.call(arrived, self.number, packet.p, MARK * packet.marked)

    def notice_trimmed(self, packet: Packet) -> None:
        """Notify the receiver of the header of a packet."""
        self.receiver.call(SenderCall.ARRIVED, self.number, packet.p, TRIM)

    def lose(self, packets: list[tuple[Transfer, int]], more_bytes: int) -> None:
        """Request credit for packets that are sent again."""
        lost = [one for one in packets if (id(one[0]), one[1]) in self._sent]
        self._sent -= {(id(transfer), i) for transfer, i in lost}
        self.flow.in_flight -= sum(transfer.packet_size(i) for transfer, i in lost)
        if more_bytes > 0:
            self._request(more_bytes, lost=True)

    def route_key(self, key: int, wires: int) -> int:
        """Return the route key of the next packet of a pinned transfer."""
        return key // wires

    def sample(self) -> tuple[int, ...]:
        """Return the present state of the flow."""
        return self.flow.sample()

    def _request(self, size_bytes: int, lost: bool) -> None:
        requested, number = SenderCall.REQUESTED, self.number
        call = partial(self.receiver.call, requested, number, size_bytes, int(lost))
        self.receiver.send(self.flow, call)

    def take_credit(self, size_bytes: int) -> None:
        """Add credit that arrives now."""
        self.credit += size_bytes
        self._update()

    def _update(self) -> None:
        transfer = self.injecting
        if transfer is not None:
            for wire in transfer.wires:
                self.receiver.machine.expect(transfer, wire)
        if self.resumed is not None:
            self.resumed()
        blocked, self.blocked = self.blocked, []
        for resume in blocked:
            resume()


def _object(cls: type[Any], values: dict[str, Any]) -> Any:
    """Return an object of a class with fields, without a call of its constructor."""
    result = object.__new__(cls)
    for name, value in values.items():
        setattr(result, name, list(value) if isinstance(value, tuple) else value)
    return result


class ReceiverState:
    """A receiver of flows of one row of rate controls, with its policy's records."""

    def __init__(
        self, control: ControlSpec, target: int, machine: Machine, flows: int
    ) -> None:
        self.machine, self._policy = machine, control.bound.policy
        record = zip(self._policy.fields, control.bound.record, strict=True)
        self._state: Any = _object(self._policy.cls, dict(record))
        self._state.num_flows = flows
        self._state.key = hash32(machine.model.seed, NONE - 2, target)
        cls = getattr(self._policy.cls, "Flow", object)
        self._flows = [
            _object(cls, self._policy.flow) if self._policy.flow else None
            for _ in range(flows)
        ]
        self.links: list[CreditLink] = []
        self._alarm_ps: int | None = None
        self._failed = False

    def begin(self) -> None:
        """Let the flows begin with their first credit."""
        for link in self.links:
            self._call(SenderCall.START, link.number)
            link.credit = self._state.credit

    def send(self, flow: CreditFlow, action: Callable[[], None]) -> None:
        """Let a request or credit of a flow travel."""
        time_ps = self.machine.now_ps + flow.delay_ps
        order = flow.number, 0
        self.machine.plan(time_ps, Class.NOTIFY, action, flow.who, order)

    def call(self, call: SenderCall, *arguments: int) -> None:
        """Call a function of the policy; its credit travels to the sender."""
        self._call(call, *arguments)
        state = self._state
        credit, state.credit = state.credit, 0
        if credit:
            link = self.links[state.flow]
            self.send(link.flow, partial(link.take_credit, credit))

    def _call(self, call: SenderCall, *arguments: int) -> None:
        function = self._policy.functions.get(call.name.lower())
        state, now_ps = self._state, self.machine.now_ps
        if function is None or self._failed:
            return
        rate, due_ps, state.credit = state.rate, state.timer_ps, 0
        try:
            function(state, now_ps, self._flows, *arguments)
        except (ArithmeticError, ValueError, IndexError):
            state.rate = RAISED
        wrong = self._illegal(rate, due_ps)
        if wrong is not None:
            self._failed = True
            who = self.links[0].flow.who
            error = policy_failed(self._policy, call, wrong, who, now_ps)
            self.machine.fail(who, error)
            state.credit = state.timer_ps = 0
        self._set_alarm()

    def _illegal(self, rate: int, due_ps: int) -> tuple[str, int] | None:
        """Return the first illegal field and its value; a timer that was due at `due_ps` may stay."""
        state, now_ps = self._state, self.machine.now_ps
        for name, word in _all_words([state, *self._flows]):
            if word not in _INT64:
                return name, word
        timer_ps = state.timer_ps
        if state.rate != rate:
            return "rate", state.rate
        if not 0 <= state.credit <= _MOST_CREDIT:
            return "credit", state.credit
        if timer_ps not in (0, due_ps) and not now_ps < timer_ps < TIME_END_PS:
            return "timer_ps", timer_ps
        if not 0 <= state.flow < len(self.links):
            return "flow", state.flow
        return None

    def _set_alarm(self) -> None:
        timer_ps, alarm_ps = self._state.timer_ps, self._alarm_ps
        if timer_ps and (alarm_ps is None or timer_ps < alarm_ps):
            self._alarm_ps = timer_ps
            action, who = partial(self._alarm_due, timer_ps), self.links[0].flow.who
            self.machine.plan(timer_ps, Class.ALARM, action, who)

    def _alarm_due(self, time_ps: int) -> None:
        if self._alarm_ps != time_ps:
            return
        self.machine.drained += self.machine.finished
        if self.machine.drained > _MOST_DRAINED:
            return
        self._alarm_ps = None
        if self._state.timer_ps == time_ps:
            self._state.timer_ps = 0
            self.call(SenderCall.TIMER)
        else:
            self._set_alarm()


def _all_words(records: list[Any]) -> Iterator[tuple[str, int]]:
    """Yield names and values of the words of records."""
    for record in records:
        for name, value in vars(record).items() if record is not None else ():
            for word in value if isinstance(value, list) else (value,):
                yield name, word


def _ends(model: Model) -> Iterator[tuple[ControlSpec, int, CreditFlow]]:
    """Yield control and receiver of each flow that sends on credit, and the flow, with repetitions."""
    for i, conn in enumerate(model.conns):
        control = credit_control(model, conn.control)
        if conn.control is not None and control is not None:
            end = conn.dst if conn.stage is None else conn.stage
            target = end if conn.via_last is None else conn.via_last
            who = Beyond.CONNECTION, i
            yield control, target, _credit_flow(who, i, conn.control)
    for i, source in enumerate(model.sources):
        control, number = credit_control(model, source.control), len(model.conns) + i
        if source.control is None or control is None:
            continue
        flow = _credit_flow((Beyond.SOURCE, i), number, source.control)
        for message in model.messages[source.msg_lo : source.msg_hi]:
            target = message.dst if message.via_last is None else message.via_last
            yield control, target, flow


def _credit_flow(who: Who, number: int, control: ControlSpec) -> CreditFlow:
    line_rate = dict(control.bound.rates)["line_rate"]
    return CreditFlow(who, number, line_rate, control.cnp_delay_ps)


def give_receivers(machine: Machine) -> None:
    """Let receivers with a policy begin, and number their flows."""
    by_receiver: dict[
        tuple[int, int], tuple[ControlSpec, dict[int, CreditFlow]]
    ] = {}
    for control, target, flow in _ends(machine.model):
        entry = by_receiver.setdefault((id(control), target), (control, {}))
        entry[1][flow.number] = flow
    for (_, target), (control, flows) in by_receiver.items():
        receiver = ReceiverState(control, target, machine, len(flows))
        for number, flow in sorted(flows.items()):
            machine.controls[flow.who] = flow
            link = CreditLink(flow, receiver, len(receiver.links))
            receiver.links.append(link)
            machine.credits[number, target] = link
        receiver.begin()
