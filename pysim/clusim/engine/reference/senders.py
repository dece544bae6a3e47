"""Sender policies: rate and window of a flow by the functions of a class (section 5).

The reference calls the policy's functions, the C engine their machine code.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from clusim.engine.abi import (
    NEVER,
    NONE,
    Beyond,
    SenderCall,
    SenderMode,
    Word,
    policy_failed,
)
from clusim.engine.ranges import TIME_END_PS
from clusim.engine.reference.machine import Class, Machine
from clusim.engine.reference.packets import Packet, Transfer
from clusim.engine.reference.receivers import CreditLink
from clusim.engine.reference.specs import ControlSpec, ceil_div, hash32
from clusim.policies.kinds import RAISED, WORDS, SwitchHop

_MOST_RATE = 2**40 - 1
_INT64 = range(-(2**63), 2**63)


class SenderRate:
    """Rate control of a flow by its policy.

    Attributes
    ----------
    injecting : Transfer or None
        Transfer with packets to grant.
    in_flight : int
        Payload granted whose notices have not arrived [bytes]; 0 without them.
    pace_ps : int
        Earliest start of the next packet at the rate [ps].
    sent_bytes, marked_bytes : int
        Payload granted, and payload delivered with a mark [bytes].
    rtt_ps : int
        Round trip of the last notice [ps]; 0 before the first.
    """

    def __init__(
        self, spec: ControlSpec, who: tuple[Beyond, int], machine: Machine
    ) -> None:
        self._spec, self.who = spec, who
        self._policy, self._machine = spec.bound.policy, machine
        machine.controls[who] = self
        self._flow: Any = object.__new__(self._policy.cls)
        for name, value in zip(self._policy.fields, spec.bound.record, strict=True):
            setattr(
                self._flow, name, list(value) if isinstance(value, tuple) else value
            )
        self._flow.key = self._key()
        self._more = (
            self._policy.arguments("acked")[3:]
            if "acked" in self._policy.functions
            else ()
        )
        self._acknowledged = "acked" in self._policy.functions
        self.injecting: Transfer | None = None
        self.in_flight = self.pace_ps = self._next_ps = 0
        self.sent_bytes = self.marked_bytes = self.rtt_ps = 0
        self._last_ps: int | None = None
        self.blocked: list[Callable[[], None]] = []
        self._started = self._failed = False
        self._sent: dict[tuple[int, int], tuple[int, int]] = {}
        self._alarm_ps: int | None = None
        self.credit: CreditLink | None = None
        self._order = (self._number() if spec.receiver else 0, 0)

    def _number(self) -> int:
        """Return the number of the flow: connections, then sources."""
        kind, index = self.who
        return index + len(self._machine.model.conns) * (kind == Beyond.SOURCE)

    def _key(self) -> int:
        """Return the hash of the flow."""
        return hash32(self._machine.model.seed, NONE, self._number())

    @property
    def next_ps(self) -> int:
        """Earliest start of the next packet [ps]."""
        return self._next_ps

    def notice_trimmed(self, packet: Packet) -> None:
        """Ignore it: senders react to losses only."""

    def route_key(self, key: int, wires: int) -> int:
        """Return the route key of the next packet of a pinned transfer, of its queue pair's key."""
        path = self._flow.path
        return (
            hash32(self._machine.model.seed, key, path) // (2 * wires)
            if path
            else key // wires
        )

    def _set_next(self) -> None:
        self._next_ps = (
            NEVER if self.in_flight >= self._flow.window else self.pace_ps
        )

    def sample(self) -> tuple[int, ...]:
        """Return the present state as a row of `clusim.engine.abi.FLOW_SAMPLE`; credit limits the window."""
        window = self._flow.window
        if self.credit is not None and self._acknowledged:
            more = max(0, self.credit.credit)
            window = min(window, self.in_flight + more)
        return (
            self.sent_bytes,
            self.marked_bytes,
            self._flow.rate,
            window,
            self.in_flight,
            self.rtt_ps,
        )

    def start(self, transfer: Transfer) -> None:
        """Begin a transfer; the first starts the policy."""
        self.injecting = transfer
        if not self._started:
            self._started = True
            self._call(SenderCall.START)

    def finish(self) -> None:
        """End the injection of the transfer."""
        self.injecting = None

    def count_sent(self, packet: Packet) -> None:
        """Count a packet granted now; the next one waits for its time."""
        now_ps = self._machine.now_ps
        self.sent_bytes += packet.p
        if self._acknowledged and not packet.unneeded:
            place = id(packet.transfer), packet.number
            self.in_flight += 0 if place in self._sent else packet.p
            self._sent[place] = now_ps, self._flow.path
        self._call(SenderCall.SENT, packet.p)
        self.pace_ps = max(self.pace_ps, now_ps) + ceil_div(
            packet.p << 30, self._flow.rate
        )
        self._machine.in_range(self.pace_ps, self.who)
        self._set_next()

    def notice_delivery(self, packet: Packet) -> None:
        """Send the notice of a packet delivered now, if the policy reads it."""
        now_ps = self._machine.now_ps
        self.marked_bytes += packet.p * packet.marked
        last_ps, interval_ps = self._last_ps, self._spec.cnp_interval_ps
        notifies = packet.marked and (
            last_ps is None or now_ps - last_ps >= interval_ps
        )
        if notifies:
            self._last_ps = now_ps
        sent = None
        if not packet.unneeded:
            sent = self._sent.pop((id(packet.transfer), packet.number), None)
        if sent is None and not notifies:
            return
        notice_ps = now_ps + self._spec.cnp_delay_ps
        trip = None if sent is None else (notice_ps - sent[0], sent[1])
        arrive = partial(self._take_notice, packet, trip, notifies)
        self._machine.plan(notice_ps, Class.NOTIFY, arrive, self.who, self._order)

    def lose(self, packets: list[tuple[Transfer, int]], more_bytes: int) -> None:
        """Notify the policy of lost packets in flight."""
        found = [
            one
            for one in packets
            if self._sent.pop((id(one[0]), one[1]), None) is not None
        ]
        lost_bytes = sum(transfer.packet_size(i) for transfer, i in found)
        if lost_bytes:
            self.in_flight -= lost_bytes
            self._call(SenderCall.LOST, lost_bytes)
            self._update()

    def _take_notice(
        self, packet: Packet, trip: tuple[int, int] | None, notifies: bool
    ) -> None:
        if trip is not None:
            self.in_flight -= packet.p
            self.rtt_ps, path = trip
            more: dict[str, int | list[SwitchHop]] = {
                "path": path,
                "hops": packet.hops,
            }
            further = [more[name] for name in self._more]
            self._call(
                SenderCall.ACKED, packet.p, self.rtt_ps, int(packet.marked), *further
            )
        if notifies:
            self._call(SenderCall.NOTIFIED)
        self._update()

    def _update(self) -> None:
        """Let the flow send after a change of its window."""
        self._set_next()
        transfer = self.injecting
        if transfer is not None:
            for wire in transfer.wires:
                self._machine.expect(transfer, wire)
        self.resume()

    def resume(self) -> None:
        """Let repeats that wait try again."""
        blocked = self.blocked.copy()
        self.blocked.clear()
        for resume in blocked:
            resume()

    def _call(self, call: SenderCall, *arguments: int | list[SwitchHop]) -> None:
        """Call a function of the policy, if it has it, and check its answers."""
        function = self._policy.functions.get(call.name.lower())
        if function is None or self._failed:
            return
        flow, now_ps = self._flow, self._machine.now_ps
        flow.in_flight, due_ps = self.in_flight, flow.timer_ps
        try:
            function(flow, now_ps, *arguments)
        except (ArithmeticError, ValueError, IndexError):
            flow.rate = RAISED
        word, value = self._illegal(now_ps, due_ps)
        if word is not None:
            self._failed = True
            error = policy_failed(
                self._policy, call, (word, value), self.who, now_ps
            )
            self._machine.fail(self.who, error)
            flow.rate, flow.window, flow.timer_ps, flow.path = 1, 1, 0, 0
        self._set_alarm()

    def _illegal(self, now_ps: int, due_ps: int) -> tuple[str | None, int]:
        """Return the first field with an illegal value, and the value; a timer that was due at `due_ps` may stay."""
        flow = self._flow
        for name in self._policy.fields:
            value = getattr(flow, name)
            for word in value if isinstance(value, list) else (value,):
                if word not in _INT64:
                    return name, word
        if not 1 <= flow.rate <= _MOST_RATE:
            return WORDS[Word.RATE], flow.rate
        if flow.window < 1:
            return WORDS[Word.WINDOW], flow.window
        if (
            flow.timer_ps not in (0, due_ps)
            and not now_ps < flow.timer_ps < TIME_END_PS
        ):
            return WORDS[Word.TIMER_PS], flow.timer_ps
        if not 0 <= flow.path < 2**32:
            return WORDS[Word.PATH], flow.path
        return None, 0

    def _set_alarm(self) -> None:
        timer_ps = self._flow.timer_ps
        if timer_ps == 0 or (
            self._alarm_ps is not None and timer_ps >= self._alarm_ps
        ):
            return
        self._alarm_ps = timer_ps
        self._machine.plan(
            timer_ps, Class.ALARM, partial(self._alarm_due, timer_ps), self.who
        )

    def _alarm_due(self, time_ps: int) -> None:
        """Call the timer, if it is due; it is dropped while the flow is idle."""
        if self._alarm_ps != time_ps:
            return
        self._alarm_ps = None
        if self._flow.timer_ps != time_ps:
            self._set_alarm()
            return
        self._flow.timer_ps = 0
        if self.injecting is not None or self.in_flight:
            self._call(SenderCall.TIMER)
            self._update()


def rate_of(
    control: ControlSpec | None, who: tuple[Beyond, int], machine: Machine
) -> SenderRate | None:
    """Return the rate control of a flow; None without one, or if its receivers grant credit."""
    if control is None or control.bound.policy.mode == SenderMode.RECEIVER:
        return None
    return SenderRate(control, who, machine)
