"""Recordings as schedules: order, overlap, pauses, missing ranks, contradictions."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

import clusim
from clusim import topology
from clusim.base.errors import InputError
from clusim.formats.recordings import Event, Group, Recording
from clusim.jobs.emitter import NcclEmitter
from clusim.jobs.read import job_of
from clusim.jobs.write import Translation, to_schedule
from clusim.results.result import Result

US = 1_000_000
MACHINE = topology.load("dgx-h100")
ALL = Group("world", tuple(range(8)))


def recording(events: list[Event], groups: tuple[Group, ...] = (ALL,), ranks: int = 8) -> Recording:
    return Recording("test", "sample", ranks, list(groups), events)


def emitter(ranks: int = 8) -> NcclEmitter:
    return NcclEmitter(MACHINE, range(ranks))


def run(found: Recording, gap: str | int = "none") -> tuple[Translation, Result]:
    translation = to_schedule(job_of(found), emitter(found.num_ranks), gap=gap)
    return translation, clusim.simulate(MACHINE, translation.schedule, verify=True)


def reduces(
    sequence: int, size: int = 1 << 16, group: int = 0, ranks: range = range(8)
) -> list[Event]:
    return [
        Event(
            "collective",
            r,
            "comm",
            group=group,
            sequence=sequence,
            operation="allreduce",
            bytes=size,
        )
        for r in ranks
    ]


def test_a_collective_of_all_ranks_is_one_call_with_right_data() -> None:
    translation, result = run(recording(reduces(0)))
    assert len(translation.schedule.calls) == 1
    assert result.verified
    assert all(len(tasks) == 1 for tasks in translation.tasks)


def test_a_stream_is_in_order_and_streams_overlap() -> None:
    events = [Event("compute", r, "compute", duration_ps=500 * US) for r in range(8)]
    events += reduces(0) + reduces(1)
    translation, result = run(recording(events))
    first, second = (range(8 * i, 8 * i + 8) for i in (1, 2))
    end = lambda numbers: max(int(result.tasks.end_ps[translation.tasks[n][0]]) for n in numbers)  # noqa: E731
    start = [int(result.tasks.start_ps[translation.tasks[n][0]]) for n in second]
    assert min(start) >= min(int(result.tasks.end_ps[translation.tasks[n][0]]) for n in first)
    assert end(second) < 500 * US <= result.time_ps


def test_dependencies_across_streams_are_kept() -> None:
    events = [Event("compute", r, "compute", duration_ps=100 * US) for r in range(8)]
    events += [replace(e, deps=(r,)) for r, e in enumerate(reduces(0))]
    events += [Event("compute", r, "compute", duration_ps=US, deps=(8 + r,)) for r in range(8)]
    translation, result = run(recording(events))
    for r in range(8):
        first, call, last = (translation.tasks[r + 8 * i][0] for i in range(3))
        assert result.tasks.end_ps[first] <= result.tasks.start_ps[call]
        assert result.tasks.end_ps[call] <= result.tasks.start_ps[last]


def test_recorded_pauses_are_kept_on_demand() -> None:
    timed = [replace(e, start_ps=5000 * US, duration_ps=20 * US) for e in reduces(0)]
    timed += [replace(e, start_ps=5220 * US, duration_ps=20 * US) for e in reduces(1)]
    none, logged = run(recording(timed))[1], run(recording(timed), "logged")[1]
    assert logged.time_ps - none.time_ps == pytest.approx(200 * US, rel=0.01)
    fixed = run(recording(timed), 50 * US)[1]
    assert fixed.time_ps - none.time_ps == pytest.approx(50 * US, rel=0.03)


def test_ranks_without_a_recording_are_ready() -> None:
    translation, result = run(recording([reduces(0)[3]]))
    assert translation.units[0].missing == 7
    assert list(translation.notes.values()) == [7]
    assert result.verified


def test_messages_of_a_launch_go_together() -> None:
    events = []
    for r in range(8):
        for kind, peer in (("send", (r + 1) % 8), ("recv", (r - 1) % 8)):
            events.append(Event(kind, r, "comm", group=0, peer=peer, bytes=1 << 16, bunch=0))  # type: ignore[arg-type]
    translation, _ = run(recording(events))
    assert len(translation.units) == 1
    assert len(translation.schedule.calls) == 1
    assert not translation.notes


def test_a_pipeline_of_bunches_is_written_message_by_message() -> None:
    events = []
    for step in range(3):
        for r in range(4):
            if r < 3:
                events.append(
                    Event(
                        "send", r, "c", group=0, peer=r + 1, bytes=4096, sequence=step, bunch=step
                    )
                )
            if r > 0:
                events.append(
                    Event(
                        "recv", r, "c", group=0, peer=r - 1, bytes=4096, sequence=step, bunch=step
                    )
                )
    # Rank 0 repeats its launch, so that the chain of shared messages would hold two of its bunches.
    events.append(Event("recv", 0, "c", group=0, peer=1, bytes=4096, sequence=9, bunch=9))
    events.insert(0, Event("send", 1, "d", group=0, peer=0, bytes=4096, sequence=9, bunch=0))
    translation, _ = run(recording(events))
    assert sum(len(unit.operations) for unit in translation.units) == len(events)
    assert not translation.notes


@pytest.mark.parametrize("eager", [True, False])
def test_only_eager_messages_may_cross(eager: bool) -> None:
    """Two ranks that send and then receive on one stream: NCCL's calls, which are not grouped, would wait for ever."""
    events = [
        Event(kind, r, "c", group=0, peer=1 - r, bytes=4096, tag=r if kind == "send" else 1 - r, eager=eager)
        for r in range(2)
        for kind in ("send", "recv")
    ]  # fmt: skip
    if not eager:
        with pytest.raises(InputError, match="ranks call in different orders"):
            run(recording(events))
        return
    translation, result = run(recording(events))
    assert result.complete
    assert sum(len(unit.operations) for unit in translation.units) == 4
    assert len(translation.schedule.calls) == 2
    assert not translation.notes


def test_an_eager_message_holds_neither_end() -> None:
    """The sender goes on when it is out, the receiver when it is in; its SMs are free until it is sent."""
    late = Event("compute", 1, "c", "late", duration_ps=500 * US)
    events = [
        Event("send", 0, "c", group=0, peer=1, bytes=1 << 20, eager=True),
        Event("compute", 0, "c", "next", duration_ps=US),
        late,
        Event("recv", 1, "c", group=0, peer=0, bytes=1 << 20, eager=True),
    ]
    translation, result = run(recording(events))
    ends = [max(int(result.tasks.end_ps[t]) for t in tasks) for tasks in translation.tasks]
    assert ends[1] < 100 * US
    assert ends[3] == ends[2] >= 500 * US


def test_one_end_of_a_message_is_enough() -> None:
    translation, _ = run(recording([Event("send", 0, group=0, peer=1, bytes=4096)]))
    assert sum(translation.notes.values()) == 1


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"rank": 9}, r"rank 9; the job has ranks 0\.\.7"),
        ({"group": 4}, "group 4 does not exist"),
        ({"group": 1, "rank": 5}, "is not in it"),
        (
            {"operation": "broadcast", "root": 8},
            r"root 8 of broadcast; group 'world' has positions 0\.\.7",
        ),
        ({"operation": "reduce", "root": 4, "group": 1}, "root 4 of reduce; group 'four'"),
    ],
)
def test_contradictions_are_named(changes: dict[str, Any], text: str) -> None:
    event = replace(reduces(0)[0], where="trace.json:7", **changes)
    found = recording([event], (ALL, Group("four", (0, 1, 2, 3))))
    with pytest.raises(InputError, match=f"trace.json:7.*{text}"):
        to_schedule(job_of(found), emitter())


def test_a_missing_root_is_assumed_and_noted() -> None:
    translation, result = run(recording([replace(e, operation="broadcast") for e in reduces(0)]))
    assert result.verified
    assert translation.schedule.calls[0].root == 0
    assert translation.notes == {"roots are not recorded; taken as position 0 of the group": 1}


def test_calls_in_different_orders_are_an_error_and_no_deadlock() -> None:
    one, two = reduces(0), reduces(1)
    events = [one[0], two[0], two[1], one[1], *one[2:], *two[2:]]
    placed = [replace(event, where=f"t:{at}") for at, event in enumerate(events)]
    with pytest.raises(InputError, match="different orders") as error:
        to_schedule(job_of(recording(placed)), emitter())
    assert str(error.value) == (
        "t:0: rank 0 cannot reach allreduce '': ranks call in different orders (2 of 2 steps are left):"
        " rank 1 has allreduce '' (t:3) after allreduce '' (t:2),"
        " rank 0 has allreduce '' (t:1) after allreduce '' (t:0)"
    )


def test_what_has_no_program_is_left_out_and_counted() -> None:
    odd = [replace(e, operation="all_to_some") for e in reduces(0)] + reduces(1)
    translation, _ = run(recording(odd))
    assert len(translation.schedule.calls) == 1
    assert any("all_to_some" in note for note in translation.notes)


def test_only_the_first_calls_of_every_rank() -> None:
    found = recording([e for n in range(5) for e in reduces(n)])
    assert len(to_schedule(job_of(found), emitter(), most=2).schedule.calls) == 2
