"""The run loop (section 1), faults (section 11) and the protocol `Engine`.

Also: laws of every run, checked after its end and drain (section 12); limits of an image's counts and sizes,
checked before a run (section 1); sources of synthetic traffic (section 10).
"""

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
    Beyond,
    FaultKind,
    Kind,
    Op,
    Stop,
    TaskKind,
)
from clusim.engine.image import OP_FLAGS, Image
from clusim.engine.ranges import (
    OFFSET_END_BYTES,
    PACKETS_END,
    SLICES_END,
    WIRE_BYTES_END,
    first_illegal,
    packets_refused,
)
from clusim.engine.reference import machine
from clusim.engine.reference.arbitration import phase_b, start_transfer
from clusim.engine.reference.conservation import OrderCounters, demand
from clusim.engine.reference.instances import first_group, loop_count
from clusim.engine.reference.machine import Class, Machine, may_wait
from clusim.engine.reference.model import Model
from clusim.engine.reference.packets import Terms, Transfer, steered
from clusim.engine.reference.queues import give_policies
from clusim.engine.reference.sampling import Samples
from clusim.engine.reference.schedule import ScheduleState
from clusim.engine.reference.senders import SenderRate
from clusim.engine.reference.specs import (
    ConnSpec,
    FaultSpec,
    InstanceSpec,
    PrimSpec,
    SourceSpec,
    ceil_div,
    mix,
    round_up,
)


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
        self._rate = (
            None if control is None else SenderRate(control, who, self._machine)
        )
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

    def completed(self, transfer: Transfer, v_ps: int) -> None:
        """Notify the source that the message is complete."""
        transfer.complete = True
        self._source.complete(self._message)


_FLAGS = OP_FLAGS.tolist()
_FLAG_CONN = 2


def _refuse(table: str, row: int, problem: str) -> None:
    raise ScheduleError(f"image: {table}[{row}]: {problem}")


def check_sizes(model: Model) -> None:
    """Raise `ScheduleError` for an image with too many packets, bytes or slices."""
    data = [
        (i, conn) for i, conn in enumerate(model.conns) if conn.kind != _FLAG_CONN
    ]
    for i, conn in data:
        _check_burst(model, "conns", i, conn)
    for i, source in enumerate(model.sources):
        _check_burst(model, "sources", i, source)
    _check_rates(model)
    for source in model.sources:
        for message in range(source.msg_lo, source.msg_hi):
            packet_bytes = source.packet_bytes * source.burst
            why = packets_refused(model.messages[message].bytes, packet_bytes)
            if why:
                _refuse("messages", message, why)
    for i, instance in enumerate(model.instances):
        _check_instance(model, i, instance)


def _check_burst(
    model: Model, table: str, row: int, flow: ConnSpec | SourceSpec
) -> None:
    full, packet_bytes = flow.packet_bytes * flow.burst, flow.packet_bytes
    for form in model.formats:
        for kind in range(len(form.header_bytes)):
            if form.wire_bytes(kind, full, packet_bytes) >= WIRE_BYTES_END:
                problem = "a burst of 2^29 bytes or more on a wire, headers included"
                _refuse(table, row, f"{problem}: a smaller burst, or larger packets")


def _check_rates(model: Model) -> None:
    """Refuse rates at which the smallest packet of a wire's format lasts less than 1 ps."""
    rates = [
        ("wires", i, wire, wire.rate_num, wire.rate_den)
        for i, wire in enumerate(model.wires)
    ]
    rates += [
        ("faults", i, model.wires[fault.index], fault.num, fault.den)
        for i, fault in enumerate(model.faults)
        if fault.kind == FaultKind.RATE
    ]
    for table, row, wire, num, den in rates:
        if wire.format.least_occupancy * den < num:
            _refuse(table, row, "a packet would last less than 1 ps; a lower rate")


def _largest_slice(spec: InstanceSpec) -> int:
    piece = min(spec.chunk_bytes, spec.length)
    even = round_up(ceil_div(piece, spec.slices), 16)
    return min(piece, max(even, spec.slice_min))


def _most_packets(model: Model, spec: InstanceSpec, prim: PrimSpec) -> int:
    flags = _FLAGS[prim.opcode]
    locals_ = [prim.recv] if flags & Op.RECV else []
    locals_ += [prim.send] if flags & ~Op.RECV else []
    most = 0
    for local in locals_:
        assert local is not None
        conn = model.conns[model.inst_conns[spec.conn_off + local]]
        if conn.kind != _FLAG_CONN:
            size = ceil_div(_largest_slice(spec) * conn.expand_120, 120)
            most = max(most, ceil_div(size, conn.packet_bytes * conn.burst))
    return most


def _check_instance(model: Model, row: int, spec: InstanceSpec) -> None:
    template = spec.template
    last = template.nchunks * (spec.stride if template.mode else spec.chunk_bytes)
    if template.mode:
        last += spec.offset + spec.length + spec.chunk_bytes
    if last >= OFFSET_END_BYTES:
        _refuse("instances", row, "chunks at or beyond 2^62 bytes")
    for prim in template.prims:
        packets = _most_packets(model, spec, prim)
        if packets >= PACKETS_END:
            _refuse("instances", row, packets_refused(packets, 1))
    per_piece = min(spec.slices, min(spec.chunk_bytes, spec.length) // 16 + 1)
    slices = max(1, loop_count(spec)) * sum(prim.repeat for prim in template.prims)
    if slices * per_piece >= SLICES_END:
        _refuse("instances", row, "2^32 slices or more; larger chunks")


def check_laws(
    machine: Machine,
    schedule: ScheduleState,
    final: list[dict[str, int]],
    end_ps: int,
) -> None:
    """Raise `InternalError` if a run of `end_ps` broke a law; `final` are its counters."""
    _check_wires(machine, final, end_ps)
    _check_servers(machine)
    _check_tasks(schedule)
    if not may_wait(machine):
        _check_payload(machine)


def _check_wires(machine: Machine, final: list[dict[str, int]], end_ps: int) -> None:
    for wire, row in zip(machine.wires, final, strict=True):
        busy_ps = wire.counters.busy_ps
        law = f"busy time of wire {wire.index}"
        demand(busy_ps <= wire.free_at_ps, law, busy_ps, wire.free_at_ps)
        demand(wire.due_ps <= busy_ps, f"{law} for its bytes", busy_ps, wire.due_ps)
        used_ps = row["busy_ps"] + row["stall_credit_ps"]
        demand(used_ps <= end_ps, f"{law} and its waiting", used_ps, end_ps)
        contended_ps = row["stall_arbitration_ps"]
        demand(
            contended_ps <= row["busy_ps"],
            f"contended {law}",
            contended_ps,
            row["busy_ps"],
        )


def _check_servers(machine: Machine) -> None:
    """Check that no memory exceeds its rate; each access may gain up to 2^-16 ps by rounding."""
    grants = sum(wire.counters.grants for wire in machine.wires)
    for i, (memory, spec) in enumerate(
        zip(machine.memories, machine.model.endpoints, strict=True)
    ):
        due16 = (memory.bytes_256 * spec.mem_cost16) >> 8
        law = f"time for the memory traffic of endpoint {i}"
        demand(due16 <= memory.clock16 + 2 * grants, law, memory.clock16, due16)


def _check_tasks(schedule: ScheduleState) -> None:
    for i, spec in enumerate(schedule.machine.model.tasks):
        start_ps, end_ps = schedule.starts_ps[i], schedule.ends_ps[i]
        least_ps = spec.delay_ps if spec.kind == TaskKind.DELAY else 0
        took_ps = end_ps - start_ps
        demand(
            start_ps >= 0 and took_ps >= least_ps,
            f"duration of task {i}",
            took_ps,
            least_ps,
        )
        for after in spec.successors:
            after_ps = schedule.starts_ps[after]
            demand(after_ps >= end_ps, f"start of task {after}", after_ps, end_ps)


def _check_payload(machine: Machine) -> None:
    """Check that wires of endpoints carried the transfers' payload, or more with relays."""
    payload = machine.payload
    sent, taken = [0] * len(payload.sent), [0] * len(payload.taken)
    for wire in machine.wires:
        for node, carried in ((wire.spec.src, sent), (wire.spec.dst, taken)):
            endpoint = machine.model.nodes[node].endpoint
            if endpoint is not None:
                carried[endpoint] += wire.counters.payload
    for name, carried, moved in (
        ("sent", sent, payload.sent),
        ("received", taken, payload.taken),
    ):
        for i, (result, asked) in enumerate(zip(carried, moved, strict=True)):
            holds = result >= asked if payload.relayed else result == asked
            demand(holds, f"payload {name} by endpoint {i}", result, asked)


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
