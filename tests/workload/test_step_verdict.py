"""The verdict on a training step: each golden case is checked by a step without its first cause."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import clusim
from clusim.analysis.tracedverdict import judged_trace
from clusim.training import TrainingResult
from clusim.verdict import CauseKind
from support.workloads import ideal, tiny

PIPELINE = "parallel: {pipeline: 4, data: 1}\n"


def step(text: str, micro_batches: int = 4, **options: str) -> TrainingResult:
    batch = f"{{global: {micro_batches}, micro: 1}}"
    return clusim.train(tiny(text, batch=batch), ideal(4), steps=2, **options)


def test_a_bubble_is_named_and_is_what_many_microbatches_do_without() -> None:
    """Of seven turns of four stages and as many microbatches three are waited for; another one takes one more turn."""
    few, many = step(PIPELINE), step(PIPELINE, 64)
    turn_ps = (many.step_ps[-1] - few.step_ps[-1]) / 60
    first = few.verdict.causes[0]
    assert first.kind is CauseKind.BUBBLE
    assert first.time_ps == pytest.approx(3 * turn_ps, rel=0.1), "stages are not quite alike"
    assert first.saving_ps == first.time_ps
    assert many.verdict.causes[0].kind is CauseKind.COMPUTE


def test_a_host_that_is_late_is_named_and_is_what_a_step_without_it_saves() -> None:
    one = "parallel: {data: 1}\n"
    late, without = step(f"{one}host: {{framework: pytorch}}\n"), step(one)
    first = late.verdict.causes[0]
    assert first.kind is CauseKind.HOST
    assert first.saving_ps == pytest.approx(late.step_ps[-1] - without.step_ps[-1], rel=0.1)


def test_the_causes_of_a_step_are_its_parts() -> None:
    found = step(PIPELINE)
    assert sum(cause.time_ps for cause in found.verdict.causes) == pytest.approx(
        found.step_ps[-1], rel=0.01
    )


def test_the_trace_of_a_folded_step_has_the_verdict_of_the_command(tmp_path: Path) -> None:
    """A folded block is a pause in the trace: its critical path would blame the schedule."""
    path = tmp_path / "step.h5"
    found = step(PIPELINE, fold="all", trace_out=str(path))
    assert judged_trace(path).verdict == found.verdict == found.result.verdict
    assert json.loads(json.dumps(found.to_json()))["verdict"]["text"] == found.verdict.lines()
