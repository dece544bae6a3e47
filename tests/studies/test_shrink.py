"""Jobs that lose a rank: sums of their parts, and the work of the others, derived by hand."""

from __future__ import annotations

import json

import pytest

from clusim.base.errors import InputError
from clusim.nccltests.jobs import kernel
from clusim.simulation.request import Request
from clusim.simulation.setup import Setup
from clusim.studies.shrink import SHRINK_PS, WATCHDOG_PS, RankLoss, ShrunkJob, lose_rank
from clusim_cli.main import run

SIZE = 1 << 20


def job(setup: Setup, failure: RankLoss, iterations: int = 100) -> ShrunkJob:
    return lose_rank(setup, "allreduce", SIZE, failure, iterations=iterations)


def test_the_others_work_as_a_job_of_one_rank_less() -> None:
    result = job(Setup("dgx-a100"), RankLoss(3, 0))
    alone = kernel(Request(Setup("dgx-a100", ranks=(0, 1, 2, 4, 5, 6, 7)), "allreduce", SIZE))
    assert result.after == alone
    assert (result.completed, result.lost_ps) == (0, 0)


def test_iterations_that_ended_count_and_the_lost_one_is_repeated() -> None:
    each_ps = job(Setup("dgx-a100"), RankLoss(0, 0)).iteration_ps
    result = job(Setup("dgx-a100"), RankLoss(0, 7 * each_ps + 1_000))
    assert (result.completed, result.lost_ps) == (7, 1_000)
    repeated = 93 * result.iteration_after_ps
    assert result.total_ps == 7 * each_ps + 1_000 + WATCHDOG_PS + SHRINK_PS + repeated
    assert result.undisturbed_ps == 100 * each_ps


def test_a_failure_between_nodes_is_detected_by_retries_of_the_nic() -> None:
    env = (("NCCL_IB_TIMEOUT", "18"), ("NCCL_IB_RETRY_CNT", "3"))
    default, other = (job(Setup("dgx-a100", 2, env=e), RankLoss(9, 0)) for e in ((), env))
    assert default.detection_ps == 7 * 4_096_000 * 2**20
    assert other.detection_ps == 3 * 4_096_000 * 2**18
    assert job(Setup("dgx-a100", 2), RankLoss(9, 0, 5, 6)).detection_ps == 5


@pytest.mark.parametrize(
    ("setup", "failure", "message"),
    [
        (Setup("dgx-a100"), RankLoss(8, 0), "rank 8 is not in the job; choose one of 0 to 7"),
        (Setup("dgx-a100", ranks=(0, 1)), RankLoss(0, 0), "2 ranks: without one, no two are left"),
        (Setup("dgx-a100"), RankLoss(0, 10**15), "the job ends after"),
        (Setup("dgx-a100", 2, env=(("NCCL_IB_TIMEOUT", "x"),)), RankLoss(0, 0), "must be 1 to 31"),
    ],
)
def test_a_failure_that_cannot_be_is_an_error(
    setup: Setup, failure: RankLoss, message: str
) -> None:
    with pytest.raises(InputError, match=message):
        job(setup, failure)


def test_the_command_prints_the_parts(capsys: pytest.CaptureFixture[str]) -> None:
    words = [
        "shrink",
        "dgx-a100",
        "--lose",
        "3",
        "--at",
        "1ms",
        "--detection",
        "30s",
        "--size",
        "1MiB",
    ]
    assert run(words) == 0
    assert "detection" in capsys.readouterr().out
    assert run([*words, "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["num_ranks"] == 8
    assert data["detection_ps"] == 30 * 10**12
