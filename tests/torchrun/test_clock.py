"""Host and streams of a rank: laws of streams, events and calls on the clock of its job."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from clusim.formats.recordings.model import Event
from clusim.programs.clock import IssueTimes, RankClock
from clusim.programs.issued import IssuedCall, IssuedOperation, Mark
from clusim.programs.job import ProgramJob
from support.equal_calls import CALL_PS, EqualCalls

ISSUE_PS = 10
ALL = tuple(range(8))


class Alone:
    """Clock of a job of which one rank represents all."""

    alone = True

    def __init__(self) -> None:
        self.job = ProgramJob(EqualCalls(), 8, (0,))

    def issue(self, operation: IssuedOperation) -> None:
        self.job.issue(0, operation)

    def announce(self, call: IssuedCall, sent: Any) -> None:
        """Nothing is compared."""

    def end(self, operations: Iterable[int], until_ps: int | None = None) -> int | None:
        given = list(operations)
        while self.job.end(0, given) is None:
            if until_ps is not None and self.job.is_before_next(until_ps):
                return None
            assert self.job.clock.advance()
        return self.job.end(0, given)

    def values(self, number: int) -> tuple[int, dict[int, Any]]:
        raise AssertionError(number)


def clock() -> RankClock:
    return RankClock(0, Alone(), IssueTimes(ISSUE_PS, ISSUE_PS // 2, 0))


def end_ps(rank: RankClock) -> int:
    """Return the time at which the host has waited for all streams."""
    rank.synchronise()
    return rank.host_ps


def test_a_stream_that_is_ahead_of_the_host_ends_with_the_sum_of_its_kernels() -> None:
    rank = clock()
    for _ in range(5):
        rank.issue()
        rank.kernel(0, "mm", 100)
    assert rank.host_ps == 5 * ISSUE_PS
    assert end_ps(rank) == ISSUE_PS + 5 * 100


def test_a_host_that_is_slower_than_its_kernels_determines_the_time() -> None:
    rank = clock()
    for _ in range(5):
        rank.issue()
        rank.kernel(0, "add", 3)
    assert end_ps(rank) == 5 * ISSUE_PS + 3


def test_a_call_waits_for_the_calling_stream_and_overlaps_with_its_later_kernels() -> None:
    rank = clock()
    rank.kernel(0, "mm", 100)
    end = rank.call(0, IssuedCall("allreduce", 4096, ALL))
    rank.kernel(0, "mm", 100)
    before = rank.mark(0)
    rank.wait(0, end)
    after = rank.kernel(0, "mm", 100)
    assert rank.end_of(before) == 200
    assert rank.end_of(end) == 100 + CALL_PS
    assert rank.end_of(after) == end_ps(rank) == 100 + CALL_PS + 100


def test_an_event_in_a_waiting_stream_is_recorded_after_what_the_stream_waits_for() -> None:
    """As FSDP waits: the stream of communication for the call, the default stream for an event recorded there."""
    rank = clock()
    end = rank.call(1, IssuedCall("all_gather", 4096, ALL))
    rank.wait(1, end)
    rank.wait(0, rank.mark(1))
    rank.kernel(0, "mm", 100)
    assert end_ps(rank) == CALL_PS + 100
    (call,) = [number for number, event in enumerate(rank.events) if event.name == "all_gather"]
    assert call in rank.events[-1].deps


def test_calls_of_a_communicator_run_in_order_and_calls_of_two_slow_each_other() -> None:
    """Two process groups of equal ranks are two communicators."""
    rank = clock()
    rank.call(0, IssuedCall("allreduce", 4096, ALL))
    same = rank.call(0, IssuedCall("allreduce", 4096, ALL))
    assert rank.end_of(same) == 2 * CALL_PS
    other = [rank.call(0, IssuedCall("allreduce", 4096, ranks)) for ranks in (ALL, (0, 2))]
    equal = rank.call(0, IssuedCall("allreduce", 4096, ALL, number=1))
    ends = [rank.end_of(mark) for mark in (*other, equal)]
    assert ends == [2 * CALL_PS + 3 * CALL_PS] * 3
    # Calls are numbered per communicator.
    calls = [(event.group, event.sequence) for event in rank.events if event.kind == "collective"]
    assert calls == [(0, 0), (0, 1), (0, 2), (1, 0), (2, 0)]
    assert [group.ranks for group in rank.groups] == [ALL, (0, 2), ALL]
    assert len({group.name for group in rank.groups}) == 3


def test_a_time_is_past_before_it_is_final() -> None:
    """A call that starts later slows one in flight: its end is not known when it is issued."""
    rank = clock()
    first = rank.call(0, IssuedCall("allreduce", 4096, ALL))
    rank.pause(CALL_PS // 2)
    assert not rank.is_past(first)
    second = rank.call(0, IssuedCall("allreduce", 4096, ALL, number=1))
    assert rank.end_of(first) == 2 * CALL_PS
    assert rank.end_of(second) == CALL_PS // 2 + 2 * CALL_PS
    assert rank.is_past(first)


def test_kernels_of_two_streams_divide_the_sms() -> None:
    rank = clock()
    ends = [rank.kernel(stream, "mm", 1000) for stream in (0, 7)]
    assert [rank.end_of(mark) for mark in ends] == [2000, 2000]


def test_messages_of_a_launch_do_not_wait_for_each_other() -> None:
    """Batched messages use the communicator of the group; PyTorch creates one per pair for the others."""
    rank = clock()
    rank.peers.job.starts(0, IssuedCall("send", 8, (0, 1), root=0, peer=1))  # type: ignore[attr-defined]
    with rank.bunch():
        for operation, root, peer in (("send", 0, 1), ("recv", 1, 0)):
            rank.call(0, IssuedCall(operation, 8, (0, 1, 2, 3), root=root, peer=peer, shared=True))
    rank.call(0, IssuedCall("recv", 8, (0, 1, 2, 3), root=2, peer=0))
    deps = [event.deps for event in rank.events]
    assert deps == [(), (), ()]
    assert [(event.kind, event.peer) for event in rank.events] == [
        ("send", 1),
        ("recv", 1),
        ("recv", 1),
    ]
    assert [group.ranks for group in rank.groups] == [(0, 1, 2, 3), (0, 2)]
    assert [event.stream for event in rank.events] == ["nccl 0", "nccl 0", "nccl 1 2>0"]


def test_a_group_of_one_rank_takes_no_time() -> None:
    rank = clock()
    kernel = rank.kernel(0, "mm", 100)
    mark = rank.call(0, IssuedCall("allreduce", 4096, (0,)))
    assert mark == Mark(kernel.operations, 0)
    assert rank.end_of(mark) == 100
    assert rank.totals.calls["allreduce", 1] == 1


def test_the_host_waits_for_a_stream_only_if_synchronised() -> None:
    rank = clock()
    rank.kernel(0, "mm", 100)
    mark = rank.mark(0)
    rank.kernel(0, "mm", 100)
    assert rank.host_ps == 0
    rank.synchronise([mark])
    assert rank.host_ps == 100
    rank.synchronise()
    assert rank.host_ps == 200


def test_an_event_of_an_idle_stream_has_the_time_of_the_host() -> None:
    rank = clock()
    rank.kernel(0, "mm", 10)
    rank.pause(70)
    assert rank.end_of(rank.mark(0)) == 70


def test_operations_are_recorded_with_their_dependencies() -> None:
    rank = clock()
    rank.issue()
    rank.kernel(0, "mm", 100)
    end = rank.call(0, IssuedCall("allreduce", 4096, ALL))
    rank.wait(7, end)
    rank.kernel(7, "add", 3)
    issue, kernel, call, after = events = rank.take()
    assert [e.kind for e in events] == ["delay", "compute", "collective", "compute"]
    assert kernel.deps == (0,)
    assert set(call.deps) == {0, 1}
    assert set(after.deps) == {0, 2}
    assert list(rank.groups)[call.group].ranks == ALL
    assert issue.duration_ps == ISSUE_PS
    assert not rank.events


def test_marks_of_an_earlier_record_are_complete_in_it_and_have_a_time() -> None:
    """A call that is waited for after the end of its step is no operation of the new record."""
    rank = clock()
    end = rank.call(0, IssuedCall("allreduce", 4096, ALL))
    rank.kernel(0, "mm", 10)
    before = rank.mark(0)
    rank.take()
    rank.wait(0, end)
    rank.wait(0, before)
    rank.synchronise([end])
    rank.issue()
    rank.kernel(0, "mm", 10)
    assert end_ps(rank) == CALL_PS + ISSUE_PS + 10
    taken: list[Event] = rank.take()
    assert [event.deps for event in taken] == [(), (0,)]


def test_operators_of_the_backward_pass_and_collectives_have_their_own_host_times() -> None:
    rank = RankClock(0, Alone(), IssueTimes(10, 5, 7))
    rank.issue()
    rank.issue(backward=True)
    rank.call(0, IssuedCall("allreduce", 4096, ALL))
    assert rank.host_ps == 22
