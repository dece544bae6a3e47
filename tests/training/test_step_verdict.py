"""The verdict on a training step: each golden case is checked by a step without its first cause."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import clusim
from clusim.analysis.diff import judged_trace
from clusim.base.errors import TimeLimitReached
from clusim.results.cause_kinds import CauseKind
from clusim.results.causes import VerdictCause
from clusim.results.diagnosis import Verdict
from clusim.training import TrainingResult, remedies
from clusim.training.api import train_request
from clusim.training.breakdown import Breakdown
from clusim.training.estimate import estimate
from clusim.training.remedies import JudgedStep
from clusim.training.step_diagnosis import step_verdict
from clusim.training.switches import Sharing
from clusim.workload import make_plan
from clusim_cli.main import cli
from support.workloads import ideal, tiny

PIPELINE = "parallel: {pipeline: 4, data: 1}\n"
EIGHT = "{global: 8, micro: 1}"
ONE_LAYER = (
    "{base: gpt3-1.3b, layers: 1, hidden: 256, heads: 8, head_size: 32, kv_heads: 8,"
    " intermediate: 1024, vocab: 256}"
)


def step(text: str, micro_batches: int = 4, **options: Any) -> TrainingResult:
    batch = f"{{global: {micro_batches}, micro: 1}}"
    return clusim.train(tiny(text, batch=batch), ideal(4), steps=2, **options)


def proved(text: str, micro_batches: int = 4, **options: Any) -> TrainingResult:
    """Return a step whose verdict simulations of its changes have proven."""
    found = step(text, micro_batches, **options)
    found.diagnose()
    return found


def saved(found: TrainingResult) -> int:
    """Return what the fix of the first cause saved when it was simulated [ps]."""
    (first, *_) = found.verdict.causes
    assert first.saving_ps is not None
    return first.saving_ps


def cause_of(found: TrainingResult, kind: CauseKind) -> VerdictCause:
    """Return the cause of a kind."""
    (cause,) = [cause for cause in found.verdict.causes if cause.kind is kind]
    return cause


def test_changes_are_simulated_once_and_only_for_a_diagnosis(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Reading the verdict, or the result's JSON form, simulates no change."""
    asked: list[str] = []
    prove = remedies.proved_step

    def counted(step: JudgedStep, *how: Any) -> Verdict:
        asked.append(step.request.workload.name)
        return prove(step, *how)

    monkeypatch.setattr("clusim.training.remedies.proved_step", counted)
    work = tiny("parallel: {data: 1}\n", batch="{global: 4, micro: 1}")
    for found in (step("parallel: {data: 1}\n"), estimate(work, ideal(4))):
        before = found.verdict
        assert (before.proof, found.to_json()["verdict"]["text"]) == ("", before.lines())
        assert not asked
        after = found.diagnose()
        assert after.proof.startswith("certain: ")
        assert found.diagnose() == found.verdict == after
        assert len(asked) == 1
        asked.clear()


def test_a_bubble_has_the_schedule_that_shortens_it() -> None:
    """Of seven turns of four stages and as many microbatches three are waited for; another one takes one more turn."""
    few, many = proved(PIPELINE), step(PIPELINE, 64)
    turn_ps = (many.step_ps[-1] - few.step_ps[-1]) / 60
    bubble = cause_of(few, CauseKind.BUBBLE)
    assert bubble.time_ps == pytest.approx(3 * turn_ps, rel=0.1), "stages are not quite alike"
    assert bubble.remedy == "pipeline.schedule=zero-bubble"
    shorter = step(f"{PIPELINE}pipeline: {{schedule: zero-bubble}}\n")
    assert bubble.saving_ps == few.step_ps[-1] - shorter.step_ps[-1] > 0
    first = few.verdict.causes[0]
    assert first.kind is CauseKind.COMPUTE
    assert first.settings.startswith(f"{bubble.remedy} -")
    assert f"settings: {first.settings}" in few.verdict.lines()


def test_a_host_that_is_late_has_the_setting_that_launches_graphs() -> None:
    one = "parallel: {data: 1}\n"
    late = proved(f"{one}host: {{framework: pytorch}}\n", confirm=True)
    graph = step(f"{one}host: {{framework: cuda-graph}}\n")
    first = late.verdict.causes[0]
    assert (first.kind, first.remedy) == (CauseKind.HOST, "host.framework=cuda-graph")
    assert saved(late) == late.step_ps[-1] - graph.step_ps[-1]
    assert first.settings.startswith("batch.micro=2 -")


def test_computing_twice_as_fast_saves_half_of_it_where_nothing_hides_behind_it() -> None:
    alone = proved("parallel: {data: 1}\n")
    assert alone.verdict.causes[0].kind is CauseKind.COMPUTE
    assert alone.verdict.causes[0].then == "100.0% compute", "nothing else is there"
    assert saved(alone) == pytest.approx(alone.step_ps[-1] / 2, rel=1e-6)
    work = tiny("parallel: {data: 8}\n", batch=EIGHT, model=ONE_LAYER)
    found = clusim.train(work, "dgx-a100", steps=1, confirm=True)
    found.diagnose()
    first = found.verdict.causes[0]
    assert first.kind is CauseKind.COMPUTE
    assert 0 < saved(found) < first.time_ps // 2, "communication that it hid shows"


@pytest.mark.parametrize("parallel", ["{pipeline: 4, data: 1}", "{data: 4}"])
@pytest.mark.parametrize("declared", [False, True])
def test_a_slow_rank_is_named_and_is_what_sound_ranks_save(parallel: str, declared: bool) -> None:
    """A rank is slow by a fault or by the workload; others compute as long as before and wait for it."""
    text = f"parallel: {parallel}\n"
    how: dict[str, Any] = {} if declared else {"faults": ["rank 2 slow x2"]}
    slow = proved(text + "stragglers: {ranks: {'2': 2}}\n" * declared, 16, **how)
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
    found = proved("parallel: {data: 4}\n", 16, faults=["rank 0 slow x2", "rank 2 slow x2"])
    first, sound = found.verdict.causes[0], step("parallel: {data: 4}\n", 16)
    assert (first.kind, first.what) == (CauseKind.STRAGGLER, "rank 0 and rank 2")
    assert saved(found) == pytest.approx(found.step_ps[-1] - sound.step_ps[-1], rel=1e-6)


def test_a_broken_link_is_named_and_is_what_the_sound_machine_saves() -> None:
    """With an eighth of its lanes left, a link is full for longer than the latencies of a small all-reduce."""

    def small(**options: Any) -> TrainingResult:
        work = tiny("parallel: {data: 8}\n", batch=EIGHT, sequence="16", model=ONE_LAYER)
        return clusim.train(work, "dgx-a100", steps=1, **options)

    found = small(faults=["lanes gpu0-nvswitch0.0 1/8 at 1ns"], confirm=True)
    found.diagnose()
    first, sound = found.verdict.causes[0], small()
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
    many = step(PIPELINE, 64)
    long = many.verdict.phases
    assert long[-1].end_ps - long[-1].start_ps == pytest.approx(
        drain.end_ps - drain.start_ps, rel=0.2
    )
    turn_ps = (many.step_ps[-1] - found.step_ps[-1]) / 48
    assert fill.end_ps - fill.start_ps + drain.end_ps - drain.start_ps == pytest.approx(
        3 * turn_ps, rel=0.2
    )


def test_an_estimate_has_the_phases_of_the_step() -> None:
    work = tiny(PIPELINE, batch="{global: 16, micro: 1}")
    made = estimate(work, ideal(4)).verdict
    simulated = step(PIPELINE, 16).verdict
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
    assert judged_trace(path).verdict == found.verdict == found.diagnose()
    assert found.result.verdict == found.result.diagnose() == found.verdict
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
    found = step(f"parallel: {parallel}\n", 16, **options)
    verdict = found.verdict
    assert sum(cause.time_ps for cause in verdict.causes) == verdict.time_ps == found.step_ps[-1]
    for part in (*verdict.causes, *(one for phase in verdict.phases for one in phase.causes)):
        assert sum(row.time_ps for row in part.resources) == part.time_ps
        assert all(sum(p.time_ps for p in row.places) == row.time_ps for row in part.resources)
    for phase in verdict.phases:
        assert sum(one.time_ps for one in phase.causes) == phase.end_ps - phase.start_ps
    ends = [(phase.start_ps, phase.end_ps) for phase in verdict.phases]
    assert all(one[1] == two[0] for one, two in pairwise(ends))


def test_a_change_that_a_time_limit_ends_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    prove = remedies.proved_step

    def ended(step: JudgedStep, run: object, most: int | None) -> Verdict:
        def late(_: object) -> TrainingResult:
            raise TimeLimitReached("time limit of 90 s")

        return prove(step, late, most)

    monkeypatch.setattr("clusim.training.remedies.proved_step", ended)
    verdict = proved("parallel: {data: 1}\n").verdict
    assert verdict.unfinished == "changes; time limit of 90 s"
    assert verdict.causes[0].saving_ps is None
    assert verdict.proof == "not certain: not simulated: compute x2 (--confirm)"
    assert f"not simulated: {verdict.unfinished}" in verdict.lines()


def test_a_repair_precedes_faster_kernels_that_save_more() -> None:
    """A rank 1.3 times slower costs 23%; kernels twice as fast save half of any step."""
    found = proved("parallel: {data: 4}\n", 16, faults=["rank 2 slow x1.3"])
    first = found.verdict.causes[0]
    assert (first.kind, first.remedy) == (CauseKind.STRAGGLER, "rank 2 repaired")
    faster = cause_of(found, CauseKind.COMPUTE)
    assert faster.saving_ps is not None
    assert 0.1 * faster.saving_ps < saved(found) < 0.7 * faster.saving_ps
    assert found.verdict.proof.startswith("certain: only compute x2 saves more (")


def test_a_slight_fault_does_not_hide_what_saves_ten_times_as_much() -> None:
    found = proved("parallel: {data: 4}\n", 16, faults=["rank 2 slow x1.02"])
    assert found.verdict.causes[0].kind is CauseKind.COMPUTE
    assert cause_of(found, CauseKind.STRAGGLER).saving_ps


def test_a_link_that_is_down_is_a_candidate_though_no_traffic_uses_it() -> None:
    """Plans avoid the link, so that no time is attributed to it."""
    work = tiny("parallel: {data: 8}\n", batch="{global: 8, micro: 1}")
    request = train_request(work, "dgx-a100", faults=["link gpu0-nvswitch2 down"])
    plan, row = make_plan(work, request.setup.known), Breakdown(0, 5, 5, 0, 0, 0, 0)
    verdict = step_verdict([(("", 0, 10), [row])], "")
    step = JudgedStep(request, plan, verdict, [row], 1, Sharing(), ["nvlink"])
    first, *others = remedies.step_remedies(step)
    assert first.words == "gpu0<->nvswitch2.0 repaired"
    assert not first.request.setup.faults
    assert (first.estimate_ps, first.most_ps) == (0, 5), "kernels are as long with the link"
    assert {"compute x2", "nvlink x2"} <= {one.words for one in others}


def test_a_change_that_is_not_simulated_has_a_limit_by_the_kernels() -> None:
    """Kernels take nearly all of the step, so that no faster link can save as much as faster kernels."""
    found = proved("parallel: {data: 4}\n", 64)
    verdict = found.verdict
    assert verdict.causes[0].remedy == "compute x2"
    assert verdict.proof.startswith("certain: no other single change saves more (")
    told = proved("parallel: {data: 4}\n", 64, confirm=True).verdict.causes[0]
    assert told.saving_ps == verdict.causes[0].saving_ps


def test_steps_too_large_to_prove_say_that_no_change_was_simulated(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("clusim.training.remedies.CHEAP_TASKS", 1)
    found = proved(PIPELINE)
    assert found.verdict.proof == "not certain: no change was simulated (--confirm)"
    assert all(cause.saving_ps is None for cause in found.verdict.causes)
    assert found.verdict.order, "by share"


def test_recomputation_is_a_candidate_only_if_memory_suffices() -> None:
    text = "parallel: {data: 4}\nrecompute: full\n"
    found = proved(text, confirm=True)
    compute = cause_of(found, CauseKind.COMPUTE)
    assert "recompute=none -" in (compute.settings or compute.remedy)
    whole = make_plan(tiny("parallel: {data: 4}\n", batch="{global: 4, micro: 1}"), ideal(4))
    least = whole.memory(0).total - 1
    full = proved(f"{text}hardware: {{memory: {least}}}\n", confirm=True)
    assert all("recompute" not in f"{c.settings}{c.remedy}" for c in full.verdict.causes)


def test_an_estimate_proves_its_bottleneck_as_the_simulation_does() -> None:
    work = tiny(PIPELINE, batch="{global: 16, micro: 1}")
    made, simulated = estimate(work, ideal(4), confirm=True), proved(PIPELINE, 16, confirm=True)
    one, two = made.diagnose().causes[0], simulated.verdict.causes[0]
    assert (one.remedy, one.kind) == (two.remedy, two.kind)
    assert one.saving_ps == pytest.approx(two.saving_ps, rel=0.05)
    assert made.verdict.proof.startswith("certain: ")


WORDS = """
model: {base: gpt3-1.3b, layers: 4, hidden: 256, heads: 8, head_size: 32, kv_heads: 8, intermediate: 1024, vocab: 1024}
sequence: 128
batch: {global: 16, micro: 2}
parallel: {data: 2, pipeline: 2, ranks: [0, 1, 8, 9]}
host: {framework: pytorch}
"""


def test_every_change_of_a_step_has_words_that_what_if_takes_with_the_same_saving(
    tmp_path: Path,
) -> None:
    """Over two nodes, with a slow rank and a slow link."""
    path = tmp_path / "work.yaml"
    path.write_text(WORDS, encoding="utf-8")
    faults = ["rank 1 slow x1.5", "lanes n0/gpu0-n0/nvswitch0.0 1/2"]
    found = clusim.train(path, "dgx-a100", nodes=2, faults=faults, confirm=True)
    causes = [cause for cause in found.diagnose().causes if cause.saving_ps is not None]
    assert {"compute x2", "rank 1 repaired"} < {cause.remedy for cause in causes}
    shown = " ".join(f"--fault '{fault}'" for fault in faults)
    base = f"train {path} dgx-a100 --nodes 2 {shown}"
    words = [cause.remedy for cause in causes]
    done = CliRunner().invoke(cli, ["what-if", base, *words, "--no-progress", "--json"])
    rows = json.loads(done.stdout)["rows"]
    assert [row["change"] for row in rows] == words
    savings = [row["baseline"]["time_ps"] - row["planned"]["time_ps"] for row in rows]
    assert savings == [cause.saving_ps for cause in causes]
    best = max(savings)
    first = causes[0].saving_ps or 0
    assert first >= (0.1 if causes[0].remedy.endswith(" repaired") else 1) * best
