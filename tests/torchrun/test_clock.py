"""Virtual clocks of a rank: laws of streams, events and calls."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from clusim.programs.clock import IssuedCall, IssueTimes, Mark, RankClock

ISSUE_PS, CALL_PS = 10, 500
ALL = tuple(range(8))


class Alone:
    """Peers of a rank that represents all: each call has the same time."""

    def issue(
        self, call: IssuedCall, ready_ps: int, after: Iterable[int], sent: Any
    ) -> tuple[int, int, int | None]:
        return -1, CALL_PS, ready_ps + CALL_PS

    def end(self, number: int) -> tuple[int, dict[int, Any]]:
        raise AssertionError(number)


def clock() -> RankClock:
    return RankClock(0, Alone(), IssueTimes(ISSUE_PS, ISSUE_PS // 2, 0))


def test_a_stream_that_is_ahead_of_the_host_ends_with_the_sum_of_its_kernels() -> None:
    rank = clock()
    for _ in range(5):
        rank.issue()
        rank.kernel(0, "mm", 100)
    assert rank.host_ps == 5 * ISSUE_PS
    assert rank.now_ps == ISSUE_PS + 5 * 100


def test_a_host_that_is_slower_than_its_kernels_determines_the_time() -> None:
    rank = clock()
    for _ in range(5):
        rank.issue()
        rank.kernel(0, "add", 3)
    assert rank.now_ps == 5 * ISSUE_PS + 3


def test_a_call_waits_for_the_calling_stream_and_overlaps_with_its_later_kernels() -> None:
    rank = clock()
    rank.kernel(0, "mm", 100)
    end = rank.call(0, IssuedCall("allreduce", 4096, ALL))
    rank.kernel(0, "mm", 100)
    assert end.time_ps == 100 + CALL_PS
    assert rank.mark(0).time_ps == 200
    rank.wait(0, end)
    rank.kernel(0, "mm", 100)
    assert rank.now_ps == 100 + CALL_PS + 100


def test_an_event_in_a_waiting_stream_is_recorded_after_what_the_stream_waits_for() -> None:
    """As FSDP waits: the stream of communication for the call, the default stream for an event recorded there."""
    rank = clock()
    end = rank.call(1, IssuedCall("all_gather", 4096, ALL))
    rank.wait(1, end)
    rank.wait(0, rank.mark(1))
    rank.kernel(0, "mm", 100)
    assert rank.now_ps == end.time_ps + 100
    (call,) = [number for number, event in enumerate(rank.events) if event.name == "all_gather"]
    assert call in rank.events[-1].deps


def test_calls_of_a_communicator_run_in_order_and_calls_of_two_concurrently() -> None:
    rank = clock()
    rank.call(0, IssuedCall("allreduce", 4096, ALL))
    same = rank.call(0, IssuedCall("allreduce", 4096, ALL))
    other = rank.call(0, IssuedCall("allreduce", 4096, (0, 2)))
    equal = rank.call(0, IssuedCall("allreduce", 4096, ALL, number=1))
    assert (same.time_ps, other.time_ps, equal.time_ps) == (2 * CALL_PS, CALL_PS, CALL_PS)
    # Calls are numbered per communicator.
    calls = [(event.group, event.sequence) for event in rank.events if event.kind == "collective"]
    assert calls == [(0, 0), (0, 1), (1, 0), (2, 0)]
    assert [group.ranks for group in rank.groups] == [ALL, (0, 2), ALL]
    assert len({group.name for group in rank.groups}) == 3


def test_a_group_of_one_rank_takes_no_time() -> None:
    rank = clock()
    rank.kernel(0, "mm", 100)
    assert rank.call(0, IssuedCall("allreduce", 4096, (0,))) == Mark(100, -1)
    assert rank.totals.calls["allreduce", 1] == 1


def test_the_host_waits_for_a_stream_only_if_synchronised() -> None:
    rank = clock()
    rank.kernel(0, "mm", 100)
    mark = rank.mark(0)
    rank.kernel(0, "mm", 100)
    rank.synchronise([mark])
    assert rank.host_ps == 100
    rank.synchronise()
    assert rank.host_ps == 200


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


def test_marks_of_an_earlier_record_are_complete() -> None:
    """A call that is waited for after the end of its step has a time, and no operation of the new record."""
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
    assert rank.now_ps == CALL_PS + ISSUE_PS + 10
    assert [event.deps for event in rank.take()] == [(), (0,)]


def test_operators_of_the_backward_pass_and_collectives_have_their_own_host_times() -> None:
    rank = RankClock(0, Alone(), IssueTimes(10, 5, 7))
    rank.issue()
    rank.issue(backward=True)
    rank.call(0, IssuedCall("allreduce", 4096, ALL))
    assert rank.host_ps == 22


def test_a_shift_moves_the_host_and_all_streams() -> None:
    rank = clock()
    rank.kernel(0, "mm", 100)
    rank.kernel(1, "mm", 50)
    rank.shift(7)
    assert (rank.host_ps, rank.mark(0).time_ps, rank.mark(1).time_ps) == (7, 107, 57)
