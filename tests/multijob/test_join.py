"""Several schedules as one: ranks, numbers and waits."""

from __future__ import annotations

from clusim.multijob.join import PlacedSchedule, join_schedules
from clusim.schedule.builder import ProgramBuilder
from clusim.schedule.ir import ABSENT, CollectiveCall, Connection, Instance, Prim, Schedule, Task


def schedule_of_two() -> Schedule:
    """Return a kernel and a program on each of two ranks, the program of rank 0 sends to rank 1."""
    builder = ProgramBuilder(2)
    call = builder.call(CollectiveCall("broadcast", 64, (0, 1)))
    way = builder.connection(Connection(0, 1))
    for rank in (0, 1):
        builder.connection(Connection(rank, rank, kind="aggregation", members=(0, 1), key=0))
    sends = builder.template("send", [Prim("send", send=0)])
    receives = builder.template("recv", [Prim("recv", recv=0)])
    for rank, template in ((0, sends), (1, receives)):
        kernel = builder.kernel(rank, compute_ps=10)
        task = builder.task(Task("program", rank, call=call), (kernel,))
        builder.instance(Instance(task, rank, template, (way,), length=64))
    return builder.build()


def test_ranks_are_those_of_the_fabric() -> None:
    placed = PlacedSchedule("job", schedule_of_two(), (5, 3))
    joined, tasks, connections = join_schedules("jobs", 8, [placed])
    assert joined.num_ranks == 8
    assert [task.rank for task in joined.tasks] == [5, 5, 3, 3]
    assert joined.calls[0].ranks == (5, 3)
    assert (joined.connections[0].src, joined.connections[0].dst) == (5, 3)
    assert joined.connections[1].members == (5, 3)
    assert [one.rank for one in joined.instances] == [5, 3]
    assert (tasks, connections) == ([[range(4)]], [[range(3)]])
    assert {task.stream for task in joined.tasks} == {"job compute", "job comm0"}


def test_copies_have_connections_and_groups_and_follow_each_other() -> None:
    placed = PlacedSchedule("job", schedule_of_two(), (0, 1), repeat=2)
    joined, tasks, connections = join_schedules("jobs", 2, [placed])
    assert tasks == [[range(4), range(4, 8)]]
    assert connections == [[range(3), range(3, 6)]]
    assert [one.connections for one in joined.instances] == [(0,), (0,), (3,), (3,)]
    assert [one.task for one in joined.instances] == [1, 3, 5, 7]
    assert [one.key for one in joined.connections if one.kind == "aggregation"] == [0, 0, 1, 1]
    assert [task.call for task in joined.tasks] == [ABSENT, 0, ABSENT, 0, ABSENT, 1, ABSENT, 1]
    assert len(joined.templates) == 2
    # The first kernel of the second copy waits for the last program of its rank.
    assert [task.deps for task in joined.tasks[4:8]] == [(1,), (4,), (3,), (6,)]


def test_jobs_have_numbers_after_each_other() -> None:
    first = PlacedSchedule("one", schedule_of_two(), (0, 1))
    second = PlacedSchedule("other", schedule_of_two(), (2, 3))
    joined, tasks, connections = join_schedules("jobs", 4, [first, second])
    assert tasks == [[range(4)], [range(4, 8)]]
    assert connections == [[range(3)], [range(3, 6)]]
    assert [one.template for one in joined.instances] == [0, 1, 2, 3]
    assert joined.tasks[4].deps == ()
    assert [one.key for one in joined.connections if one.kind == "aggregation"] == [0, 0, 1, 1]


def test_a_start_is_a_wait_of_each_rank() -> None:
    placed = PlacedSchedule("job", schedule_of_two(), (1, 0), start_ps=7)
    joined, tasks, _ = join_schedules("jobs", 2, [placed])
    waits = joined.tasks[:2]
    assert [(wait.kind, wait.rank, wait.delay_ps) for wait in waits] == [
        ("delay", 1, 7),
        ("delay", 0, 7),
    ]
    assert tasks == [[range(2, 6)]]
    assert (joined.tasks[2].deps, joined.tasks[4].deps) == ((0,), (1,))


def test_a_run_of_messages_has_a_mark_only() -> None:
    joined, tasks, _ = join_schedules("jobs", 3, [])
    assert [task.kind for task in joined.tasks] == ["marker"]
    assert not tasks
