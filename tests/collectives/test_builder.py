"""Schedules of several tasks: kernels, messages, waits and collectives on streams."""

from __future__ import annotations

import pytest

from clusim.base.errors import InputError, ScheduleError
from clusim.collectives import ScheduleBuilder
from clusim.schedule import from_arrays, to_arrays
from clusim.schedule.collective_writer import CollectiveWriter
from clusim.schedule.executor import Executor
from clusim.schedule.ir import Prim
from clusim.schedule.semantics import run_untimed, verify


def test_tasks_of_a_stream_follow_each_other() -> None:
    builder = ScheduleBuilder(2)
    first = builder.kernel(0, compute_ps=5)
    second = builder.delay(0, 7)
    other = builder.kernel(0, stream="side", compute_ps=3)
    last = builder.marker(0, "end", after=(other,))
    tasks = builder.build().tasks
    assert tasks[first].deps == ()
    assert tasks[second].deps == (first,)
    assert tasks[other].deps == ()
    assert tasks[last].deps == (second, other)
    assert [task.kind for task in tasks] == ["kernel", "delay", "kernel", "marker"]


def test_a_step_of_training_in_miniature() -> None:
    builder = ScheduleBuilder(4)
    done = {}
    for rank in range(4):
        done[rank] = [builder.kernel(rank, flops=10**9, precision="bf16", hbm_bytes=1 << 20)]
    reduce = builder.collective("allreduce", 40_000, after=done, channels=2)
    gather = builder.collective("all_gather", 4000, ranks=(1, 3), stream="comm1")
    for rank in range(4):
        builder.wait(rank, reduce[rank])
        builder.kernel(rank, compute_ps=10)
    schedule = builder.build()
    assert schedule.tasks[reduce[2]].deps == tuple(done[2])
    assert schedule.tasks[gather[0]].deps == ()
    assert schedule.tasks[-1].deps == (done[3][0], reduce[3])
    assert all(check.ok for check in verify(schedule))
    assert from_arrays(to_arrays(schedule)) == schedule


def test_messages_meet_in_order() -> None:
    builder = ScheduleBuilder(3)
    builder.send(0, 1, 1000)
    builder.send(0, 1, 2000)
    builder.recv(1, 0, 1000)
    builder.recv(1, 0, 2000)
    builder.recv(2, 1, 77, tag=4, stream="other")
    builder.send(1, 2, 77, tag=4)
    schedule = builder.build()
    assert [call.bytes for call in schedule.calls] == [1000, 2000, 77]
    assert [call.ranks for call in schedule.calls] == [(0, 1), (0, 1), (1, 2)]
    assert all(check.ok for check in verify(schedule))


def test_messages_that_do_not_meet_are_errors() -> None:
    builder = ScheduleBuilder(2)
    builder.send(0, 1, 64)
    with pytest.raises(ScheduleError, match="0 -> 1 tag 0: send without recv; add the recv"):
        builder.build()
    with pytest.raises(ScheduleError, match="send of 64 bytes meets recv of 65"):
        builder.recv(1, 0, 65)


def test_bad_tasks_are_refused() -> None:
    builder = ScheduleBuilder(2)
    with pytest.raises(InputError, match="rank 2: out of range"):
        builder.kernel(2, compute_ps=1)
    with pytest.raises(InputError, match="set compute_ps or flops"):
        builder.kernel(0, compute_ps=1, flops=1)
    with pytest.raises(InputError, match="must be >= 0"):
        builder.delay(0, -1)
    with pytest.raises(InputError, match="0 ranks"):
        ScheduleBuilder(0)


def test_templates_are_shared_by_what_they_say() -> None:
    builder = ScheduleBuilder(2)
    prims = (Prim("copySend", send=0), Prim("recv", recv=1))
    first = builder.template("a", prims)
    assert builder.template("a", prims) == first
    assert builder.template("a", list(prims)) == first
    assert builder.template("a", tuple(list(prims))) == first
    others = {
        builder.template("b", prims),
        builder.template("a", prims, 2),
        builder.template("a", prims, 2, "blocked"),
        builder.template("a", prims[:1]),
    }
    assert len(others | {first}) == 5
    assert len({builder.template("a", (Prim("recv", recv=at),)) for at in range(50)}) == 50


def test_a_flag_is_a_connection_like_any_other() -> None:
    writer = CollectiveWriter.create("allreduce", 1024, ranks=(3, 1, 2), channels=2, protocol="ll")
    one, other = writer.flag(0, 2, 1), writer.connect(0, 2, 1, kind="flag")
    connections = writer.schedule().connections
    assert connections[one] == connections[other]
    assert (connections[one].src, connections[one].dst, connections[one].channel) == (3, 2, 1)


def test_programs_start_only_after_what_they_depend_on() -> None:
    builder = ScheduleBuilder(2)
    first = builder.collective("allreduce", 4096)
    builder.collective("broadcast", 4096, stream="comm1", after={0: first, 1: first})
    executor = Executor(builder.build())
    run_untimed(executor, seed=3)
    assert all(check.ok for check in executor.check())
