"""Checks of a complete schedule; every error names the object, the value and the allowed values."""

from __future__ import annotations

from collections.abc import Sequence
from graphlib import CycleError, TopologicalSorter
from operator import attrgetter
from typing import Literal, NamedTuple

from clusim.base.errors import ScheduleError
from clusim.engine.abi import Op
from clusim.engine.image import OPCODES
from clusim.schedule.dtypes import element
from clusim.schedule.ir import ABSENT, Connection, Instance, Schedule, Template


def validate(schedule: Schedule) -> None:
    """Raise `ScheduleError` unless every index, size and connection of `schedule` is valid."""
    endpoints: set[int] = set()
    for index, connection in enumerate(schedule.connections):
        _check_connection(index, connection, schedule.num_ranks, endpoints)
    for index, task in enumerate(schedule.tasks):
        _check_range(task.rank, schedule.num_ranks, "task", index, "rank")
        if task.call != ABSENT:
            _check_range(task.call, len(schedule.calls), "task", index, "call")
        for dep in task.deps:
            _check_range(dep, len(schedule.tasks), "task", index, "dependency")
        if task.kind == "kernel" and task.sms < 0:
            raise ScheduleError(
                f"task {index}: sms={task.sms}; must be >= 0 (0 = all)"
            )
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
        _check_instance(index, instance, schedule, uses)
    _check_ends(schedule, uses)


def _check_range(value: int, size: int, table: str, index: int, field: str) -> None:
    """Raise unless `value` is one of `size`; the message is put together only then, as most are right."""
    if not 0 <= value < size:
        raise ScheduleError(
            f"{table} {index}: {field} {value}: out of range; must be 0..{size - 1}"
        )


def _check_connection(
    index: int, connection: Connection, num_ranks: int, endpoints: set[int]
) -> None:
    """Check a connection; `endpoints` are the members that were checked, as objects: all of a group share them."""
    fresh = () if id(connection.members) in endpoints else connection.members
    for rank in (connection.src, connection.dst, *fresh):
        _check_range(rank, num_ranks, "connection", index, "rank")
    endpoints.add(id(connection.members))
    if connection.slots < 1:
        raise ScheduleError(
            f"connection {index}: slots={connection.slots}; must be >= 1"
        )
    if (connection.kind in ("multimem", "aggregation")) != bool(connection.members):
        raise ScheduleError(
            f"connection {index}: kind {connection.kind} with {len(connection.members)} members"
        )
    if connection.kind == "data" and connection.src == connection.dst:
        raise ScheduleError(
            f"connection {index}: data from rank {connection.src} to itself; use copy or a flag"
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
    result: dict[tuple[str, int, str], _Use] = {}
    for prim in template.prims:
        kind = _kind_needed(prim.op)
        for use in (
            _Use(prim.op, "recv", "dst", prim.recv, kind),
            _Use(prim.op, "send", "src", prim.send, kind),
        ):
            if use.slot != ABSENT:
                result.setdefault((use.name, use.slot, kind), use)
    return list(result.values())


def _kind_needed(op: str) -> str:
    flags = OPCODES[op].flags
    if flags & Op.AGGREGATE:
        return "aggregation"
    return "multimem" if flags & (Op.MCAST | Op.REDUCE) else ""


def _check_groups(schedule: Schedule) -> None:
    """Check that every member of an aggregation group has one connection in it."""
    groups: dict[int, dict[int, tuple[int, ...]]] = {}
    # Members share one object, which is compared once: groups are as large as there are nodes.
    sets: dict[int, frozenset[int]] = {}
    for index, connection in enumerate(schedule.connections):
        if connection.kind == "aggregation":
            by_rank, members = (
                groups.setdefault(connection.key, {}),
                connection.members,
            )
            if id(members) not in sets:
                sets[id(members)] = frozenset(members)
            if connection.src in by_rank or connection.src not in sets[id(members)]:
                raise ScheduleError(
                    f"connection {index}: rank {connection.src} must be in group {connection.key} once"
                )
            by_rank[connection.src] = members
    for key, by_rank in groups.items():
        members = next(iter(by_rank.values()))
        distinct = {id(other): other for other in by_rank.values()}.values()
        if any(other != members for other in distinct) or sets[id(members)] != set(
            by_rank
        ):
            raise ScheduleError(
                f"aggregation group {key}: connections of ranks {sorted(by_rank)}, members {sorted(members)};"
                " every member needs one connection, with the same members"
            )


_POSITIVE = (
    "chunk_bytes",
    "align",
    "slices",
    "slots_per_slice",
    "slice_min",
    "fixed_div",
    "warps",
)
_SIZES = ("offset", "length", "chunk_bytes", "stride", "limit", "align", "slice_min")
_positive, _sizes = attrgetter(*_POSITIVE), attrgetter(*_SIZES)


def _check_instance(
    index: int,
    instance: Instance,
    schedule: Schedule,
    uses: Sequence[Sequence[_Use]],
) -> None:
    _check_range(instance.task, len(schedule.tasks), "instance", index, "task")
    _check_range(
        instance.template, len(schedule.templates), "instance", index, "template"
    )
    task = schedule.tasks[instance.task]
    if task.kind != "program" or task.rank != instance.rank:
        raise ScheduleError(
            f"instance {index}: task {instance.task} is a {task.kind} of rank {task.rank}; expected a"
            f" program of rank {instance.rank}"
        )
    for name, value in zip(_POSITIVE, _positive(instance), strict=True):
        if value < 1:
            raise ScheduleError(f"instance {index}: {name}={value}; must be >= 1")
    if instance.start_ps < 0:
        raise ScheduleError(
            f"instance {index}: start_ps={instance.start_ps}; must be >= 0"
        )
    size = (
        element(schedule.calls[task.call].dtype).size_bytes
        if task.call != ABSENT
        else 1
    )
    for name, value in zip(_SIZES, _sizes(instance), strict=True):
        if value % size:
            raise ScheduleError(
                f"instance {index}: {name}={value} cuts an element of {size} bytes"
            )
    for connection in instance.connections:
        _check_range(
            connection, len(schedule.connections), "instance", index, "connection"
        )
    _check_prims(index, instance, uses[instance.template], schedule)


def _check_prims(
    index: int, instance: Instance, uses: Sequence[_Use], schedule: Schedule
) -> None:
    for use in uses:
        if not 0 <= use.slot < len(instance.connections):
            field = f"{use.op}: {use.name} connection"
            _check_range(
                use.slot, len(instance.connections), "instance", index, field
            )
        connection = schedule.connections[instance.connections[use.slot]]
        if (connection.src if use.end == "src" else connection.dst) != instance.rank:
            raise ScheduleError(
                f"instance {index}: {use.op}: connection {connection.src} -> {connection.dst} does not"
                f" {use.name} at rank {instance.rank}"
            )
        special = (
            connection.kind if connection.kind in ("multimem", "aggregation") else ""
        )
        if use.kind != special:
            raise ScheduleError(
                f"instance {index}: {use.op} on a {connection.kind} connection; only multicastStore, reduceLoad"
                " and reduceLoadStore use multimem connections, and only aggregate uses aggregation"
            )
        if connection.slots < instance.slices * instance.slots_per_slice:
            raise ScheduleError(
                f"instance {index}: a chunk of {instance.slices} slices needs"
                f" {instance.slices * instance.slots_per_slice} slots, the connection has {connection.slots}"
            )


def _check_ends(schedule: Schedule, uses: Sequence[Sequence[_Use]]) -> None:
    """Check that at most one instance sends on, and one receives from, each connection."""
    users = {name: [ABSENT] * len(schedule.connections) for name in ("recv", "send")}
    for index, instance in enumerate(schedule.instances):
        for use in uses[instance.template]:
            owners, connection = users[use.name], instance.connections[use.slot]
            if owners[connection] not in (ABSENT, index):
                raise ScheduleError(
                    f"connection {connection}: instances {owners[connection]} and {index} both {use.name};"
                    " use one connection for each"
                )
            owners[connection] = index


def _check_acyclic(schedule: Schedule) -> None:
    if all(
        dep < index for index, task in enumerate(schedule.tasks) for dep in task.deps
    ):
        return
    order = TopologicalSorter(
        {index: task.deps for index, task in enumerate(schedule.tasks)}
    )
    try:
        order.prepare()
    except CycleError as error:
        raise ScheduleError(
            f"task {min(error.args[1])}: its dependencies form a cycle; remove a dependency"
        ) from None
