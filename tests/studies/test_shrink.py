"""Jobs that lose a rank: sums of their parts, and the work of the others, derived by hand."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from clusim.base.errors import ClusimError, InputError
from clusim.nccltests.jobs import kernel
from clusim.simulation.request import Request
from clusim.simulation.setup import Setup
from clusim.studies.shrink import (
    SHRINK_PS,
    WATCHDOG_PS,
    RankLoss,
    ShrunkJob,
    lose_rank,
    lose_rank_in_training,
)
from clusim.training.api import train_request
from clusim.training.estimate import stepped
from clusim.training.request import TrainRequest
from clusim_cli.main import run
from support.workloads import TINY, tiny

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


def steps(text: str = "", **replaced: str) -> TrainRequest:
    return train_request(tiny(text, **replaced), "dgx-a100", steps=1, granularity="coarse")


@pytest.mark.parametrize("estimate", [False, True])
def test_steps_afterwards_are_those_of_a_job_of_one_rank_less(estimate: bool) -> None:
    """Each rank keeps its two samples of a step; rank 2, a straggler, is not among the others."""
    slow = "stragglers: {ranks: {2: 1.5}}"
    request = replace(steps(slow, batch="{global: 16, micro: 1}"), estimate=estimate)
    step_ps = stepped(request).step_ps[-1]
    result = lose_rank_in_training(request, RankLoss(2, 3 * step_ps + 7, 11, 13), iterations=10)
    others = "parallel: {data: 7, ranks: [0, 1, 3, 4, 5, 6, 7]}"
    alone = replace(steps(others, batch="{global: 14, micro: 1}"), estimate=estimate)
    after_ps = stepped(alone).step_ps[-1]
    assert (result.iteration_ps, result.iteration_after_ps) == (step_ps, after_ps)
    assert after_ps < step_ps
    assert (result.completed, result.lost_ps, result.global_batch_after) == (3, 7, 14)
    assert result.total_ps == 3 * step_ps + 7 + 11 + 13 + 7 * after_ps


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("parallel: {tensor: 2}", "parallel.tensor: 2: a group that loses a rank must be data"),
        ("parallel: {pipeline: 4}", "parallel.pipeline: 4: a group that loses a rank must be"),
        ("data: {kind: fsdp}", "data.kind: fsdp: the lost rank has states of its own"),
        ("data: {kind: zero1}", "data.kind: zero1: the lost rank has states of its own"),
    ],
)
def test_other_groups_than_data_parallel_ones_do_not_shrink(text: str, message: str) -> None:
    with pytest.raises(ClusimError, match=message):
        lose_rank_in_training(steps(text), RankLoss(0, 0), iterations=2)


def test_training_has_the_options_of_a_loss(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    work = tmp_path / "work.yaml"
    work.write_text(f"topology: dgx-a100\n{TINY}")
    words = ["train", str(work), "--steps", "1", "--granularity", "coarse"]
    assert run([*words, "--at", "1ms"]) == 2
    assert "--at needs --lose" in capsys.readouterr().err
    assert run([*words, "--lose", "3", "--scaling", "weak", "--replicas", "4"]) == 2
    assert "--lose: not with --scaling" in capsys.readouterr().err
    assert run([*words, "--lose", "0", "--layers"]) == 2
    assert "--layers does not simulate; not with --lose" in capsys.readouterr().err
    assert run([*words, "--lose", "3", "--at", "1ms", "--detection", "30s", "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert (data["lost_rank"], data["num_ranks"], data["detection_ps"]) == (3, 8, 30 * 10**12)
    assert run([*words, "--lose", "3"]) == 0
    assert "1000 steps of 7 ranks" in capsys.readouterr().out
