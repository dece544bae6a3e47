"""Blame: the parts are the whole, and they name what a second run says they should."""

from __future__ import annotations

import random
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

import clusim
from analysis.conftest import run_image, run_that_ends
from clusim.analysis.blame import blame, estimate
from clusim.analysis.charge import Charger
from clusim.analysis.network import Network
from clusim.analysis.whatif import THINGS, changed_image, parse_change
from clusim.base.errors import InputError, TraceError
from clusim.lowering import Fault
from clusim.results.bins import COLUMNS, Bins, Usage
from clusim.results.trace.inputs import read_inputs
from clusim.results.trace.reader import read_result
from clusim.simulation.reruns import rerun, without_first_stall
from support.collective_laws import machine
from support.covering import THOROUGH
from support.random_images import random_image


def test_the_parts_of_every_trace_are_the_whole(traces: dict[str, Path]) -> None:
    for name, path in traces.items():
        table = blame(path)
        assert sum(table.columns["time_ps"]) == table.facts["time_ps"], name
        assert table.facts["time_ps"] == read_result(path).time_ps
        groups = [table.facts[f"{group}_ps"] for group in ("stall", "cost", "work")]
        assert sum(groups) == table.facts["time_ps"]
        assert all(ps > 0 for ps in table.columns["time_ps"])


@pytest.mark.parametrize("seed", range(100 if THOROUGH else 10))
def test_the_parts_of_every_step_are_the_step(seed: int) -> None:
    ran = run_that_ends(seed)
    end = max(1, ran.time_ps)
    histories = {
        name: ran.wires[counter].astype(np.int64)[:, None] for name, counter in COLUMNS.items()
    }
    bins = Bins(np.array([0, end]), histories, np.zeros((len(ran.image.endpoints), 1), np.int64))
    usage = Usage(bins, ran.image.endpoints["mem_cost16"])
    charger = Charger(ran.walk, ran.network, usage, ran.wires["packets"] > 0)
    for step in ran.walk.steps():
        parts = list(charger.charges(step))
        assert sum(part.ps for part in parts) == step.length_ps, (step, parts)
        assert all(part.ps >= 0 for part in parts), (step, parts)
        assert charger.scaled_ps(step, lambda what, number: 1.0) == pytest.approx(step.length_ps)


PRESETS = [("dgx-a100", 64, 16384), ("dgx-h100", 128, 16384)]


@pytest.mark.parametrize(("preset", "size_mib", "burst"), PRESETS if THOROUGH else PRESETS[:1])
def test_a_slow_link_is_named_first_with_what_it_costs(
    preset: str, size_mib: int, burst: int, tmp_path: Path
) -> None:
    """On CTAs that do not slow each other: where they do, part of what a slow link adds is hidden behind them."""
    fabric = machine(preset)
    schedule = clusim.collectives.build(fabric, "allreduce", "ring", size_mib << 20)
    well = clusim.simulate(fabric, schedule, granularity=burst)
    wires = ("gpu0->nvswitch0.0", "nvswitch0->gpu0.0")
    faults = [Fault(0, Fraction(1, 2), wire=wire) for wire in wires]
    path = tmp_path / "slow.h5"
    slow = clusim.simulate(
        fabric, schedule, granularity=burst, faults=faults, trace_out=path, confirm=False
    )
    table = blame(path)
    first = table.rows()[0]
    assert first["resource"] == "gpu0<->nvswitch0.0"
    assert first["group"] == "stall"
    assert first["share"] == pytest.approx((slow.time_ps - well.time_ps) / slow.time_ps, abs=0.025)
    note = without_first_stall(path, table)
    assert table.facts["simulated_ps"] == well.time_ps
    assert "gpu0<->nvswitch0.0" in note


def test_a_slow_rank_is_named(tmp_path: Path) -> None:
    fabric = clusim.load("dgx-a100")
    builder = clusim.collectives.ScheduleBuilder(fabric)
    done = {rank: [builder.kernel(rank, compute_ps=10**8)] for rank in range(8)}
    builder.collective("allreduce", 1 << 16, channels=2, after=done)
    path, schedule = tmp_path / "slow.h5", builder.build()
    well = clusim.simulate(fabric, schedule)
    slow = clusim.simulate(
        fabric, schedule, trace_out=path, faults=[Fault(0, 2, rank=3)], confirm=False
    )
    first = blame(path).rows()[0]
    assert (first["resource"], first["reason"]) == ("rank 3", "slow rank")
    assert first["time_ps"] == pytest.approx(slow.time_ps - well.time_ps, rel=0.1)


def test_a_repeated_run_is_the_same_run(traces: dict[str, Path]) -> None:
    for path in traces.values():
        result = read_result(path)
        again = rerun(path)
        assert (again.time_ps, again.fingerprint) == (result.time_ps, result.fingerprint)


@pytest.mark.covering
@pytest.mark.parametrize("name", ["pull ring", "push ring", "training"])
@pytest.mark.parametrize("what", ["nvlink", "latency", "step", "cta", "launch", "compute", "hbm"])
def test_estimates_are_near_what_a_repeated_run_gives(
    traces: dict[str, Path], name: str, what: str
) -> None:
    guess = estimate(traces[name], what, "x2")
    real = rerun(traces[name], guess.change).time_ps
    assert guess.before_ps == read_result(traces[name]).time_ps
    assert guess.after_ps <= guess.before_ps
    assert guess.after_ps == pytest.approx(real, rel=0.15)


def test_once_as_fast_changes_nothing(traces: dict[str, Path]) -> None:
    image = read_inputs(traces["push ring"]).image
    for what in ("nvlink", *THINGS):
        guess = estimate(traces["push ring"], what, "x1")
        assert guess.after_ps == guess.before_ps
        for name, values in changed_image(image, guess.change).items():
            assert np.array_equal(values, image[name]), name


@pytest.mark.parametrize(
    ("what", "factor"), [("nvlonk", "x2"), ("nvlink", "fast"), ("nvlink", "x0")]
)
def test_words_that_mean_nothing_are_refused(
    traces: dict[str, Path], what: str, factor: str
) -> None:
    with pytest.raises(InputError, match="what-if"):
        estimate(traces["tree"], what, factor)


def test_wires_go_by_class_name_and_link() -> None:
    ran = run_image(random_image(random.Random(1)))
    network: Network = ran.network
    network.classes[:] = ["nvlink gpu->switch"] * len(network.classes)
    assert len(parse_change("nvlink", "x2", network).wires) == len(network.names)
    assert parse_change(network.names[0], "3/2", network).wires == {0}
    assert len(parse_change(network.link(0), "x2", network).wires) >= 1


def test_a_trace_without_slices_says_what_to_do(tmp_path: Path) -> None:
    fabric = clusim.load("dgx-a100")
    schedule = clusim.collectives.build(fabric, "allreduce", "ring", 1 << 16, channels=1)
    clusim.simulate(
        fabric, schedule, trace_out=tmp_path / "a.h5", trace_primitives=False, confirm=False
    )
    with pytest.raises(TraceError, match="--trace-primitives"):
        blame(tmp_path / "a.h5")
    clusim.simulate(
        fabric,
        schedule,
        trace_out=tmp_path / "b.h5",
        confirm=False,
        trace_primitives=True,
        trace_limit_bytes=1 << 16,
    )
    assert blame(tmp_path / "b.h5").facts["time_ps"]
