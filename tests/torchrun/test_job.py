"""Meetings of the running ranks of a job: ends of calls and messages, values, steps and waits."""

from __future__ import annotations

from collections.abc import Sequence
from multiprocessing import Pipe

import pytest

from clusim.base.errors import InputError
from clusim.programs.clock import IssuedCall
from clusim.programs.job import ProgramJob, represented
from clusim.programs.processes import JobLink
from clusim.programs.step import RankRecord, StepTime

CALL_PS, STEP = 500, StepTime(90, 100)
REDUCE = IssuedCall("allreduce", 4096, (0, 1))


def message(operation: str, source: int, target: int, ranks: tuple[int, ...]) -> IssuedCall:
    return IssuedCall(operation, 4096, ranks, root=source, peer=target)


def job(num_ranks: int, *running: int, grows: bool = False) -> ProgramJob:
    def simulate(records: dict[int, RankRecord], of: Sequence[int]) -> StepTime:
        return STEP

    return ProgramJob(lambda call: CALL_PS, simulate, num_ranks, running, grows=grows)


def test_a_call_of_ranks_with_one_representative_ends_after_its_time() -> None:
    issued = job(8, 0).issue(0, REDUCE, 70, ())
    assert (issued.end_ps, issued.alone_ps) == (70 + CALL_PS, CALL_PS)


def test_a_call_of_two_running_ranks_starts_when_the_last_is_ready() -> None:
    both = job(2, 0, 1)
    first = both.issue(0, REDUCE, 10, (), "a")
    assert first.end_ps is None
    assert both.end(first.number) is None
    second = both.issue(1, REDUCE, 300, (), "b")
    assert first.number == second.number
    ended = both.end(first.number)
    assert ended is not None
    assert (ended.end_ps, ended.sent) == (300 + CALL_PS, {0: "a", 1: "b"})


def test_a_call_waits_for_an_earlier_one_of_its_stream_with_an_unknown_end() -> None:
    both = job(2, 0, 1)
    one = both.issue(0, REDUCE, 0, ())
    two = both.issue(0, REDUCE, 0, (one.number,))
    both.issue(1, REDUCE, 100, ())
    assert both.end(two.number) is None
    both.issue(1, REDUCE, 100, ())
    ended = both.end(two.number)
    assert ended is not None
    assert ended.end_ps == 100 + 2 * CALL_PS


def test_messages_of_a_pair_are_matched_in_order_by_direction() -> None:
    both = job(2, 0, 1)
    ranks = (0, 1)
    there = both.issue(0, message("send", 0, 1, ranks), 0, (), "x")
    back = both.issue(0, message("recv", 1, 0, ranks), 0, ())
    both.issue(1, message("send", 1, 0, ranks), 40, (), "y")
    both.issue(1, message("recv", 0, 1, ranks), 60, ())
    ends = both.end(there.number), both.end(back.number)
    assert ends[0] is not None
    assert ends[1] is not None
    assert (ends[0].end_ps, ends[0].sent[0]) == (60 + CALL_PS, "x")
    assert (ends[1].end_ps, ends[1].sent[1]) == (40 + CALL_PS, "y")


def test_ranks_that_do_not_run_have_the_values_of_their_representatives() -> None:
    half = job(4, 0, 2)
    every = IssuedCall("all_gather", 4096, (0, 1, 2, 3))
    half.issue(0, every, 0, (), "a")
    number = half.issue(2, every, 0, (), "b").number
    ended = half.end(number)
    assert ended is not None
    assert ended.sent == {0: "a", 1: "a", 2: "b", 3: "b"}


def test_a_message_starts_the_ranks_of_its_group_which_represent_their_rows() -> None:
    growing = job(8, 0, grows=True)
    call = message("send", 0, 1, (0, 2, 4, 6))
    assert growing.starts(0, REDUCE) == []
    assert growing.starts(0, call) == [2, 4, 6]
    assert growing.of == [0, 0, 2, 2, 4, 4, 6, 6]
    assert growing.starts(0, call) == []


def test_ranks_that_start_later_meet_the_calls_of_the_first() -> None:
    growing = job(2, 0, grows=True)
    early = growing.issue(0, REDUCE, 50, (), "a")
    assert early.end_ps == 50 + CALL_PS
    growing.starts(0, message("send", 0, 1, (0, 1)))
    late = growing.issue(1, REDUCE, 20, (), "b")
    ended = growing.end(late.number)
    assert ended is not None
    assert (ended.end_ps, ended.sent) == (50 + CALL_PS, {0: "a", 1: "b"})


def test_a_message_to_a_rank_that_does_not_run_is_an_error() -> None:
    with pytest.raises(InputError, match="rank 1, which does not run; add it to --distinct"):
        job(2, 0).starts(0, message("send", 0, 1, (0, 1)))
    with pytest.raises(InputError, match="at most 16"):
        job(64, 0, grows=True).starts(0, message("send", 0, 1, tuple(range(64))))


def test_ranks_in_different_calls_are_an_error() -> None:
    both = job(2, 0, 1)
    both.issue(0, IssuedCall("allreduce", 4096, (0, 1), where="a.py:7"), 0, ())
    with pytest.raises(InputError) as error:
        both.issue(1, IssuedCall("all_gather", 4096, (0, 1), where="a.py:9"), 0, ())
    assert str(error.value) == (
        "rank 1 calls all_gather (a.py:9), rank 0 calls allreduce (a.py:7)"
        " as the same collective of their communicator"
    )


def test_a_step_ends_when_all_running_ranks_have_ended_it() -> None:
    both = job(2, 0, 1)
    both.record(0, RankRecord(0, [], []))
    assert both.stepped(0) is None
    both.record(1, RankRecord(1, [], []))
    assert both.stepped(0) == both.stepped(1) == STEP
    both.record(0, RankRecord(0, [], []))
    assert both.stepped(0) is None
    both.ended.add(1)
    assert both.stepped(0) == STEP


def test_a_wait_names_the_missing_rank_and_the_line_of_the_program() -> None:
    both = job(2, 0, 1)
    call = IssuedCall("recv", 8, (0, 1), root=1, peer=0, where="train.py:12")
    number = both.issue(0, call, 0, ()).number
    assert both.waits(0, number) == "rank 0 waits in recv (train.py:12) for rank 1"


@pytest.mark.parametrize(
    ("running", "expected"),
    [
        ([0], [0] * 8),
        ([0, 1], [0, 1] * 4),
        ([0, 4], [0] * 4 + [4] * 4),
        ([1, 5, 6], [1, 1, 1, 1, 1, 5, 6, 6]),
    ],
)
def test_a_row_of_a_grid_represents_all_rows(running: list[int], expected: list[int]) -> None:
    assert represented(running, 8) == expected


def test_a_rank_answers_equal_calls_itself_until_further_ranks_run() -> None:
    own, joining = Pipe()
    link = JobLink(own)
    link.repeats = True
    first, second = (IssuedCall("allreduce", size, (0, 1)) for size in (8, 16))
    joining.send(("", (-1, 5, 15, 1)))
    assert link.issue(first, 10, (), None) == (-1, 5, 15)
    assert link.issue(first, 100, (), None) == (-1, 5, 105)
    joining.send(("", (-1, 7, 27, 2)))
    assert link.issue(second, 20, (), None) == (-1, 7, 27)
    joining.send(("", (3, 5, None, 2)))
    assert link.issue(first, 200, (), None) == (3, 5, None)
    assert [joining.recv()[0] for _ in range(4)] == ["issue", "issued", "issue", "issue"]
