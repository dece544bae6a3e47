"""Policies of switches by the function of a class: queues and classes of wires (section 4), paths (section 6)."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from clusim.engine.abi import NONE, Beyond, SenderCall, policy_failed
from clusim.engine.reference.machine import Machine, Who
from clusim.engine.reference.packets import Packet
from clusim.engine.reference.specs import ControlSpec, hash32
from clusim.engine.reference.wires import Wire
from clusim.policies.kinds import ACCEPT, DROP, RAISED, ClassHead, OutputWire

_ENDLESS = 2**62


class PlacePolicy:
    """A policy of a wire or switch, with its state."""

    def __init__(
        self, spec: ControlSpec, who: Who, machine: Machine, salt: int
    ) -> None:
        self._policy, self._who = spec.bound.policy, who
        self._machine = machine
        self._state: Any = object.__new__(self._policy.cls)
        for name, value in zip(self._policy.fields, spec.bound.record, strict=True):
            setattr(
                self._state, name, list(value) if isinstance(value, tuple) else value
            )
        self._state.key = hash32(machine.model.seed, salt, who[1])
        self._failed = False

    def _ask(
        self, call: SenderCall, legal: Collection[int], *arguments: Any
    ) -> int | None:
        """Return the answer of a function; None after an illegal one."""
        state, rate = self._state, self._state.rate
        if self._failed:
            return None
        answer = RAISED
        function = self._policy.functions[call.name.lower()]
        try:
            answer = state.path = function(state, self._machine.now_ps, *arguments)
        except (ArithmeticError, ValueError, IndexError):
            state.rate = RAISED
        if state.rate == rate and answer in legal:
            return answer
        self._failed = True
        field = ("rate", state.rate) if state.rate != rate else ("path", answer)
        who, now_ps = self._who, self._machine.now_ps
        self._machine.fail(
            who, policy_failed(self._policy, call, field, who, now_ps)
        )
        return None


class WirePolicy(PlacePolicy):
    """A policy of a wire, with its rate."""

    def __init__(
        self, spec: ControlSpec, wire: Wire, machine: Machine, salt: int
    ) -> None:
        super().__init__(spec, (Beyond.WIRE, wire.index), machine, salt)
        self._wire = wire
        rate = (wire.spec.rate_num << 30) // wire.spec.rate_den
        self._state.rate = self._state.line_rate = rate


class WireSchedule(WirePolicy):
    """The policy of the classes of a wire."""

    def choose(self, heads: list[ClassHead]) -> int | None:
        """Return the class of the next packet; None after an illegal answer."""
        legal = [vc for vc, head in enumerate(heads) if head.size_bytes]
        return self._ask(SenderCall.NEXT, legal, heads)


class WireQueue(WirePolicy):
    """The policy of the queues of a wire."""

    def judge(
        self, machine: Machine, packet: Packet, shared: tuple[int, int]
    ) -> int:
        """Return the answer for a packet that is to enter a queue, given shared memory (all, used)."""
        wire = self._wire
        free = max(0, shared[0] - shared[1])
        if not shared[0]:
            room = wire.spec.queue_bytes
            free = max(0, room - wire.full_bytes) if room else _ENDLESS
        arguments = (
            packet.wire_bytes(machine.model, wire.index),
            wire.full_bytes,
            free,
            packet.vc,
        )
        answer = self._ask(SenderCall.ENQUEUE, range(ACCEPT, DROP + 1), *arguments)
        return ACCEPT if answer is None else answer


class SwitchPaths(PlacePolicy):
    """The policy of the paths of a switch."""

    def choose(self, packet: Packet, group: tuple[int, ...]) -> int:
        """Return the wire of a packet, of several; the first after an illegal answer."""
        machine, key = self._machine, packet.key
        draw = hash32(machine.model.seed, self._who[1], key)
        rows = [_output(machine.wires[wire]) for wire in group]
        arguments = (packet.p, key, packet.transfer.flow, draw, rows)
        answer = self._ask(SenderCall.CHOOSE, range(len(group)), *arguments)
        return group[0 if answer is None else answer]


def _output(wire: Wire) -> OutputWire:
    """Return the state of a wire for a policy of paths (section 6)."""
    spec = wire.spec
    credits = wire.credit
    if wire.pause is not None:
        credits = [spec.buffer_bytes * (not stop) for stop in wire.pause.stopped]
    num, den = (spec.rate_num, spec.rate_den) if wire.down else (wire.num, wire.den)
    rate = (num << 30) // den
    return OutputWire(wire.counters.queued_bytes, sum(credits), rate, wire.index)


def give_policies(machine: Machine) -> None:
    """Let the queues, classes and paths with a policy begin with its state."""
    for number, node in enumerate(machine.model.nodes):
        if node.policy is not None:
            who = Beyond.SWITCH, number
            paths = SwitchPaths(node.policy, who, machine, NONE - 4)
            machine.paths[number] = paths
    for wire in machine.wires:
        queue, schedule = wire.spec.policy, wire.spec.schedule
        if queue is not None:
            judge = WireQueue(queue, wire, machine, NONE - 1)
            machine.queues[wire.index] = judge
        if schedule is not None and schedule.policy is not None:
            chooser = WireSchedule(schedule.policy, wire, machine, NONE - 3)
            machine.schedules[wire.index] = chooser
