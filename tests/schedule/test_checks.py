"""Schedules that make no sense are refused, with the object named."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from clusim.base.errors import ScheduleError
from clusim.collectives import build
from clusim.schedule import CollectiveWriter, Prim, Schedule, validate
from clusim.schedule.ir import Connection, Task


def base() -> Schedule:
    """Return a small right schedule."""
    return build(3, "allreduce", "ring", 4096)


def change(schedule: Schedule, table: str, index: int, **changes: Any) -> Schedule:
    """Return the schedule with one row of a table changed."""
    rows = list(getattr(schedule, table))
    rows[index] = replace(rows[index], **changes)
    tables: dict[str, Any] = {table: tuple(rows)}
    return replace(schedule, **tables)


@pytest.mark.parametrize(
    ("table", "index", "changes", "message"),
    [
        ("connections", 1, {"dst": 3}, "connection 1: rank 3: out of range; must be 0..2"),
        ("connections", 1, {"dst": 1}, "data from rank 1 to itself"),
        ("connections", 0, {"slots": 0}, "slots=0"),
        ("connections", 0, {"slots": 1}, "a chunk of 2 slices needs 4 slots"),
        ("connections", 0, {"members": (0, 1)}, "kind data with 2 members"),
        ("connections", 0, {"src": 2}, "does not send at rank 0"),
        ("instances", 0, {"template": 7}, "template 7: out of range"),
        ("instances", 0, {"connections": (2,)}, "connection 1: out of range"),
        ("instances", 0, {"rank": 1}, "expected a program of rank 1"),
        ("instances", 0, {"slices": 0}, "slices=0; must be >= 1"),
        ("instances", 0, {"offset": 2}, "offset=2 cuts an element of 4 bytes"),
        ("instances", 2, {"task": 0, "rank": 0}, "sort by task"),
        ("tasks", 0, {"deps": (9,)}, "dependency 9: out of range"),
        ("tasks", 0, {"deps": (0,)}, "dependencies form a cycle"),
        ("tasks", 2, {"rank": 5}, "task 2: rank 5: out of range"),
        ("tasks", 1, {"call": 4}, "task 1: call 4: out of range"),
        ("tasks", 1, {"call": 1}, r"task 1: call 1: out of range; must be 0\.\.0"),
        ("tasks", 0, {"deps": (-1,)}, "dependency -1: out of range"),
        ("connections", 2, {"src": -1}, "connection 2: rank -1: out of range"),
        ("instances", 0, {"start_ps": -1}, "start_ps=-1; must be >= 0"),
        ("instances", 0, {"connections": ()}, "send connection 1: out of range"),
    ],
)
def test_mistakes_are_named(table: str, index: int, changes: Any, message: str) -> None:
    with pytest.raises(ScheduleError, match=message):
        validate(change(base(), table, index, **changes))


def test_kernels_use_no_negative_number_of_sms() -> None:
    schedule = replace(base(), tasks=(*base().tasks, Task("kernel", 0, compute_ps=5)))
    validate(schedule)
    with pytest.raises(ScheduleError, match=r"task 3: sms=-1; must be >= 0"):
        validate(change(schedule, "tasks", 3, sms=-1))


def aggregated(*ends: tuple[int, int, tuple[int, ...]]) -> Schedule:
    """Return a schedule with aggregation connections: rank, key of the group, and members of each."""
    links = [
        Connection(rank, rank, 0, kind="aggregation", key=key, members=m) for rank, key, m in ends
    ]
    return replace(base(), connections=(*base().connections, *links))


ALL = (0, 1, 2)


@pytest.mark.parametrize(
    ("ends", "message"),
    [
        ([(0, 7, ALL), (1, 7, ALL), (0, 7, ALL)], "rank 0 must be in group 7 once"),
        ([(0, 7, (0, 1)), (2, 7, (0, 1))], "rank 2 must be in group 7 once"),
        (
            [(0, 7, ALL), (1, 7, ALL)],
            r"group 7: connections of ranks \[0, 1\], members \[0, 1, 2\]",
        ),
        ([(0, 7, (0, 1)), (1, 7, (1, 0, 2))], "group 7: connections of ranks"),
    ],
)
def test_every_member_of_a_group_has_one_connection(ends: list[Any], message: str) -> None:
    with pytest.raises(ScheduleError, match=message):
        validate(aggregated(*ends))


def test_members_of_two_groups_have_a_connection_in_each() -> None:
    validate(aggregated(*((rank, key, ALL) for key in (7, 8) for rank in ALL)))


def test_two_senders_cannot_share_a_connection() -> None:
    writer = CollectiveWriter.create("allreduce", 64, ranks=2)
    (part,) = writer.parts()
    pipe = writer.connect(0, 1, 0)
    for _ in range(2):
        writer.program(0, part, [Prim("send", send=0)], [pipe])
    with pytest.raises(ScheduleError, match="instances 0 and 1 both send"):
        writer.schedule()


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"op": "sendRecv"}, "unknown; use one of send"),
        ({"op": "send"}, "send=-1 does not fit"),
        ({"op": "recv", "send": 0}, "recv=-1 does not fit"),
        ({"op": "copy", "send": 0}, "send=0 does not fit"),
        ({"op": "copy", "repeat": 0}, "repeat=0; must be >= 1"),
    ],
)
def test_primitives_need_what_their_opcode_needs(fields: Any, message: str) -> None:
    with pytest.raises(ScheduleError, match=message):
        Prim(**fields)


def test_multimem_is_only_for_its_primitives() -> None:
    writer = CollectiveWriter.create("allreduce", 64, ranks=2)
    (part,) = writer.parts()
    pipe = writer.connect(0, 0, 0, kind="multimem", members=(0, 1))
    writer.program(0, part, [Prim("send", send=0)], [pipe])
    with pytest.raises(ScheduleError, match="only multicastStore"):
        writer.schedule()


def test_instances_of_a_task_are_found() -> None:
    schedule = build(3, "allreduce", "ring", 1 << 20, channels=4)
    assert list(schedule.instances_of(1)) == [4, 5, 6, 7]
