"""Measured steps against a predicted step: logs of four programs, and causes by rank.

`steplogs` has lines of issues NVIDIA/Megatron-LM 756, deepspeedai/DeepSpeed 1825 and 3742, karpathy/nanoGPT 178,
and of pull request pytorch/torchtitan 950.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest
from click.testing import CliRunner

from clusim.base.errors import InputError
from clusim.training.api import train_request
from clusim.training.estimate import stepped
from clusim.training.request import TrainRequest
from clusim.training.result import StepResult
from clusim.validation.steps.against import StepAgainst, StepSearch, compare_step
from clusim.validation.steps.causes import step_hypotheses
from clusim.validation.steps.steplog import StepLog, read_step_log
from clusim.workload import loads_workload
from clusim_cli.main import cli

LOGS = Path(__file__).parent / "steplogs"

WORKLOAD = """
topology: dgx-h100
model: {base: gpt2, layers: 6}
sequence: 1024
batch: {global: 32, micro: 4}
precision: bf16
data: {kind: ddp}
host: {framework: torch-compile}
"""


@cache
def request() -> TrainRequest:
    return train_request(loads_workload(WORKLOAD), estimate=True)


@cache
def run(wanted: TrainRequest) -> StepResult:
    return stepped(wanted)


def measured(time_s: float) -> StepLog:
    return StepLog("m.csv", "CSV", "s", {1: time_s})


def compared(time_s: float, limit_ps: int | None = None) -> StepAgainst:
    search = StepSearch(request(), limit_ps, run=run)
    return compare_step(measured(time_s), request(), search)


@pytest.mark.parametrize(
    ("name", "kind", "batch", "tokens", "times_s"),
    [
        ("megatron.log", "Megatron-LM", 128, 0, [5.4707, 5.8299]),
        ("nanogpt.log", "nanoGPT", 0, 0, [0.89376, 0.89488, 0.8935, 0.8939]),
        # 16,384 tokens per GPU at 212,462 and 209,645 per second.
        ("torchtitan.log", "TorchTitan", 0, 16384, [0.077115, 0.078151]),
        # 32 samples at 8.00912 per second.
        ("deepspeed.log", "DeepSpeed", 32, 0, [3.995443]),
        ("deepspeed-2022.log", "DeepSpeed", 64, 0, [0.766595, 0.764285]),
    ],
)
def test_public_logs_have_the_times_of_their_steps(
    name: str, kind: str, batch: int, tokens: int, times_s: list[float]
) -> None:
    log = read_step_log(LOGS / name)
    assert log.kind == kind
    assert log.times_s(batch or 128, tokens) == pytest.approx(times_s, rel=1e-5)


def test_a_coloured_log_of_several_ranks_has_the_median_of_each_step(tmp_path: Path) -> None:
    line = "\x1b[31mstep:  4  \x1b[32mloss: 7.6  \x1b[34mtps: {}  \x1b[36mtflops: 1\n"
    (tmp_path / "t.log").write_text("".join(map(line.format, ("10,050", "10,049", "9,000"))))
    assert read_step_log(tmp_path / "t.log").values == {4: 10_049}


def test_files_without_steps_and_other_batches_are_one_line_errors(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="128 samples per step; the workload has 64: change batch"):
        read_step_log(LOGS / "megatron.log").times_s(64, 0)
    with pytest.raises(InputError, match="tokens/s per GPU; the model of the workload has no tok"):
        read_step_log(LOGS / "torchtitan.log").times_s(64, 0)
    path = tmp_path / "m.csv"
    for text, wrong in (
        ("nothing\n", "no steps of Megatron-LM, TorchTitan, DeepSpeed, nanoGPT; a CSV table needs"),
        ("step,step_ms\n1,20\n2,-3\n", r"m.csv:3: step_ms '-3': must be a positive time"),
        ("step_s\n", "no rows: the table is empty"),
    ):
        path.write_text(text, encoding="utf-8")
        with pytest.raises(InputError, match=wrong):
            read_step_log(path)
    path.write_text("step,step_ms\n1,90\n2,20\n3,21\n", encoding="utf-8")
    assert read_step_log(path).times_s(1, 0) == [0.02, 0.021]


def test_an_agreeing_step_has_no_hypotheses() -> None:
    predicted_s = run(request()).step_time_s
    result = compared(1.05 * predicted_s)
    assert result.found is None
    assert result.error_pct == pytest.approx(100 * (1 / 1.05 - 1))
    assert "no hypothesis simulated" in "\n".join(result.lines())


@pytest.mark.parametrize(
    "title",
    ["kernels 20% slower (power or clocks)", "full recomputation", "unfused attention"],
)
def test_the_simulated_cause_of_a_step_is_first(title: str) -> None:
    changed = next(item for item in step_hypotheses(request()) if item.title == title)
    result = compared(run(changed.request).step_time_s)
    first = result.hypotheses[0]
    assert title in first.titles
    assert first.misfit_pct < 1 < result.misfit_pct
    assert result.to_json()["hypotheses"][0]["change"]


def test_the_unchanged_step_wins_where_no_change_is_closer() -> None:
    times_s = [run(item.request).step_time_s for item in step_hypotheses(request())]
    result = compared(min(*times_s, run(request()).step_time_s) / 3)
    least = min(cause.misfit_pct for cause in result.hypotheses)
    text = "\n".join(result.lines())
    if least < result.misfit_pct:
        assert f"none explains the measurement: the best leaves {least:.1f}%" in text
    else:
        assert "none explains the measurement: no change is closer" in text


def test_a_time_limit_keeps_the_hypotheses_simulated_before_it() -> None:
    result = compared(9.0, 1)
    assert result.omitted_part.startswith("time limit of 1 ps reached: 0 of ")
    assert not result.hypotheses


def test_the_command_excludes_other_modes_and_names_the_log(tmp_path: Path) -> None:
    workload, log = tmp_path / "w.yaml", tmp_path / "m.csv"
    workload.write_text(WORKLOAD, encoding="utf-8")
    log.write_text("step_s\n9\n9\n9\n", encoding="utf-8")
    words = ["train", str(workload), "--against", str(log)]
    refused = CliRunner().invoke(cli, [*words, "--layers"])
    assert refused.exit_code == 2
    assert "--layers does not simulate; not with --against" in refused.output
    told = CliRunner().invoke(cli, [*words, "--estimate", "--time-limit", "20s"])
    assert told.exit_code == 0, told.output
    assert f"against {log}: 2 steps of CSV" in " ".join(told.output.split())
