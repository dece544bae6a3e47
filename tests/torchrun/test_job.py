"""Running ranks of a job on one clock: calls and messages, values, steps and waits."""

from __future__ import annotations

from collections.abc import Sequence
from multiprocessing import Pipe

import pytest

from clusim.base.errors import InputError
from clusim.programs.clock import Totals
from clusim.programs.issued import IssuedCall, IssuedOperation
from clusim.programs.job import ProgramJob, represented
from clusim.programs.processes import JobLink
from clusim.programs.step import RankResult
from support.equal_calls import CALL_PS, EqualCalls

REDUCE = IssuedCall("allreduce", 4096, (0, 1))


def message(operation: str, source: int, target: int, ranks: tuple[int, ...]) -> IssuedCall:
    return IssuedCall(operation, 4096, ranks, root=source, peer=target)


def job(num_ranks: int, *running: int, grows: bool = False) -> ProgramJob:
    return ProgramJob(EqualCalls(), num_ranks, running, grows=grows)


def issue(
    own: ProgramJob, rank: int, number: int, call: IssuedCall | None = None, issued_ps: int = 0,
    sent: object = None, deps: Sequence[int] = (), time_ps: int = 0,
) -> None:  # fmt: skip
    own.issue(rank, IssuedOperation(number, issued_ps, tuple(deps), time_ps, call, sent))


def ends(own: ProgramJob, *places: tuple[int, int]) -> list[int | None]:
    """Return the ends of operations of ranks, after all others [ps]."""
    while own.clock.advance():
        pass
    return [own.end(rank, [number]) for rank, number in places]


def test_a_call_of_ranks_with_one_representative_ends_after_its_time() -> None:
    own = job(8, 0)
    issue(own, 0, 0, REDUCE, 70)
    assert ends(own, (0, 0)) == [70 + CALL_PS]


def test_a_call_of_two_running_ranks_starts_when_the_last_is_ready() -> None:
    both = job(2, 0, 1)
    issue(both, 0, 0, REDUCE, 10, "a")
    assert both.values(0, 0) is None
    assert ends(both, (0, 0)) == [None]
    issue(both, 1, 0, REDUCE, 300, "b")
    assert ends(both, (0, 0), (1, 0)) == [300 + CALL_PS] * 2
    found = both.values(0, 0)
    assert found is not None
    assert found.sent == {0: "a", 1: "b"}


def test_a_call_waits_for_an_earlier_one_of_its_stream() -> None:
    both = job(2, 0, 1)
    for rank, issued_ps in ((0, 0), (1, 100)):
        issue(both, rank, 0, REDUCE, issued_ps)
        issue(both, rank, 1, REDUCE, issued_ps, deps=[0])
    assert ends(both, (0, 1)) == [100 + 2 * CALL_PS]


def test_messages_of_a_pair_are_matched_in_order_by_direction() -> None:
    both = job(2, 0, 1)
    ranks = (0, 1)
    issue(both, 0, 0, message("send", 0, 1, ranks), 0, "x")
    issue(both, 0, 1, message("recv", 1, 0, ranks))
    issue(both, 1, 0, message("send", 1, 0, ranks), 40, "y")
    issue(both, 1, 1, message("recv", 0, 1, ranks), 1000)
    assert ends(both, (0, 0), (0, 1)) == [1000 + CALL_PS, 40 + CALL_PS]
    found = [both.values(0, 0), both.values(1, 0)]
    assert [value.sent for value in found if value] == [{0: "x", 1: None}, {0: None, 1: "y"}]


def test_values_of_the_host_are_there_when_all_ranks_have_issued_them() -> None:
    both = job(2, 0, 1)
    call = IssuedCall("all_gather", 8, (0, 1), timed=False)
    issue(both, 0, -1, call, 10, "a")
    assert both.values(0, 0) is None
    issue(both, 1, -1, call, 300, "b")
    found = both.values(0, 0)
    assert found is not None
    assert (found.time_ps, found.sent) == (300, {0: "a", 1: "b"})


def test_ranks_that_do_not_run_have_the_values_of_their_representatives() -> None:
    half = job(4, 0, 2)
    every = IssuedCall("all_gather", 4096, (0, 1, 2, 3))
    issue(half, 0, 0, every, 0, "a")
    issue(half, 2, 0, every, 0, "b")
    found = half.values(2, 0)
    assert found is not None
    assert found.sent == {0: "a", 1: "a", 2: "b", 3: "b"}


def test_a_call_has_the_groups_of_all_ranks_that_its_ranks_represent() -> None:
    """Ranks 0 and 2 represent 1 and 3: their pair is also that of the others, and a pair of rank 0 is its own."""
    half = job(4, 0, 2)
    assert half._peer_groups((0, 2)) == ((0, 2), (1, 3))
    assert half._peer_groups((0, 1)) == ((0, 1),)
    assert job(4, 0)._peer_groups((0, 1)) == ((0, 1), (2, 3))
    assert job(4, 0, 1, 2, 3)._peer_groups((0, 1)) == ((0, 1),)


def test_a_message_starts_the_ranks_of_its_group_which_represent_their_rows() -> None:
    growing = job(8, 0, grows=True)
    call = message("send", 0, 1, (0, 2, 4, 6))
    assert growing.starts(0, REDUCE) == []
    assert growing.starts(0, call) == [2, 4, 6]
    assert growing.of == [0, 0, 2, 2, 4, 4, 6, 6]
    assert growing.starts(0, call) == []


def test_ranks_that_start_later_meet_the_calls_of_the_first() -> None:
    """Their operations have past times; calls that have ended end at once, and later ones in common."""
    growing = job(2, 0, grows=True)
    issue(growing, 0, 0, REDUCE, 50, "a")
    issue(growing, 0, 1, time_ps=900, deps=[0])
    while growing.end(0, [0]) is None:
        growing.clock.advance()
    issue(growing, 0, 2, REDUCE, 60, deps=[1])
    growing.starts(0, message("send", 0, 1, (0, 1)))
    issue(growing, 1, 0, time_ps=20)
    issue(growing, 1, 1, REDUCE, 20, "b", deps=[0])
    issue(growing, 1, 2, REDUCE, 30, deps=[1])
    last_ps = 50 + CALL_PS + 900 + CALL_PS
    assert ends(growing, (1, 0), (1, 1), (0, 2), (1, 2)) == [20, 50 + CALL_PS, last_ps, last_ps]
    found = growing.values(1, 0)
    assert found is not None
    assert found.sent == {0: "a", 1: "b"}


def test_a_message_to_a_rank_that_does_not_run_is_an_error() -> None:
    with pytest.raises(InputError, match="rank 1, which does not run; add it to --distinct"):
        job(2, 0).starts(0, message("send", 0, 1, (0, 1)))
    with pytest.raises(InputError, match="at most 16"):
        job(64, 0, grows=True).starts(0, message("send", 0, 1, tuple(range(64))))


def test_ranks_in_different_calls_are_an_error() -> None:
    both = job(2, 0, 1)
    issue(both, 0, 0, IssuedCall("allreduce", 4096, (0, 1), where="a.py:7"))
    with pytest.raises(InputError) as error:
        issue(both, 1, 0, IssuedCall("all_gather", 4096, (0, 1), where="a.py:9"))
    assert str(error.value) == (
        "rank 1 calls all_gather (a.py:9), rank 0 calls allreduce (a.py:7)"
        " as the same collective of their communicator"
    )


def test_a_step_ends_with_its_operations_and_its_host() -> None:
    """Steps are the times between their ends; the host may be ahead of them."""
    own = job(2, 0)
    issue(own, 0, 0, time_ps=100)
    own.step(0, 10, [0], None)
    issue(own, 0, 1, time_ps=40, deps=[0])
    own.step(0, 20, [1], None)
    own.step(0, 300, [1], None)
    ends(own)
    result = RankResult(Totals(), [], 0, 0)
    own.complete(0, result, 310)
    assert (result.steps, result.time_ps) == ([100, 40, 160], 310)


def test_a_wait_names_the_missing_rank_and_the_line_of_the_program() -> None:
    both = job(2, 0, 1)
    issue(both, 0, 0, IssuedCall("recv", 8, (0, 1), root=1, peer=0, where="train.py:12"))
    assert both.waits(0) == "rank 0 waits in recv (train.py:12) for rank 1"


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


def test_a_rank_that_represents_all_sends_its_operations_in_rows() -> None:
    own, joining = Pipe()
    link = JobLink(own, alone=True)
    for number in range(3):
        link.issue(IssuedOperation(number, 0, call=REDUCE))
    assert not joining.poll()
    link.issue(IssuedOperation(3, 0, call=message("send", 0, 1, (0, 1))))
    kind, sent = joining.recv()
    assert (kind, [operation.number for operation in sent]) == ("issue", [0, 1, 2, 3])
    link.issue(IssuedOperation(4, 0, call=REDUCE))
    assert joining.poll()
    assert not link.alone
