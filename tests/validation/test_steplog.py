"""Logs of measured steps, line by line: units, the first step, medians of ranks, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from clusim.base.errors import InputError
from clusim.validation.steps.steplog import StepLog, read_step_log, spread_of


def log(folder: Path, text: str) -> StepLog:
    path = folder / "log.txt"
    path.write_text(text, encoding="utf-8")
    return read_step_log(path)


@pytest.mark.parametrize(
    ("text", "kind", "unit", "values", "batch"),
    [
        (
            "x iteration        7/ 500 | consumed samples: 7 | elapsed time per iteration (ms): 250.5"
            " | global batch size:    64 |\n",
            *("Megatron-LM", "ms", {7: 250.5}, 64),
        ),
        (
            "\x1b[31mstep: 10  loss: 1.0  tps: 7,500  mfu: 40%\x1b[0m\n",
            *("TorchTitan", "tokens/s per GPU", {10: 7500.0}, 0),
        ),
        (
            "epoch=0/micro_step=9/global_step=3, RunningAvgSamplesPerSec=8.5, CurrSamplesPerSec=9.5,\n",
            *("DeepSpeed", "samples/s", {3: 9.5}, 0),
        ),
        ("[Rank 0] 0/4, SamplesPerSec=12.0\n", "DeepSpeed", "samples/s", {4: 12.0}, 0),
        ("iter 5: loss 3.1, time 120.50ms, mfu 1%\n", "nanoGPT", "ms", {5: 120.5}, 0),
    ],
)
def test_a_line_of_each_log(
    text: str, kind: str, unit: str, values: dict[int, float], batch: int, tmp_path: Path
) -> None:
    found = log(tmp_path, f"a line before\n{text}")
    assert (found.kind, found.unit, found.values, found.batch) == (kind, unit, values, batch)


def test_a_step_that_ranks_print_is_their_median_and_zeros_are_none(tmp_path: Path) -> None:
    lines = [f"iter 1: loss 3, time {ms}ms" for ms in (10, 30, 0.5, 0, 11, 12)]
    assert log(tmp_path, "\n".join(lines)).values == {1: 11.0}


def test_times_are_seconds_without_the_first_of_several_steps() -> None:
    assert StepLog("x", "", "ms", {3: 3000, 1: 9000, 2: 2000}).times_s(8, 0) == [2.0, 3.0]
    assert StepLog("x", "", "s", {1: 9, 2: 2}).times_s(8, 0) == [9, 2]
    assert StepLog("x", "", "samples/s", {1: 4.0}).times_s(8, 0) == [2.0]
    assert StepLog("x", "", "tokens/s per GPU", {1: 100.0}).times_s(8, 500.0) == [5.0]


def test_a_log_of_another_batch_or_without_tokens_is_refused() -> None:
    assert StepLog("x", "", "s", {1: 9}, 8).times_s(8, 0) == [9]
    with pytest.raises(InputError, match="x: 16 samples per step; the workload has 8"):
        StepLog("x", "", "s", {1: 9}, 16).times_s(8, 0)
    with pytest.raises(InputError, match="the model of the workload has no tokens"):
        StepLog("x", "", "tokens/s per GPU", {1: 9}).times_s(8, 0)


def test_tables_are_in_seconds_or_milliseconds(tmp_path: Path) -> None:
    found = log(tmp_path, "\n \nrank, step_s \n0, 2.5\n\n0, 3\n")
    assert (found.kind, found.unit, found.values) == ("CSV", "s", {1: 2.5, 2: 3.0})
    assert log(tmp_path, "step_ms\n2500\n").unit == "ms"
    assert log(tmp_path, "step_ms\n1000000000\n0.5\n").values == {1: 1e9, 2: 0.5}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("step_s,x\n1,2\n0,3\n", r":3: step_s '0': must be a positive time"),
        ("\nx,step_s\n\n1,1\n1\n", r":5: step_s '': must be a positive time"),
        ("x,step_s\n1\n", r":2: step_s '': must be a positive time"),
        ("step_s\n", "no rows: the table is empty"),
        ("step_s\n1000001\n", "step_s '1000001': must be a positive time"),
        ("step_ms\n1000000001\n", "step_ms '1000000001': must be a positive time"),
        ("nothing\n", "no steps of Megatron-LM, TorchTitan, DeepSpeed, nanoGPT; a CSV table"),
        ("iter 1: loss 3, time 0ms\n", "no steps of"),
    ],
)
def test_what_has_no_steps_is_refused_with_its_line(text: str, words: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=words):
        log(tmp_path, text)


def test_the_spread_is_the_distance_of_quartiles_by_the_median() -> None:
    assert spread_of([1.0, 2.0, 3.0]) == 0
    assert spread_of([1.0, 2.0, 3.0, 4.0]) == pytest.approx((3.75 - 1.25) / 2.5)
    assert spread_of([7.0] * 5) == 0
