"""The run loop (section 1), faults (section 11) and the engine protocol of ``clusim.engine.outcome``."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from clusim.base.errors import ScheduleError
from clusim.engine.abi import INSTANCE_STATE, NONE, RECORD, WIRE_COUNTERS, FaultKind, Stop
from clusim.engine.image import Image
from clusim.engine.outcome import NEVER, range_exceeded
from clusim.engine.ranges import first_illegal
from clusim.engine.reference import ends
from clusim.engine.reference.agenda import Class
from clusim.engine.reference.arbitration import phase_b
from clusim.engine.reference.arithmetic import mix
from clusim.engine.reference.laws import check_laws
from clusim.engine.reference.limits import check_sizes
from clusim.engine.reference.machine import Machine
from clusim.engine.reference.model import Model
from clusim.engine.reference.schedule import ScheduleState
from clusim.engine.reference.sources import SourceState
from clusim.engine.reference.specs import FaultSpec

_FINGERPRINTED = (
    "packets",
    "bytes",
    "busy_ps",
    "control_bytes",
    "stall_credit_ps",
    "stall_arbitration_ps",
    "queued_max",
    "replays",
)
_FINGERPRINTED_TOO = ("pauses", "marks", "held_max", "overflows")  # of wires that pause or mark


class ReferenceSimulation:
    """A run of an image by the reference simulator; see `clusim.engine.outcome.Engine`.

    Parameters
    ----------
    image : Image
        Fabric and schedule.
    records : bool
        Whether to keep completion records.

    Raises
    ------
    ScheduleError
        A number of the image is outside its range (`clusim.engine.ranges`), or counts too much. What belongs together
        is not checked as the C engine does: the reference is given images that lowering or a test made.

    Attributes
    ----------
    now_ps : int
        Everything up to and including this time has happened [ps].
    """

    def __init__(self, image: Image, records: bool = True) -> None:
        self.now_ps = 0
        if wrong := first_illegal(image.tables(), image.nvc):
            raise ScheduleError(f"image: {wrong}")
        self._machine = Machine(Model(image))
        check_sizes(self._machine.model)
        self._schedule = ScheduleState(self._machine, records)
        model = self._machine.model
        self._messages_ps = [-1] * len(model.messages)
        self._sources = [
            SourceState(i, spec, self._schedule, self._messages_ps)
            for i, spec in enumerate(model.sources)
        ]
        for i, fault in enumerate(model.faults):
            self._plan_fault(i, fault)
        self._machine.agenda.add(0, Class.TIMER, lambda: None)
        self._final: list[dict[str, int]] | None = None
        self._final_memory: list[int] = []

    def run(self, until_ps: int = NEVER, max_events: int = NEVER) -> Stop:
        """Advance by whole timestamps until done, `until_ps`, `max_events` or a deadlock."""
        used = 0
        if self._machine.beyond is not None:
            raise range_exceeded(*self._machine.beyond)
        while self._final is None:
            time_ps = self._machine.agenda.next_time()
            if time_ps is None:
                return Stop.DEADLOCK
            if time_ps > until_ps:
                self.now_ps = max(self.now_ps, until_ps)
                return Stop.TIME
            if used >= max_events:
                return Stop.EVENTS
            self.now_ps = time_ps
            used += self._timestamp(time_ps)
            if self._schedule.tasks_left == 0 and -1 not in self._messages_ps:
                self._finish()
        return Stop.DONE

    def _timestamp(self, time_ps: int) -> int:
        """Do everything that happens at one time; return the number of events."""
        machine = self._machine
        machine.now_ps = time_ps
        events = 0
        while (action := machine.agenda.pop(time_ps)) is not None:
            action()
            events += 1
        machine.waves.run(self._schedule)
        for kernels in self._schedule.kernels:
            kernels.settle()
        if machine.beyond is None:
            phase_b(machine)
        if machine.beyond is not None:
            raise range_exceeded(*machine.beyond)
        return events

    def _plan_fault(self, index: int, fault: FaultSpec) -> None:
        def apply() -> None:
            if fault.kind == FaultKind.SLOW:
                self._machine.slow_1024[fault.index] = fault.num
            else:
                wire = self._machine.wires[fault.index]
                wire.change_rate(fault.num, fault.den, self._machine.now_ps)
                self._machine.examine.add(fault.index)

        self._machine.agenda.add(fault.time_ps, Class.FAULT, apply, (index, 0))

    def _finish(self) -> None:
        """Keep the counters of the end, so that draining does not change them."""
        self._final = self._read_wires()
        self._final_memory = [memory.bytes_256 for memory in self._machine.memories]

    def _read_wires(self) -> list[dict[str, int]]:
        return [wire.read(self.now_ps) for wire in self._machine.wires]

    def wires(self) -> NDArray[Any]:
        """Return the counters of every wire at `now_ps` (`WIRE_COUNTERS`)."""
        values = self._final if self._final is not None else self._read_wires()
        assert WIRE_COUNTERS.names is not None
        rows = [tuple(row[name] for name in WIRE_COUNTERS.names) for row in values]
        return np.array(rows, WIRE_COUNTERS)

    def task_times(self) -> tuple[NDArray[Any], NDArray[Any]]:
        """Return start and end of every task [ps], -1 where not yet."""
        schedule = self._schedule
        return np.array(schedule.starts_ps, np.int64), np.array(schedule.ends_ps, np.int64)

    def message_times(self) -> NDArray[Any]:
        """Return the completion of every message [ps], -1 where not yet."""
        return np.array(self._messages_ps, np.int64)

    def records(self) -> NDArray[Any]:
        """Return and forget the completion records since the last call (`RECORD`)."""
        rows, self._schedule.records = self._schedule.records, []
        return np.array(rows, RECORD)

    def instance_states(self) -> NDArray[Any]:
        """Return where every instance stands (`INSTANCE_STATE`)."""
        rows = [
            (
                int(instance.state),
                instance.prim,
                NONE if instance.blocked_on is None else instance.blocked_on,
                instance.sequence,
                instance.loop,
            )
            for instance in self._schedule.instances
        ]
        return np.array(rows, INSTANCE_STATE)

    def mem_bytes_256(self) -> NDArray[Any]:
        """Return the memory traffic of communication per endpoint, in 1/256 byte."""
        values = self._final_memory
        if self._final is None:
            values = [memory.bytes_256 for memory in self._machine.memories]
        return np.array(values, np.uint64)

    def fingerprint(self) -> int:
        """Return the run's fingerprint (section 12)."""
        value = self._schedule.fingerprint
        rows = self._final if self._final is not None else self._read_wires()
        for spec, row in zip(self._machine.model.wires, rows, strict=True):
            more = _FINGERPRINTED_TOO if spec.xoff_bytes or spec.ecn_max_bytes else ()
            for name in (*_FINGERPRINTED, *more):
                value = mix(value, row[name])
        return value

    def check_conservation(self) -> None:
        """Let what is under way drain, then raise `InternalError` unless all balances."""
        while (time_ps := self._machine.agenda.next_time()) is not None:
            self._timestamp(time_ps)
        ends.check_balance(self._machine)
        if self._final is not None:
            check_laws(self._machine, self._schedule, self._final, self.now_ps)
