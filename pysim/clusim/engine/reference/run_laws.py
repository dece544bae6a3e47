"""Laws of every run, checked after its end and drain (section 12)."""

from __future__ import annotations

from clusim.engine.abi import (
    TaskKind,
)
from clusim.engine.reference.conservation import demand
from clusim.engine.reference.machine import Machine, may_wait
from clusim.engine.reference.schedule import ScheduleState


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
