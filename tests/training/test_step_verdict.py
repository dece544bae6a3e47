"""The verdict on a training step: each golden case is checked by a step without its first cause."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

import clusim
from clusim.analysis.diff import judged_trace
from clusim.base.errors import TimeLimitReached
from clusim.results.causes import CauseKind
from clusim.training import TrainingResult
from clusim.training.estimate import estimate
from support.workloads import ideal, tiny

PIPELINE = "parallel: {pipeline: 4, data: 1}\n"


def step(text: str, micro_batches: int = 4, **options: Any) -> TrainingResult:
    batch = f"{{global: {micro_batches}, micro: 1}}"
    return clusim.train(tiny(text, batch=batch), ideal(4), steps=2, **options)


def saved(found: TrainingResult) -> int:
    """Return what the fix of the first cause saved when it was simulated [ps]."""
    (first, *_) = found.verdict.causes
    assert first.saving_ps is not None
    return first.saving_ps


def test_a_bubble_is_named_and_is_what_many_microbatches_do_without() -> None:
    """Of seven turns of four stages and as many microbatches three are waited for; another one takes one more turn."""
    few, many = step(PIPELINE), step(PIPELINE, 64)
    turn_ps = (many.step_ps[-1] - few.step_ps[-1]) / 60
    first = few.verdict.causes[0]
    assert first.kind is CauseKind.BUBBLE
    assert first.time_ps == pytest.approx(3 * turn_ps, rel=0.1), "stages are not quite alike"
    passes_ps = few.verdict.phases[-1].start_ps - few.verdict.phases[0].start_ps
    assert saved(few) == pytest.approx(passes_ps - 4 * turn_ps, rel=0.01), "of the heaviest stage"
    assert many.verdict.causes[0].kind is CauseKind.COMPUTE


def test_a_host_that_is_late_is_named_and_is_what_a_step_without_it_saves() -> None:
    one = "parallel: {data: 1}\n"
    late, without = step(f"{one}host: {{framework: pytorch}}\n"), step(one)
    first = late.verdict.causes[0]
    assert first.kind is CauseKind.HOST
    assert saved(late) == late.step_ps[-1] - without.step_ps[-1]


def test_computing_twice_as_fast_saves_half_of_it_where_nothing_hides_behind_it() -> None:
    alone = step("parallel: {data: 1}\n")
    assert alone.verdict.causes[0].kind is CauseKind.COMPUTE
    assert alone.verdict.causes[0].then == "100.0% compute", "nothing else is there"
    assert saved(alone) == pytest.approx(alone.step_ps[-1] / 2, rel=1e-6)
    work = tiny("parallel: {data: 8}\n", batch="{global: 8, micro: 1}")
    found = clusim.train(work, "dgx-a100", confirm=True)
    first = found.verdict.causes[0]
    assert first.kind is CauseKind.COMPUTE
    assert 0 < saved(found) < first.time_ps // 2, "communication that it hid shows"


@pytest.mark.parametrize("parallel", ["{pipeline: 4, data: 1}", "{data: 4}"])
@pytest.mark.parametrize("declared", [False, True])
def test_a_slow_rank_is_named_and_is_what_sound_ranks_save(parallel: str, declared: bool) -> None:
    """A rank is slow by a fault or by the workload; others compute as long as before and wait for it."""
    text = f"parallel: {parallel}\n"
    how: dict[str, Any] = {} if declared else {"faults": ["rank 2 slow x2"]}
    slow = step(text + "stragglers: {ranks: {'2': 2}}\n" * declared, 16, **how)
    sound = step(text, 16)
    first = slow.verdict.causes[0]
    assert (first.kind, first.what) == (CauseKind.STRAGGLER, "rank 2")
    (after,) = sound.verdict.headlines()[:1]
    assert first.then == after.replace("of the time: ", ""), "the sound system's bottleneck"
    lost = slow.step_ps[-1] - sound.step_ps[-1]
    assert saved(slow) == pytest.approx(lost, rel=1e-6), "of it, blocks may be folded"
    assert all(cause.kind is not CauseKind.STRAGGLER for cause in sound.verdict.causes)


def test_two_slow_ranks_are_one_cause() -> None:
    """Mending one of them would save nothing."""
    found = step("parallel: {data: 4}\n", 16, faults=["rank 0 slow x2", "rank 2 slow x2"])
    first, sound = found.verdict.causes[0], step("parallel: {data: 4}\n", 16)
    assert (first.kind, first.what) == (CauseKind.STRAGGLER, "rank 0 and rank 2")
    assert saved(found) == pytest.approx(found.step_ps[-1] - sound.step_ps[-1], rel=1e-6)


def test_a_broken_link_is_named_and_is_what_the_sound_machine_saves() -> None:
    """With an eighth of its lanes left, a link is full for longer than the latencies of a small all-reduce."""

    def small(**options: Any) -> TrainingResult:
        work = tiny("parallel: {data: 8}\n", batch="{global: 8, micro: 1}", sequence="16")
        return clusim.train(work, "dgx-a100", steps=2, **options)

    found = small(faults=["lanes gpu0-nvswitch0.0 1/8 at 1ns"], confirm=True)
    first, sound = found.verdict.causes[0], small(confirm=False)
    assert (first.kind, first.what) == (CauseKind.FAULT, "gpu0<->nvswitch0.0")
    lost = found.step_ps[-1] - sound.step_ps[-1]
    assert saved(found) == lost
    exposed = [cause for cause in sound.verdict.causes if cause.kind is CauseKind.EXPOSED]
    assert exposed[0].what == "over NVLink, GPU-NVSwitch, all 96 links"
    assert exposed[0].saving_ps is None


def test_a_pipeline_fills_for_a_pass_of_each_stage_but_the_last() -> None:
    """The last of four stages begins when three forward passes are done, and drains for three backward ones."""
    found = step(PIPELINE, 16)
    fill, steady, drain = found.verdict.phases
    assert [phase.name for phase in found.verdict.phases] == ["warm-up", "steady state", "drain"]
    assert (fill.kind, steady.kind) == (CauseKind.BUBBLE, CauseKind.COMPUTE)
    assert fill.end_ps == steady.start_ps
    assert steady.end_ps == drain.start_ps
    long = step(PIPELINE, 64).verdict.phases
    assert long[-1].end_ps - long[-1].start_ps == pytest.approx(
        drain.end_ps - drain.start_ps, rel=0.2
    )
    turn_ps = (step(PIPELINE, 64).step_ps[-1] - found.step_ps[-1]) / 48
    assert fill.end_ps - fill.start_ps + drain.end_ps - drain.start_ps == pytest.approx(
        3 * turn_ps, rel=0.2
    )


def test_an_estimate_has_the_phases_of_the_step() -> None:
    work = tiny(PIPELINE, batch="{global: 16, micro: 1}")
    made, simulated = estimate(work, ideal(4)).verdict, step(PIPELINE, 16).verdict
    assert [p.name for p in made.phases] == [p.name for p in simulated.phases]
    assert [p.kind for p in made.phases] == [p.kind for p in simulated.phases]
    for one, two in zip(made.phases, simulated.phases, strict=True):
        assert one.end_ps - one.start_ps == pytest.approx(two.end_ps - two.start_ps, rel=0.02)


def test_the_causes_of_a_step_are_its_parts() -> None:
    found = step(PIPELINE)
    assert sum(cause.time_ps for cause in found.verdict.causes) == found.step_ps[-1]


def test_the_trace_of_a_folded_step_has_the_verdict_of_the_command(tmp_path: Path) -> None:
    """A folded block is a pause in the trace: its critical path would blame the schedule."""
    path = tmp_path / "step.h5"
    found = step(PIPELINE, fold="all", trace_out=str(path))
    assert judged_trace(path).verdict == found.verdict == found.result.verdict
    assert json.loads(json.dumps(found.to_json()))["verdict"]["text"] == found.verdict.lines()


@pytest.mark.parametrize(
    ("parallel", "options"),
    [
        ("{pipeline: 4, data: 1}", {}),
        ("{pipeline: 4, data: 1}", {"faults": ["rank 2 slow x2"]}),
        ("{pipeline: 2, data: 2}", {"fold": "none"}),
        ("{data: 4}", {"faults": ["rank 0 slow x2", "lanes gpu1-switch0 1/2 at 1ns"]}),
    ],
)
def test_causes_and_phases_add_up_to_the_picosecond(parallel: str, options: Any) -> None:
    found = step(f"parallel: {parallel}\n", 16, **options, confirm=False)
    verdict = found.verdict
    assert sum(cause.time_ps for cause in verdict.causes) == verdict.time_ps == found.step_ps[-1]
    for part in (*verdict.causes, *(one for phase in verdict.phases for one in phase.causes)):
        assert sum(row.time_ps for row in part.resources) == part.time_ps
        assert all(sum(p.time_ps for p in row.places) == row.time_ps for row in part.resources)
    for phase in verdict.phases:
        assert sum(one.time_ps for one in phase.causes) == phase.end_ps - phase.start_ps
    ends = [(phase.start_ps, phase.end_ps) for phase in verdict.phases]
    assert all(one[1] == two[0] for one, two in pairwise(ends))


def test_a_re_simulation_that_a_time_limit_ends_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    def late(*_: object) -> None:
        raise TimeLimitReached("time limit of 90 s")

    monkeypatch.setattr("clusim.training.run._Steps._faster_kernels", late)
    verdict = step("parallel: {data: 1}\n").verdict
    assert verdict.unfinished == "saving of the bottleneck; time limit of 90 s"
    assert verdict.causes[0].saving_ps is None
    assert f"not simulated: {verdict.unfinished}" in verdict.lines()
