"""The report on a training step: exposed communication by dimension, utilisation, groups of ranks, own steps."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import clusim
from clusim.base.units import format_time
from clusim.collectives import ScheduleBuilder
from clusim.results.cause_kinds import CauseKind
from clusim.results.replicated import DIMENSIONS
from clusim.simulation.api import result_of
from clusim.simulation.request import ScheduleRequest
from clusim.simulation.setup import Setup
from clusim.training import TrainingResult
from clusim.training.breakdown import Breakdown, Spans, breakdown, spans_of
from clusim.training.estimate import estimate
from clusim.training.trainingreport import training_report
from clusim_cli.main import run
from support.workloads import ideal, tiny

DATA, TENSOR = DIMENSIONS.index("data"), DIMENSIONS.index("tensor")


def rows(*given: tuple[int, ...]) -> Any:
    return np.array(given, np.int64)


def step(text: str, **options: Any) -> TrainingResult:
    return clusim.train(tiny(text, batch="{global: 8, micro: 1}"), ideal(4), **options)


def test_time_exposed_to_two_dimensions_belongs_to_the_one_that_began_first() -> None:
    """Tensor data move 30 to 50, data-parallel ones 45 to 70; the rank computes 0 to 40 and 60 to 65."""
    moving = rows((45, 70, DATA), (30, 50, TENSOR))
    own = Spans(rows((0, 40), (60, 65)), moving, moving[:, :2], [])
    ((row,),) = breakdown({0: own}, [0], [(0, 100)])
    assert row.exposed_by_dimension_ps == {"data": 15, "tensor": 10}
    assert row.exposed_ps == 25
    (early,), (late,) = breakdown({0: own}, [0], [(0, 48), (48, 100)])
    assert early.exposed_by_dimension_ps == {"tensor": 8}
    assert late.exposed_by_dimension_ps == {"data": 15, "tensor": 2}


def test_an_all_reduce_alone_and_a_reduce_scatter_behind_a_kernel_are_exposed_as_computed() -> None:
    """The all-reduce is exposed from begin to end, the reduce-scatter where the kernel beside it has ended."""
    fabric = ideal(4)
    builder = ScheduleBuilder(fabric, "step")
    first = [builder.kernel(rank, compute_ps=1_000_000) for rank in range(4)]
    after = {rank: (task,) for rank, task in enumerate(first)}
    tensor = builder.collective("allreduce", 1 << 20, stream="tensor", after=after)
    after = {rank: (task,) for rank, task in enumerate(tensor)}
    data = builder.collective("reduce_scatter", 8 << 20, stream="data", after=after)
    beside = [builder.kernel(r, compute_ps=3_000_000, after=(t,)) for r, t in enumerate(tensor)]
    schedule = builder.build()
    result = result_of(ScheduleRequest(Setup(fabric), schedule))
    start, end = result.tasks.start_ps, result.tasks.end_ps
    spans = spans_of(schedule, start, end)
    (of_ranks,) = breakdown(spans, range(4), [(0, result.time_ps)])
    moves = max(int(end[task]) for task in first)
    for rank, row in enumerate(of_ranks):
        expected = {
            "data": int(end[data[rank]]) - int(end[beside[rank]]),
            "tensor": int(end[tensor[rank]]) - moves,
        }
        assert row.exposed_by_dimension_ps == expected
        assert expected["data"] > 0
        assert sum(expected.values()) == row.exposed_ps


@pytest.mark.parametrize("fold", ["none", "all"])
def test_dimensions_of_a_step_add_up_to_its_exposed_time(fold: str) -> None:
    found = step("parallel: {tensor: 2, pipeline: 2}", fold=fold, granularity=32768)
    for row in found.ranks:
        assert sum(row.exposed_by_dimension_ps.values()) == row.exposed_ps > 0
    means = found.to_json()["exposed_by_dimension_s"]
    assert set(means) >= {"tensor", "pipeline"}
    assert sum(means.values()) == pytest.approx(found.mean("exposed"), abs=2e-9)
    text = training_report(found)
    assert text.index("exposed communication") < text.index("    tensor ") < text.index("bubble  ")


def test_an_estimate_divides_the_exposed_time_as_the_step_does() -> None:
    work = tiny("parallel: {tensor: 2, data: 2}", batch="{global: 8, micro: 1}")
    made, real = estimate(work, ideal(4)), clusim.train(work, ideal(4))
    means = made.exposed_by_dimension_s
    assert list(means) == ["data", "tensor"]
    assert sum(means.values()) == pytest.approx(made.mean("exposed"))
    for dim, mean in real.exposed_by_dimension_s.items():
        assert means[dim] == pytest.approx(mean, rel=0.1)


def test_hardware_utilisation_is_printed_only_with_recomputation() -> None:
    plain, again = step("parallel: {data: 4}"), step("parallel: {data: 4}\nrecompute: full")
    assert f"MFU         {plain.mfu:.1%} of the peak\n" in training_report(plain)
    assert "HFU" not in training_report(plain)
    assert f"{again.hfu:.1%} of the peak, with recomputation\n" in training_report(again)
    assert again.hfu > again.mfu


def test_stages_of_pipedream_that_run_ahead_have_their_own_step() -> None:
    """In the steady state the slowest stage has no bubble, and nothing drains."""
    found = step("parallel: {pipeline: 4, data: 1}\npipeline: {schedule: pipedream}", steps=4)
    assert found.verdict.phases == ()
    busiest = max(found.ranks, key=lambda row: row.compute_ps)
    assert busiest.compute_ps == pytest.approx(busiest.total_ps, rel=0.01)
    assert busiest.total_ps == pytest.approx(found.step_ps[-1], rel=0.01)
    assert all(row.idle_ps == 0 for row in found.ranks)
    assert found.verdict.causes[0].kind is CauseKind.COMPUTE
    work = tiny("parallel: {pipeline: 4, data: 1}\npipeline: {schedule: pipedream}")
    assert estimate(work, ideal(4), steps=4).bubble_fraction == pytest.approx(
        found.bubble_fraction, rel=0.02
    )


@pytest.mark.parametrize("slow", ["", "stragglers: {ranks: {'1': 1.5}}\n"])
def test_workers_of_an_asynchronous_server_wait_for_its_updates(slow: str) -> None:
    """The server is no slow rank, and a slow worker holds nobody up."""
    wide = "{base: gpt3-1.3b, layers: 4, hidden: 1024, vocab: 1024}"
    text = f"data: {{kind: parameter-server, servers: 1, mode: async}}\n{slow}"
    work = tiny(text, model=wide, sequence="16", batch="{global: 7, micro: 1}")
    verdict = clusim.train(work, "dgx-a100", granularity=262144).verdict
    first = verdict.causes[0]
    assert first.words().startswith(
        "waiting for other ranks, limited by the updates of parameter server rank 7"
    )
    assert first.kind is CauseKind.IDLE
    assert sum(cause.time_ps for cause in verdict.causes) == verdict.time_ps
    named = [cause.what for cause in verdict.causes if cause.kind is CauseKind.STRAGGLER]
    assert named == (["rank 1"] if slow else [])


def test_ranks_with_equal_shares_share_a_line() -> None:
    found = step("parallel: {data: 4}")
    fast, slow = Breakdown(0, 80, 20, 0, 0, 20), Breakdown(0, 60, 20, 0, 20, 20)

    def table(count: int, slow_ranks: set[int]) -> list[str]:
        ranks = [replace(slow if r in slow_ranks else fast, rank=r) for r in range(count)]
        lines = training_report(replace(found, ranks=ranks)).splitlines()
        return [" ".join(line.split("%")[0].split()) for line in lines if line.count("%") == 5]

    assert table(24, {*range(8, 16)}) == ["0-7, 16-23 80.0", "8-15 60.0"]
    assert table(24, set()) == ["0-23 80.0"]
    even = "0, 2, 4, 6, ... (64 ranks) 80.0"
    assert table(128, {*range(1, 128, 2)})[0] == even, "of many ranges the first ones"


def test_of_many_different_ranks_some_of_each_stage_are_shown() -> None:
    found = step("parallel: {data: 4}")
    ranks = [Breakdown(r, 100 + r, 900 - r, 0, 0, 900 - r) for r in range(4)]
    many = [replace(ranks[0], rank=r, compute_ps=100 + r, exposed_ps=900 - r) for r in range(400)]
    assert "  and 384 more ranks; --json has all\n" not in training_report(
        replace(found, ranks=ranks)
    )
    text = training_report(replace(found, ranks=many))
    assert "  and 396 more ranks; --json has all\n" in text, "the mesh has four"


def test_the_figures_of_a_step_come_first_in_text_and_page(tmp_path: Path) -> None:
    """Time, throughput, MFU and memory precede the bottleneck; the expected error is given once."""
    trace = tmp_path / "step.h5"
    found = clusim.train(tiny("parallel: {data: 4}"), ideal(4), trace_out=trace)
    text = training_report(found)
    labels = ["\n  step ", "\n  throughput ", "\n  MFU ", "\n  memory ", "\n  bottleneck:"]
    places = [text.index(label) for label in labels]
    assert places == sorted(places)
    assert found.verdict.figures[0] == f"step: {format_time(found.step_ps[-1])}"
    assert run(["report", str(trace), "-o", str(tmp_path / "step.html")]) == 0
    page = (tmp_path / "step.html").read_text("utf-8")
    for name in ("Step", "Throughput", "MFU", "Memory"):
        assert 0 < page.index(f"<span>{name}</span>") < page.index('<div class="verdict">')
    for shown in (text, page):
        assert shown.count("not known without a host model") == 1
