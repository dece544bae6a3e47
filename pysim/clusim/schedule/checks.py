"""Checks of a whole schedule; every error names the object, the value and what would be right."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

from clusim.errors import ScheduleError
from clusim.opcodes import OPCODES, Op
from clusim.schedule.dtypes import element
from clusim.schedule.ir import ABSENT, Connection, Instance, Schedule, Template

__all__ = ["validate"]


def validate(schedule: Schedule) -> None:
    """Raise `ScheduleError` unless every index, size and connection of `schedule` makes sense."""
    for index, connection in enumerate(schedule.connections):
        _check_connection(f"connection {index}", connection, schedule.num_ranks)
    for index, task in enumerate(schedule.tasks):
        _check_range(f"task {index}: rank", task.rank, schedule.num_ranks)
        if task.call != ABSENT:
            _check_range(f"task {index}: call", task.call, len(schedule.calls))
        for dep in task.deps:
            _check_range(f"task {index}: dependency", dep, len(schedule.tasks))
        if task.kind == "kernel" and task.sms < 0:
            raise ScheduleError(f"task {index}: sms={task.sms}; must be >= 0 (0 = all)")
    _check_acyclic(schedule)
    _check_groups(schedule)
    uses = [_uses(template) for template in schedule.templates]
    last_task = 0
    for index, instance in enumerate(schedule.instances):
        if instance.task < last_task:
            raise ScheduleError(
                f"instance {index}: task {instance.task} after {last_task}; sort by task"
            )
        last_task = instance.task
        _check_instance(f"instance {index}", instance, schedule, uses)
    _check_ends(schedule, uses)


def _check_range(what: str, value: int, size: int) -> None:
    if not 0 <= value < size:
        raise ScheduleError(f"{what} {value}: out of range; must be 0..{size - 1}")


def _check_connection(where: str, connection: Connection, num_ranks: int) -> None:
    for rank in (connection.src, connection.dst, *connection.members):
        _check_range(f"{where}: rank", rank, num_ranks)
    if connection.slots < 1:
        raise ScheduleError(f"{where}: slots={connection.slots}; must be >= 1")
    if (connection.kind in ("multimem", "aggregation")) != bool(connection.members):
        raise ScheduleError(
            f"{where}: kind {connection.kind} with {len(connection.members)} members"
        )
    if connection.kind == "data" and connection.src == connection.dst:
        raise ScheduleError(
            f"{where}: data from rank {connection.src} to itself; use copy or a flag"
        )


class _Use(NamedTuple):
    """An end of a connection that primitives of a template use: slot, and the kind of connection they need."""

    op: str
    name: Literal["recv", "send"]
    end: Literal["src", "dst"]
    slot: int
    kind: str


def _uses(template: Template) -> list[_Use]:
    """Return the distinct uses of connections in a template; instances share them by the thousand."""
    found: dict[tuple[str, int, str], _Use] = {}
    for prim in template.prims:
        kind = _kind_needed(prim.op)
        if prim.recv != ABSENT:
            found.setdefault(
                ("recv", prim.recv, kind), _Use(prim.op, "recv", "dst", prim.recv, kind)
            )
        if prim.send != ABSENT:
            found.setdefault(
                ("send", prim.send, kind), _Use(prim.op, "send", "src", prim.send, kind)
            )
    return list(found.values())


def _kind_needed(op: str) -> str:
    flags = OPCODES[op].flags
    if flags & Op.AGGREGATE:
        return "aggregation"
    return "multimem" if flags & (Op.MCAST | Op.REDUCE) else ""


def _check_groups(schedule: Schedule) -> None:
    """Check that every member of an aggregation group has one connection in it."""
    groups: dict[int, dict[int, tuple[int, ...]]] = {}
    for index, connection in enumerate(schedule.connections):
        if connection.kind == "aggregation":
            own = groups.setdefault(connection.key, {})
            if connection.src in own or connection.src not in connection.members:
                raise ScheduleError(
                    f"connection {index}: rank {connection.src} must be in group {connection.key} once"
                )
            own[connection.src] = connection.members
    for key, own in groups.items():
        members = next(iter(own.values()))
        if any(other != members for other in own.values()) or set(members) != set(own):
            raise ScheduleError(
                f"aggregation group {key}: connections of ranks {sorted(own)}, members {sorted(members)};"
                " every member needs one connection, with the same members"
            )


def _check_instance(
    where: str, instance: Instance, schedule: Schedule, uses: Sequence[Sequence[_Use]]
) -> None:
    _check_range(f"{where}: task", instance.task, len(schedule.tasks))
    _check_range(f"{where}: template", instance.template, len(schedule.templates))
    task = schedule.tasks[instance.task]
    if task.kind != "program" or task.rank != instance.rank:
        raise ScheduleError(
            f"{where}: task {instance.task} is a {task.kind} of rank {task.rank}; expected a"
            f" program of rank {instance.rank}"
        )
    positive = ("chunk_bytes", "align", "slices", "slots_per_slice", "slice_min", "fixed_div")
    for name in positive:
        if getattr(instance, name) < 1:
            raise ScheduleError(f"{where}: {name}={getattr(instance, name)}; must be >= 1")
    if task.call != ABSENT:
        size = element(schedule.calls[task.call].dtype).size_bytes
        for name in ("offset", "length", "chunk_bytes", "stride", "limit", "align", "slice_min"):
            if getattr(instance, name) % size:
                raise ScheduleError(
                    f"{where}: {name}={getattr(instance, name)} cuts an element of {size} bytes"
                )
    for connection in instance.connections:
        _check_range(f"{where}: connection", connection, len(schedule.connections))
    _check_prims(where, instance, uses[instance.template], schedule)


def _check_prims(where: str, instance: Instance, uses: Sequence[_Use], schedule: Schedule) -> None:
    for use in uses:
        _check_range(
            f"{where}: {use.op}: {use.name} connection", use.slot, len(instance.connections)
        )
        connection = schedule.connections[instance.connections[use.slot]]
        if (connection.src if use.end == "src" else connection.dst) != instance.rank:
            raise ScheduleError(
                f"{where}: {use.op}: connection {connection.src} -> {connection.dst} does not"
                f" {use.name} at rank {instance.rank}"
            )
        special = connection.kind if connection.kind in ("multimem", "aggregation") else ""
        if use.kind != special:
            raise ScheduleError(
                f"{where}: {use.op} on a {connection.kind} connection; only multicastStore, reduceLoad"
                " and reduceLoadStore use multimem connections, and only aggregate uses aggregation"
            )
        if connection.slots < instance.slots_per_slice:
            raise ScheduleError(
                f"{where}: a slice needs {instance.slots_per_slice} slots, the connection has"
                f" {connection.slots}"
            )


def _check_ends(schedule: Schedule, uses: Sequence[Sequence[_Use]]) -> None:
    """Check that at most one instance sends on, and one receives from, each connection."""
    users: dict[tuple[str, int], int] = {}
    for index, instance in enumerate(schedule.instances):
        for use in uses[instance.template]:
            key = (use.name, instance.connections[use.slot])
            if users.setdefault(key, index) != index:
                raise ScheduleError(
                    f"connection {key[1]}: instances {users[key]} and {index} both {use.name};"
                    " give each its own connection"
                )


def _check_acyclic(schedule: Schedule) -> None:
    waiting = [len(task.deps) for task in schedule.tasks]
    successors: list[list[int]] = [[] for _ in schedule.tasks]
    for index, task in enumerate(schedule.tasks):
        for dep in task.deps:
            successors[dep].append(index)
    ready = [index for index, count in enumerate(waiting) if count == 0]
    done = 0
    while ready:
        index = ready.pop()
        done += 1
        for successor in successors[index]:
            waiting[successor] -= 1
            if waiting[successor] == 0:
                ready.append(successor)
    if done != len(schedule.tasks):
        stuck = next(index for index, count in enumerate(waiting) if count)
        raise ScheduleError(f"task {stuck}: its dependencies form a cycle; remove one of them")
