"""The run loop (section 1), faults (section 11) and the protocol `Engine`."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clusim.base.errors import ScheduleError
from clusim.engine.abi import (
    FLOW_SAMPLE,
    INSTANCE_STATE,
    NEVER,
    NONE,
    ORDER_COUNTERS,
    RECORD,
    WIRE_COUNTERS,
    FaultKind,
    Stop,
)
from clusim.engine.image import Image
from clusim.engine.ranges import (
    first_illegal,
)
from clusim.engine.reference import machine
from clusim.engine.reference.arbitration import phase_b
from clusim.engine.reference.conservation import OrderCounters
from clusim.engine.reference.machine import Class, Machine
from clusim.engine.reference.model import Model
from clusim.engine.reference.queues import give_policies
from clusim.engine.reference.receivers import give_receivers
from clusim.engine.reference.run_laws import check_laws
from clusim.engine.reference.sampling import Samples
from clusim.engine.reference.schedule import ScheduleState
from clusim.engine.reference.sizes import check_sizes
from clusim.engine.reference.sources import SourceState
from clusim.engine.reference.specs import (
    FaultSpec,
    mix,
)

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
_FINGERPRINTED_TOO = (
    "pauses",
    "marks",
    "held_max",
    "overflows",
)  # of wires that pause or mark


class ReferenceSimulation:
    """A run of an image by the reference simulator; see `clusim.engine.abi.Engine`.

    Parameters
    ----------
    image : Image
        Topology and schedule.
    records : bool
        True to keep completion records.

    Raises
    ------
    ScheduleError
        A number of the image is outside its range (`clusim.engine.ranges`), or counts too much. Unlike the C
        engine, the reference does not check the consistency of tables: its images are from lowering or a test.

    Attributes
    ----------
    now_ps : int
        Every event up to and including this time has happened [ps].
    """

    def __init__(self, image: Image, records: bool = True) -> None:
        self.now_ps = 0
        if wrong := first_illegal(image.tables(), image.nvc):
            raise ScheduleError(f"image: {wrong}")
        self._machine = Machine(Model(image))
        check_sizes(self._machine.model)
        image.check_senders()
        give_policies(self._machine)
        give_receivers(self._machine)
        self._schedule = ScheduleState(self._machine, records)
        model = self._machine.model
        self._messages_ps = [-1] * len(model.messages)
        self._sources = [
            SourceState(i, spec, self._schedule, self._messages_ps)
            for i, spec in enumerate(model.sources)
        ]
        for i, fault in enumerate(model.faults):
            self._plan_fault(i, fault)
        self._machine.scheduler.add(0, Class.TIMER, lambda: None)
        self._samples = Samples(self._machine, (), ())
        self._final: list[dict[str, int]] | None = None
        self._final_orders: list[OrderCounters] = []
        self._final_memory: list[int] = []

    def run(self, until_ps: int = NEVER, max_events: int = NEVER) -> Stop:
        """Advance by full timestamps until done, `until_ps`, `max_events` or a deadlock."""
        used = 0
        self._machine.raise_refusal()
        while self._final is None:
            time_ps = self._machine.scheduler.next_time()
            if time_ps is None:
                return Stop.DEADLOCK
            self._samples.record_until(min(time_ps, until_ps + 1))
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

    def sample(
        self, first_ps: int, width_ps: int, count: int, flows: NDArray[Any]
    ) -> None:
        """Schedule samples at `count` times [ps] during the next runs; discards earlier samples."""
        times_ps = range(first_ps, first_ps + count * width_ps, width_ps)
        self._samples = Samples(self._machine, times_ps, flows.tolist())

    def samples(self) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
        """Return the samples of times passed, one row per time; see `clusim.engine.abi.Engine.samples`."""
        return self._samples.read()

    def flows(self) -> NDArray[Any]:
        """Return the present state of the flows of the last `sample` (`FLOW_SAMPLE`)."""
        return np.array(self._samples.flows(), FLOW_SAMPLE)

    def _timestamp(self, time_ps: int) -> int:
        """Do everything that happens at one time; return the number of events."""
        machine = self._machine
        machine.now_ps = time_ps
        events = 0
        while (action := machine.scheduler.pop(time_ps)) is not None:
            action()
            events += 1
        machine.waves.run(self._schedule)
        for kernels in self._schedule.kernels:
            kernels.settle()
        if machine.beyond is None:
            phase_b(machine)
        self._machine.raise_refusal()
        return events

    def _plan_fault(self, index: int, fault: FaultSpec) -> None:
        def apply() -> None:
            if fault.kind == FaultKind.SLOW:
                self._machine.slow_1024[fault.index] = fault.num
            else:
                wire = self._machine.wires[fault.index]
                wire.change_rate(fault.num, fault.den, self._machine.now_ps)
                self._machine.examine.add(fault.index)

        self._machine.scheduler.add(fault.time_ps, Class.FAULT, apply, (index, 0))

    def _finish(self) -> None:
        """Keep the counters of the end, so that draining does not change them."""
        self._machine.finished = True
        self._final = self._read_wires()
        self._final_orders = [replace(row) for row in self._machine.orders]
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
        return np.array(schedule.starts_ps, np.int64), np.array(
            schedule.ends_ps, np.int64
        )

    def message_times(self) -> NDArray[Any]:
        """Return the completion of every message [ps], -1 where not yet."""
        return np.array(self._messages_ps, np.int64)

    def records(self) -> NDArray[Any]:
        """Return and forget the completion records since the last call (`RECORD`)."""
        rows, self._schedule.records = self._schedule.records, []
        return np.array(rows, RECORD)

    def instance_states(self) -> NDArray[Any]:
        """Return the positions of all instances (`INSTANCE_STATE`)."""
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

    def orders(self) -> NDArray[Any]:
        """Return the counters of receivers in order of every target at `now_ps` (`ORDER_COUNTERS`)."""
        names = ORDER_COUNTERS.names or ()
        found = self._final_orders or self._machine.orders
        return np.array(
            [tuple(getattr(row, name) for name in names) for row in found],
            ORDER_COUNTERS,
        )

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
            more: tuple[str, ...] = (
                _FINGERPRINTED_TOO
                if spec.xoff_bytes
                or spec.ecn_max_bytes
                or spec.queue_bytes
                or spec.policy
                else ()
            )
            more += ("drops", "dropped_bytes") if spec.queue_bytes else ()
            more += ("trims", "trimmed_bytes") if spec.trim_vc else ()
            for name in (*_FINGERPRINTED, *more):
                value = mix(value, row[name])
        return value

    def check_conservation(self) -> None:
        """Drain the traffic in flight, then raise `InternalError` unless everything balances."""
        while (time_ps := self._machine.scheduler.next_time()) is not None:
            self._timestamp(time_ps)
        machine.check_balance(self._machine)
        if self._final is not None:
            check_laws(self._machine, self._schedule, self._final, self.now_ps)
