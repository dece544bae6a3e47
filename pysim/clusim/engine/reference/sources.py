"""Sources of synthetic traffic (section 10)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from clusim.engine.abi import (
    Beyond,
    Kind,
)
from clusim.engine.reference.arbitration import start_transfer
from clusim.engine.reference.instances import first_group
from clusim.engine.reference.packets import Terms, Transfer, steered
from clusim.engine.reference.senders import rate_of
from clusim.engine.reference.specs import (
    SourceSpec,
)

if TYPE_CHECKING:
    from clusim.engine.reference.schedule import ScheduleState


class SourceState:
    """A source in progress; it holds its CTA slot from time 0 on."""

    def __init__(
        self,
        index: int,
        spec: SourceSpec,
        schedule: ScheduleState,
        done_ps: list[int],
    ) -> None:
        self._spec, self._schedule, self._done_ps = spec, schedule, done_ps
        self._machine = schedule.machine
        self._slot = schedule.take_slot(spec.endpoint)
        self._message = spec.msg_lo
        self._who = (Beyond.SOURCE, index)
        control, who = spec.control, self._who
        self._rate = rate_of(control, who, self._machine)
        self._granted_ps: int | None = (
            0  # greatest end of the message before, once known
        )
        self._complete_ps: int | None = (
            0  # completion of the message before, once known
        )
        self._plan()

    def _plan(self) -> None:
        """Plan the start of the next message as soon as its time is known."""
        known = self._granted_ps is not None
        if self._spec.serial:
            known = known and self._complete_ps is not None
        if not known or self._message == self._spec.msg_hi:
            return
        times_ps = [
            self._machine.model.messages[self._message].start_ps,
            self._granted_ps or 0,
        ]
        if self._spec.serial:
            times_ps.append(self._complete_ps or 0)
        self._granted_ps = self._complete_ps = None
        self._machine.at(max(times_ps), self._start, self._who)

    def _start(self) -> None:
        message = self._machine.model.messages[self._message]
        spec = self._spec
        terms = Terms(
            kind=Kind.WRITE if message.via_first is None else Kind.FETCH,
            requester=spec.endpoint,
            targets=steered(message.via_first, message.via_last, message.dst),
            policy=spec.policy,
            packet_bytes=spec.packet_bytes,
            burst=spec.burst,
            vc=spec.vc,
            vc_response=spec.vc,
        )
        transfer = Transfer(
            terms=terms,
            owner=_Message(self, self._message),
            bytes=message.bytes,
            start_ps=self._machine.now_ps,
            cost16=0,
            wires=first_group(self._machine, terms, None),
            base=message.key,
            rate=self._rate,
            spread=spec.spread,
            flow=len(self._machine.model.conns) + self._who[1],
        )
        self._message += 1
        start_transfer(self._machine, spec.endpoint, self._slot, transfer)

    def granted(self, end_ps: int) -> None:
        """Note that all packets of the present message were granted."""
        self._granted_ps = end_ps
        self._plan()

    def complete(self, message: int) -> None:
        """Note the completion of a message, now."""
        self._done_ps[message] = self._machine.now_ps
        self._schedule.message_done(message)
        if message == self._message - 1:
            self._complete_ps = self._machine.now_ps
            if self._spec.serial:
                self._plan()


class _Message:
    """Owner of a message's transfer."""

    def __init__(self, source: SourceState, message: int) -> None:
        self._source, self._message = source, message

    def all_granted(self, end_ps: int) -> None:
        """Notify the source that all packets are granted."""
        self._source.granted(end_ps)

    def note_completion(self, transfer: Transfer, v_ps: int) -> None:
        """Notify the source that the message is complete."""
        transfer.complete = True
        self._source.complete(self._message)
