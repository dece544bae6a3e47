"""Goodput by formula, against jobs that fail by lot, published approximations and limits by hand."""

from __future__ import annotations

import random
from math import exp, expm1, sqrt

import pytest

import clusim
from clusim.base.errors import ClusimError
from clusim.training import training_report
from clusim.training.goodput import Failing, Goodput, daly_interval_s, goodput_of, young_interval_s
from clusim.workload.host import host_way
from clusim.workload.parallel.plan import make_plan
from support.workloads import tiny

A100 = clusim.load("dgx-a100")


def played(job: Failing, work_s: float, segments: int, draw: random.Random) -> float:
    """Return how long so many checkpoints take of a job that fails by lot, each [s].

    From a restart on, checkpoint j is made after j times work and stall, and whole `write_s` later.
    """
    clock, whole, each = 0.0, 0, work_s + job.stall_s
    while True:
        running = draw.expovariate(1 / job.mtbf_s)
        made = max(0, int((running - job.write_s) // each))
        if whole + made >= segments:
            return (clock + (segments - whole) * each + job.write_s) / segments
        whole, clock = whole + made, clock + running
        while (fails := draw.expovariate(1 / job.mtbf_s)) < job.restart_s:
            clock += fails
        clock += job.restart_s


@pytest.mark.parametrize(
    ("job", "work_s"),
    [
        (Failing(10_000, 60, 300), 1000),
        (Failing(2_000, 60, 600), 1000),
        (Failing(500, 30, 200), 100),
        (Failing(10_000, 5, 300, 400), 500),
        (Failing(1_000, 10, 100, 200), 300),
        (Failing(300, 10, 100, 200), 250),
    ],
)
def test_jobs_that_fail_by_lot_take_as_long_as_the_formula_says(
    job: Failing, work_s: float
) -> None:
    draw = random.Random(7)
    times = [played(job, work_s, 2_000, draw) for _ in range(40)]
    mean = sum(times) / len(times)
    spread = sqrt(sum((t - mean) ** 2 for t in times)) / len(times)
    assert job.segment_s(work_s) == pytest.approx(mean, abs=4 * spread)
    assert spread < 0.02 * mean


def test_the_formula_is_dalys_where_checkpoints_are_whole_at_once() -> None:
    for mean, stall, restart, work in ((1e4, 60, 300, 1000), (500, 30, 200, 100), (1e6, 1, 0, 5e3)):
        daly = mean * exp(restart / mean) * expm1((work + stall) / mean)
        assert Failing(mean, stall, restart).segment_s(work) == pytest.approx(daly, rel=1e-12)


def test_nothing_is_lost_where_nothing_fails_or_costs() -> None:
    assert Failing(1e15, 10, 100).segment_s(90) == pytest.approx(100)
    whole = Goodput(Failing(1e15, 10, 100), 1, 9, 10.0, 30.0)
    assert whole.useful == pytest.approx(0.9)
    assert whole.checkpoints == pytest.approx(0.1)
    assert whole.redone == pytest.approx(0, abs=1e-9)
    assert whole.steps == pytest.approx(0.9 * 30 * 8640)


@pytest.mark.parametrize("mtbf_s", [1e4, 1e5, 1e6])
@pytest.mark.parametrize("stall_s", [1, 10, 100])
def test_the_best_interval_is_near_the_published_ones(mtbf_s: float, stall_s: float) -> None:
    """Daly's by less than 1 %; Young's is longer, by the stall at most, and wastes hardly more."""
    job = Failing(mtbf_s, stall_s, 300)
    best = job.best_steps(0.25) * 0.25
    assert best == pytest.approx(daly_interval_s(mtbf_s, stall_s), rel=0.01, abs=0.5)
    young = young_interval_s(mtbf_s, stall_s)
    assert 0 <= young - best <= stall_s + 0.5
    assert job.segment_s(young) / young <= 1.002 * job.segment_s(best) / best
    for other in (best - 0.25, best + 0.25):
        assert job.segment_s(best) / best <= job.segment_s(other) / other


def test_what_is_lost_adds_up() -> None:
    own = Goodput(Failing(2_000, 60, 600, 50), 1, 100, 10.0, 30.0)
    assert own.useful + own.checkpoints + own.restarts + own.redone == pytest.approx(1)
    assert own.restarts == pytest.approx(1 - exp(-600 / 2000))
    assert own.failures == pytest.approx(30 * 86_400 / 2_000)


TEXT = "reliability: {{gpu_mtbf_h: 100, restart_s: 300, checkpoint: {{write: 1 GB/s{}}}}}\n"


def test_a_checkpoint_has_weights_and_states_once() -> None:
    """2 + 12 bytes a parameter with Adam; on eight GPUs a job fails eight times as often as one."""
    plan = make_plan(tiny(TEXT.format("")), A100)
    own = goodput_of(plan, 0.5)
    assert own is not None
    assert own.checkpoint_bytes == 14 * plan.model.parameters
    assert own.job == Failing(100 * 3600 / 8, own.checkpoint_bytes / 1e9, 300.0)
    later = goodput_of(make_plan(tiny(TEXT.format(", asynchronous: true")), A100), 0.5)
    assert later is not None
    rate = host_way(A100).rate_Bps
    assert later.job.stall_s == pytest.approx(own.checkpoint_bytes / 8 / rate)
    assert later.job.write_s == own.job.stall_s
    assert later.useful > own.useful
    assert goodput_of(make_plan(tiny(), A100), 0.5) is None


def test_intervals_are_whole_steps_and_writes_end_before_the_next() -> None:
    own = goodput_of(make_plan(tiny(TEXT.format(", every_s: 7")), A100), 0.5)
    assert own is not None
    assert (own.interval_steps, own.work_s) == (14, 7.0)
    slow = TEXT.replace("1 GB/s", "1 MB/s")
    with pytest.raises(ClusimError, match="longer than the 7 s between two"):
        goodput_of(make_plan(tiny(slow.format(", asynchronous: true, every_s: 7")), A100), 0.5)
    best = goodput_of(make_plan(tiny(slow.format(", asynchronous: true")), A100), 0.5)
    assert best is not None
    assert best.work_s >= best.job.write_s


def test_a_step_says_its_goodput() -> None:
    work = tiny("parallel: {data: 2}\n" + TEXT.format(""), batch="{global: 2, micro: 1}")
    found = clusim.train(work, A100, steps=1, granularity=65536, fold="none")
    data = found.to_json()["goodput"]
    assert data["useful_steps"] * found.step_time_s == pytest.approx(
        30 * 86_400 * data["goodput"], rel=1e-4
    )
    assert "steps in 30 days" in training_report(found)
