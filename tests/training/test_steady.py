"""Steps that overlap: one steady window, whatever the number of steps."""

from __future__ import annotations

from typing import Any

import pytest

import clusim
from clusim.base.errors import InputError
from clusim.training import train
from clusim.training.breakdown import Breakdown
from clusim.training.estimate import estimate
from clusim.training.steady import DISAGREEMENT, overlap_of, steady_window
from clusim.workload import Workload, make_plan
from support.workloads import ideal, tiny

A100 = clusim.load("dgx-a100")
WIDE = "{base: gpt3-1.3b, layers: 4, hidden: 1024, vocab: 1024}"
PIPEDREAM = "parallel: {pipeline: 4, data: 1}\npipeline: {schedule: pipedream}\n"
SERVER = "data: {kind: parameter-server, servers: 1, mode: %s}\n"


def server(mode: str, more: str = "") -> Workload:
    text = SERVER % mode + more
    return tiny(text, model=WIDE, sequence="16", batch="{global: 7, micro: 1}")


def coarse(work: Workload, fabric: Any, **options: Any) -> Any:
    return train(work, fabric, granularity=262144, **options)


MODES = {
    "pipedream": (tiny(PIPEDREAM), ideal(4)),
    "pipedream, one microbatch a step": (tiny(PIPEDREAM, batch="{global: 1, micro: 1}"), ideal(4)),
    "one server, asynchronous": (server("async"), A100),
    "asynchronous, a slow worker": (server("async", "stragglers: {ranks: {1: 1.5}}\n"), A100),
    "one server": (server("bsp"), A100),
    "fsdp": (tiny("parallel: {data: 4}\ndata: {kind: fsdp}"), A100),
    "1f1b": (tiny("parallel: {pipeline: 4, data: 1}\npipeline: {schedule: 1f1b}"), A100),
    "zero-bubble": (
        tiny("parallel: {pipeline: 4, data: 1}\npipeline: {schedule: zero-bubble}"),
        A100,
    ),
}


@pytest.mark.parametrize("mode", MODES)
def test_a_step_does_not_depend_on_the_number_of_steps(mode: str) -> None:
    """Within the tolerance that two halves of a window have."""
    work, fabric = MODES[mode]
    found = [coarse(work, fabric, steps=steps) for steps in (2, 3, 8)]
    for few in found[:2]:
        assert few.samples_per_s == pytest.approx(found[2].samples_per_s, rel=DISAGREEMENT)
        assert few.bubble_fraction == pytest.approx(found[2].bubble_fraction, abs=0.005)
        assert few.step_time_s * few.samples_per_s == pytest.approx(few.plan.samples)
        assert few.collectives_per_step == found[2].collectives_per_step


@pytest.mark.parametrize("last", [2048, 8192])
def test_the_bubble_of_pipedream_is_the_time_that_stages_wait_for_the_slowest(last: int) -> None:
    """Equal stages have none: the run's fill and drain are outside the window."""
    layers = f"{{base: mlp, sizes: [{'2048, ' * 8}{last}]}}"
    work = tiny(PIPEDREAM, model=layers, batch="{global: 4096, micro: 1024}", optimizer="sgd")
    found = train(work, ideal(4))
    compute = [row.compute_ps for row in found.ranks]
    assert max(compute) == pytest.approx(found.step_ps[-1], rel=0.003)
    waiting = 1 - sum(compute) / 4 / max(compute)
    exposed = found.mean("exposed") / found.mean("total")
    assert found.bubble_fraction + exposed == pytest.approx(waiting, abs=0.002)
    assert exposed < 0.005
    assert (waiting > 0.1) == (last > 2048)


def test_an_estimate_has_the_steady_window_of_the_simulation() -> None:
    work = tiny(PIPEDREAM, batch="{global: 2, micro: 1}")
    found, real = estimate(work, ideal(4)), train(work, ideal(4))
    assert found.step_time_s == pytest.approx(real.step_time_s, rel=1e-3)
    assert found.bubble_fraction == pytest.approx(real.bubble_fraction, abs=0.002)


def test_workers_of_different_pace_add_up() -> None:
    """The throughput is the sum of the paces, and each worker's parts are those of its own step."""
    found = coarse(server("async", "stragglers: {ranks: {1: 3}}\n"), A100)
    paces = [1 / ps for ps in found.worker_ps]
    assert len(paces) == 7
    assert 1 / found.step_ps[-1] == pytest.approx(sum(paces) / 7, rel=1e-9)
    rows = {row.rank: row.total_ps for row in found.ranks}
    assert [rows[rank] for rank in range(7)] == found.worker_ps
    assert any("the step is the mean pace of all ranks between" in note for note in found.notes)


def test_halves_that_disagree_are_refused() -> None:
    """Steps of a run that slows down have no steady pace."""
    plan = make_plan(server("async"), A100)
    overlap = overlap_of(plan)
    assert overlap is not None
    slower = [{rank: (step * step * 1000 + rank,) for rank in range(7)} for step in range(1, 9)]
    with pytest.raises(InputError, match=r"steps 8: .* differ by .*set more steps, such as 16"):
        steady_window(plan, slower, max)
    even = [{rank: (step * 1000 + rank,) for rank in range(7)} for step in range(1, 9)]
    window = steady_window(plan, even, max)
    assert window is not None
    assert (window.begin_ps, window.end_ps, window.step_ps) == (2006, 7000, 1000)
    apart = [{rank: (step * 1000 + 9000 * rank,) for rank in range(7)} for step in range(1, 9)]
    with pytest.raises(InputError, match="no time is in the steady state"):
        steady_window(plan, apart, max)


def test_parts_of_one_step_add_up_to_it() -> None:
    parts = dict(bubble_ps=7, idle_ps=0, communication_ps=90, host_ps=11)
    row = Breakdown(3, 100, 33, **parts, exposed_data_ps=20, exposed_tensor_ps=13)
    one = row.of_one_step(50)
    assert one.total_ps == 50
    assert one.exposed_ps == sum(one.exposed_by_dimension_ps.values())
    assert (one.rank, one.compute_ps, one.communication_ps) == (3, 33, 29)
