"""Policies of the queues of wires: accept, mark, trim or drop by the function of a class (section 4)."""

from __future__ import annotations

from typing import Any

from clusim.engine.abi import NONE, Beyond, SenderCall, policy_failed
from clusim.engine.reference.machine import Machine
from clusim.engine.reference.packets import Packet
from clusim.engine.reference.specs import ControlSpec, hash32
from clusim.engine.reference.wires import Wire
from clusim.policies.sender import ACCEPT, DROP, RAISED

_ENDLESS = 2**62


class WireQueue:
    """The policy of the queues of a wire, with its state."""

    def __init__(self, spec: ControlSpec, wire: Wire, seed: int) -> None:
        self._policy, self._wire = spec.bound.policy, wire
        self._state: Any = object.__new__(self._policy.cls)
        for name, value in zip(self._policy.fields, spec.bound.record, strict=True):
            setattr(
                self._state, name, list(value) if isinstance(value, tuple) else value
            )
        rate = (wire.spec.rate_num << 30) // wire.spec.rate_den
        self._state.rate = self._state.line_rate = rate
        self._state.key = hash32(seed, NONE - 1, wire.index)
        self._failed = False

    def judge(
        self, machine: Machine, packet: Packet, shared: tuple[int, int]
    ) -> int:
        """Return the answer for a packet that is to enter a queue, given shared memory (all, used)."""
        if self._failed:
            return ACCEPT
        wire, state, rate = self._wire, self._state, self._state.rate
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
        answer = RAISED
        try:
            answer = self._policy.functions["enqueue"](
                state, machine.now_ps, *arguments
            )
            state.path = answer
        except (ArithmeticError, ValueError, IndexError):
            state.rate = RAISED
        if state.rate == rate and ACCEPT <= answer <= DROP:
            return answer
        self._failed = True
        field = ("rate", state.rate) if state.rate != rate else ("path", answer)
        who = (Beyond.WIRE, wire.index)
        machine.fail(
            who,
            policy_failed(
                self._policy, SenderCall.ENQUEUE, field, who, machine.now_ps
            ),
        )
        return ACCEPT


def give_policies(machine: Machine) -> None:
    """Let the queues of wires with a policy begin with its state."""
    machine.queues = {
        wire.index: WireQueue(wire.spec.policy, wire, machine.model.seed)
        for wire in machine.wires
        if wire.spec.policy is not None
    }
