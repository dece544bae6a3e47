"""Units of operations that happen together, worked out by hand."""

from __future__ import annotations

import pytest

from clusim.base.errors import InputError
from clusim.formats.recordings.model import Group
from clusim.jobs.match import Matcher
from clusim.jobs.model import CallWork, JobGraph, KernelWork, MessageWork, RankOperation

SIZE = 4096


def job_of(*operations: RankOperation, ranks: int = 4) -> JobGraph:
    """Return a job with a communicator of all ranks, and one of the last two in reverse order."""
    groups = [Group("all", tuple(range(ranks))), Group("last", (ranks - 1, ranks - 2))]
    job = JobGraph("by hand", ranks, groups)
    for operation in operations:
        job.append(operation)
    return job


def message(
    kind: str, rank: int, peer: int, *, eager: bool = False, **columns: int
) -> RankOperation:
    """Return one end of a message on the first stream."""
    work = MessageWork(kind, SIZE, eager)
    return RankOperation(rank, "0", work, peer=peer, **{"group": 0, **columns})


def units(job: JobGraph) -> list[list[int]]:
    return Matcher(job, range(len(job))).units()


def test_calls_of_equal_number_are_a_unit_and_kernels_are_alone() -> None:
    call = CallWork("allreduce", SIZE)
    rows = [RankOperation(rank, "0", call, group=0, number=n) for n in (0, 1) for rank in range(4)]
    job = job_of(*rows, RankOperation(1, "0", KernelWork(time_ps=3)))
    assert units(job) == [[0, 1, 2, 3], [4, 5, 6, 7], [8]]


def test_only_kept_operations_are_matched() -> None:
    rows = [RankOperation(rank, "0", CallWork("allreduce", SIZE), group=0) for rank in range(4)]
    assert Matcher(job_of(*rows), [1, 3]).units() == [[1, 3]]


def test_both_ends_of_a_message_are_a_unit_by_tag_and_number() -> None:
    rows = [
        message("send", 0, 1, tag=5), message("send", 0, 1, tag=6), message("send", 0, 1, tag=5, number=1),
        message("recv", 1, 0, tag=5), message("recv", 1, 0, tag=6), message("recv", 1, 0, tag=5, number=1),
    ]  # fmt: skip
    assert units(job_of(*rows)) == [[0, 3], [1, 4], [2, 5]]


def test_a_peer_is_a_position_in_the_communicator() -> None:
    """Ranks 3 and 2 are positions 0 and 1 of the second communicator."""
    rows = [message("send", 3, 1, group=1), message("recv", 2, 0, group=1)]
    assert Matcher(job_of(*rows), range(2)).ends(0) == (1, 0, 1, 0, 0)
    assert units(job_of(*rows)) == [[0, 1]]


def test_launches_that_share_messages_are_a_unit() -> None:
    """An exchange of two ranks in one launch each; a third rank's launch has another message."""
    rows = [
        message("send", 0, 1, launch=0), message("recv", 0, 1, launch=0),
        message("send", 1, 0, launch=0), message("recv", 1, 0, launch=0),
        message("send", 2, 3, launch=0), message("recv", 3, 2, launch=0),
    ]  # fmt: skip
    assert units(job_of(*rows)) == [[0, 1, 2, 3], [4, 5]]


def test_a_rank_with_two_launches_in_a_unit_has_units_of_messages() -> None:
    """Rank 0 sends and receives in two launches, rank 1 in one: the one launch cannot wait for both."""
    rows = [
        message("send", 0, 1, launch=0), message("recv", 0, 1, launch=1),
        message("send", 1, 0, launch=0), message("recv", 1, 0, launch=0),
    ]  # fmt: skip
    assert units(job_of(*rows)) == [[0, 3], [1, 2]]


def test_an_eager_message_is_a_unit_of_its_sender_and_names_its_source() -> None:
    rows = [
        message("send", 0, 1, eager=True, launch=0), message("recv", 1, 0, eager=True, launch=0),
        message("send", 2, 3, launch=0), message("recv", 3, 2, launch=0),
    ]  # fmt: skip
    job = job_of(*rows)
    assert Matcher(job, range(4)).source == {1: 0}
    assert units(job) == [[0], [1], [2, 3]]


def test_an_eager_receive_without_its_send_has_no_source() -> None:
    job = job_of(message("recv", 1, 0, eager=True), message("send", 2, 3, eager=True))
    assert Matcher(job, range(2)).source == {}


@pytest.mark.parametrize(("rank", "peer", "group"), [(0, 4, 0), (0, -2, 0), (0, 1, 1), (3, 2, 1)])
def test_ends_outside_of_the_communicator_are_named(rank: int, peer: int, group: int) -> None:
    job = job_of(message("send", rank, peer, group=group))
    with pytest.raises(InputError, match=f"send of rank {rank} with peer {peer} of group"):
        units(job)


@pytest.mark.parametrize(("rank", "peer", "group"), [(0, 3, 0), (3, 0, 0), (3, 1, 1), (2, 0, 1)])
def test_ends_at_the_limits_of_the_communicator_are_matched(
    rank: int, peer: int, group: int
) -> None:
    assert units(job_of(message("send", rank, peer, group=group))) == [[0]]
