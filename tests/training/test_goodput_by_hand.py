"""Goodput by hand: intervals, the best number of steps by trying all, stops of checkpoints, and what is refused."""

from __future__ import annotations

from math import exp, expm1, inf
from types import SimpleNamespace
from typing import Any

import pytest

from clusim.base.errors import ClusimError
from clusim.topology import load
from clusim.training import goodput as module
from clusim.training.goodput import Failing, Goodput, daly_interval_s, goodput_of, young_interval_s
from clusim.workload.parallel.plan import make_plan
from support.workloads import tiny


def test_published_intervals_by_hand() -> None:
    """8 s between failures and stops of 1 s: 4 s by Young; by Daly 4 (1 + 1/12 + 1/144) - 1."""
    assert young_interval_s(8, 1) == 4
    assert daly_interval_s(8, 1) == pytest.approx(4 * (1 + 1 / 12 + 1 / 144) - 1)
    assert daly_interval_s(100, 200) == 100
    assert daly_interval_s(100, 250) == 100
    assert daly_interval_s(100, 199.9) != 100


def test_a_time_without_an_end_is_infinite() -> None:
    assert Failing(1, 0, 699).segment_s(1) == pytest.approx(-expm1(-1) * exp(700))
    assert Failing(1, 0, 699).segment_s(1.5) == inf
    assert Failing(2, 10, 300, 1000).segment_s(100) == inf


@pytest.mark.parametrize(
    ("job", "step_s"),
    [
        (Failing(1e4, 10, 300), 1.0),
        (Failing(1e3, 1, 300), 7.0),
        (Failing(1e3, 0.001, 10, 50), 10.0),
        (Failing(1e3, 0.001, 10, 50), 9.9),
        (Failing(1e3, 0.001, 10, 49.9), 10.0),
        (Failing(1e5, 30, 10, 500), 3.0),
        (Failing(1e5, 30, 10, 5000), 30.0),
        (Failing(10, 1, 1), 100.0),
    ],
)
def test_the_best_number_of_steps_wastes_the_least_of_all(job: Failing, step_s: float) -> None:
    possible = [n for n in range(1, 3000) if n * step_s >= job.write_s]
    assert job.best_steps(step_s) == min(
        possible, key=lambda steps: job.segment_s(steps * step_s) / steps
    )


def test_where_every_number_wastes_alike_the_least_is_taken() -> None:
    """Without failures and stops an interval costs nothing."""
    assert Failing(1e300, 0, 0).best_steps(1.0) == 1
    assert Failing(1e300, 0, 0, 6.5).best_steps(1.0) == 7


SIZE: Any = SimpleNamespace(bytes=800, copy_s=3.0, write_s=8.0)


def times(**spec: bool) -> tuple[float, float]:
    spec = {"asynchronous": False, "overlap": False, **spec}
    return module._times(SimpleNamespace(**spec), SIZE, 2.0)  # type: ignore[arg-type]


def test_stops_for_a_checkpoint_and_times_until_it_is_complete() -> None:
    """Copies of 3 s beside writes of 8 s; behind a step of 2 s, 1 s of the copy stops the job."""
    assert times() == (8.0, 0.0)
    assert times(asynchronous=True) == (3.0, 8.0)
    assert times(asynchronous=True, overlap=True) == (1.0, 10.0)
    quick: Any = SimpleNamespace(asynchronous=True, overlap=True)
    assert module._times(quick, SIZE, 5.0) == (0.0, 11.0)
    slow: Any = SimpleNamespace(bytes=1, copy_s=9.0, write_s=8.0)
    assert module._times(SimpleNamespace(asynchronous=False), slow, 2.0) == (9.0, 0.0)  # type: ignore[arg-type]


@pytest.fixture
def planned(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a function from keys of checkpoints to the plan of eight GPUs that fail once in 100 hours each."""
    monkeypatch.setattr(module, "checkpoint_of", lambda _: SIZE)
    text = "reliability: {{gpu_mtbf_h: 100, restart_s: 300, checkpoint: {{write: 1 GB/s{}}}}}\n"
    fabric = load("dgx-a100")
    return lambda keys: make_plan(tiny(text.format(keys)), fabric)


def test_a_simulated_stop_replaces_the_estimate_and_leaves_the_rest(planned: Any) -> None:
    found = goodput_of(planned(", asynchronous: true"), 2.0, stall_s=1.0)
    assert found is not None
    assert found.job == Failing(45_000, 1.0, 300, 10.0)  # 3 s and 8 s before
    found = goodput_of(planned(", asynchronous: true"), 2.0, stall_s=20.0)
    assert found is not None
    assert found.job == Failing(45_000, 20.0, 300, 0.0)
    assert (found.checkpoint_bytes, found.step_s, found.days) == (800, 2.0, 30)


@pytest.mark.parametrize(
    ("keys", "steps"), [(", every: 7", 7), (", every_s: 9", 4), (", every_s: 0.1", 1)]
)
def test_a_given_interval_is_whole_steps(planned: Any, keys: str, steps: int) -> None:
    found = goodput_of(planned(keys), 2.0)
    assert found is not None
    assert (found.interval_steps, found.work_s) == (steps, 2.0 * steps)


def test_a_write_ends_when_the_next_checkpoint_begins(planned: Any) -> None:
    found = goodput_of(planned(", asynchronous: true, every: 4"), 2.0)
    assert found is not None
    assert (found.work_s, found.job.write_s) == (8.0, 8.0)
    with pytest.raises(ClusimError, match=r"lasts 8 s, longer than the 7\.5 s between two"):
        goodput_of(planned(", asynchronous: true, every: 3"), 2.5)


def test_a_job_without_failures_or_checkpoints_has_no_goodput(planned: Any) -> None:
    plan = planned("")
    for missing in ("reliability", "checkpoints"):
        workload = SimpleNamespace(
            **{"reliability": plan.workload.reliability, "checkpoints": 1, missing: None}
        )
        assert goodput_of(SimpleNamespace(workload=workload, mesh=plan.mesh), 2.0) is None  # type: ignore[arg-type]


def test_shares_and_steps_of_a_period() -> None:
    """Of 10 s between failures: 3 s of work and a stop of 1 s, and restarts of 2 s."""
    whole = Goodput(Failing(10, 1, 2), 1, 3, 1.0, 2.0)
    segment_s = 10 * expm1(0.4) * exp(0.2)
    assert whole.useful == pytest.approx(3 / segment_s)
    assert whole.checkpoints == pytest.approx(1 / segment_s)
    assert whole.restarts == pytest.approx(1 - exp(-0.2))
    rest = 1 - whole.useful - whole.checkpoints - whole.restarts
    assert whole.redone == pytest.approx(rest)
    assert rest > 0
    assert whole.failures == pytest.approx(17_280)
    assert whole.steps == pytest.approx(172_800 * whole.useful)
    assert whole.young_interval_s == young_interval_s(10, 1)
    assert whole.daly_interval_s == daly_interval_s(10, 1)
