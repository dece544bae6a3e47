"""Intervals of predictions: against simulations of drawn systems, and laws of bounds."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache, partial
from typing import Any

import numpy as np
import pytest

import clusim
from clusim.base.errors import TimeLimitReached
from clusim.base.units import format_time
from clusim.results.sensitivity import Interval
from clusim.simulation import intervals, reruns
from clusim.simulation.expected import RunPlace, expected_error
from clusim.simulation.intervals import LEVEL, Variants, interval_of
from clusim.simulation.setup import Setup
from clusim_cli.main import run
from support.covering import THOROUGH

CASES: dict[str, dict[str, Any]] = {
    "nvls": {"system": "dgx-h100", "size": "64KiB", "algorithm": "nvls", "ranks": range(4)},
    "ring LL": {"system": "dgx-h100", "size": "64KiB"},
    "ring Simple": {
        "system": "hgx-h100-ndr",
        "size": "8MiB",
        "algorithm": "ring",
        "channels": 4,
        "nodes": 2,
        "granularity": 4096,
    },
    "tree": {
        "system": "a100x4-mesh",
        "size": "16KiB",
        "algorithm": "tree",
        "nodes": 2,
        "ranks": (0, 1, 4, 5),
    },
    "trees": {
        "system": "hgx-h100-ndr",
        "size": "64KiB",
        "algorithm": "tree",
        "nodes": 2,
        "ranks": (0, 1, 8, 9),
    },
    "PCIe": {"system": "a100-pcie-x8", "size": "256KiB"},
    "host memory": {"system": "rtx4090x8-pcie", "size": "1KiB"},
    "mesh": {"system": "a100x4-mesh", "size": "1KiB"},
}
"""An in-switch reduction, a latency-bound ring, a ring that moves data between nodes, trees, and PCIe servers."""

DRAWS = 200 if THOROUGH else 12
QUICK = ("mesh",)


def simulate(inputs: Any, image: Any) -> int:
    """Return the time of an image [ps]."""
    return reruns.run_image(image, inputs).time_ps


def run_case(name: str) -> tuple[Variants, Any, int]:
    """Return the run of a case with other figures, its inputs and its time [ps]."""
    case = dict(CASES[name])
    result = clusim.collective(case.pop("system"), "allreduce", case.pop("size"), **case)
    evidence: Any = result.judge
    return evidence.variants, evidence._inputs(), result.time_ps


@cache
def of(name: str, *words: str) -> tuple[Interval, Variants, Any, int]:
    """Return the interval of a case, its run with other figures, its inputs and its time [ps].

    With `words` only figures with one of them in their names are varied: all others take most of the time.
    """
    variants, inputs, time_ps = run_case(name)
    if words:
        chosen = [item for item in variants.variables if any(word in item.name for word in words)]
        vars(variants)["variables"] = chosen
    found = find_once(variants, inputs.image, time_ps, partial(simulate, inputs))
    return found, variants, inputs, time_ps


@pytest.fixture
def once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let equal runs of this file have the same interval, which is found once."""
    monkeypatch.setattr(intervals, "interval_of", find_once)


KNOWN: dict[tuple[int, int], Interval] = {}


def find_once(variants: Variants, image: Any, time_ps: int, simulate: Any) -> Interval:
    """Return the interval of a run by its time and the number of its figures."""
    key = time_ps, len(variants.variables)
    if key not in KNOWN:
        KNOWN[key] = interval_of(variants, image, time_ps, simulate)
    return KNOWN[key]


def drawn_ps(name: str, draws: int) -> list[int]:
    """Return the times of a case on systems with figures drawn from their bounds [ps]."""
    _, variants, inputs, _ = of(name)
    known = [item for item in variants.variables if item.has_bounds]
    places = np.random.default_rng(1).uniform(-1, 1, (draws, len(known)))
    times = []
    for row in places:
        pairs = zip(known, row.tolist(), strict=True)
        image = variants.scaled({item: item.factor(place) for item, place in pairs})
        times.append(reruns.run_image(image, inputs).time_ps)
    return times


@pytest.mark.parametrize("name", CASES if THOROUGH else QUICK)
def test_the_interval_has_the_times_of_drawn_systems(name: str) -> None:
    found, _, _, time_ps = of(name)
    times = np.array(drawn_ps(name, DRAWS))
    width_ps = found.high_ps - found.low_ps
    assert found.low_ps < time_ps < found.high_ps
    if DRAWS >= 100:
        # The standard error of a 5% quantile of 200 normal values is 0.15 standard deviations, 4.5% of the width of
        # the band: 2.5 of them, and 0.5% of the time for the order of packets.
        most_ps = 0.12 * width_ps + 0.005 * time_ps
        ends = np.quantile(times, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
        assert np.all(np.abs(ends - [found.low_ps, found.high_ps]) <= most_ps), (ends, found)
    # 90% are expected; of 12 at least 7 with a probability of 99.99%.
    inside = np.mean((times >= found.low_ps) & (times <= found.high_ps))
    assert inside >= (0.82 if DRAWS >= 100 else 7 / 12)
    # The band is as wide as they scatter: the standard error of a standard deviation of 12 values is 20%.
    assert np.std(times) >= 0.4 * width_ps / 3.29


def test_a_figure_of_many_wires_is_one_variable() -> None:
    found, variants, inputs, _ = of("ring LL", "nvlink4: latency", "nvswitch3: latency")
    (nvlink,) = [row for row in found.figures if "nvlink4: latency" in row.figure]
    assert nvlink.at_low_ps < 0 < nvlink.at_high_ps
    assert nvlink.bounds == "132 ns to 176 ns"
    (item,) = [item for item in variants.variables if item.name == nvlink.figure]
    changed = variants.scaled({item: item.factor(1)})["wires"]["latency_ps"]
    before = inputs.image["wires"]["latency_ps"]
    assert set(changed[before == 150_000].tolist()) == {176_000}
    assert np.array_equal(changed[before != 150_000], before[before != 150_000])


def test_half_widths_and_effects_of_latencies_are_their_share_of_the_path() -> None:
    found, _, _, time_ps = of("ring LL", "nvlink4: latency", "nvswitch3: latency")
    (switch,) = [row for row in found.figures if "nvswitch3: latency" in row.figure]
    # 14 steps of an all-reduce of 8 ranks.
    assert switch.at_low_ps == pytest.approx(14 * -10_000, abs=2)
    assert switch.at_high_ps == pytest.approx(14 * 40_000, abs=2)
    assert switch.half_width_ps == pytest.approx(14 * 25_000, abs=2)
    halves = [row.half_width_ps for row in found.figures]
    assert halves == sorted(halves, reverse=True)
    # Independent figures: less than the sum of their half-widths, more than the largest alone would have.
    assert 2 * 0.8 * halves[0] < found.high_ps - found.low_ps < 2 * sum(halves)
    assert found.high_ps - time_ps > time_ps - found.low_ps, "most bounds are farther above"


@pytest.mark.parametrize(
    ("system", "more"),
    [
        (
            "hgx-h100-ndr",
            {"nodes": 2, "faults": ["link n1/gpu3:nvl5 down"], "operation": "allreduce"},
        ),
        ("dgx-h100", {"operation": "broadcast", "root": 3}),
        ("dgx-h100", {"operation": "allgather", "symmetric": True}),
        ("hgx-h100-ndr", {"nodes": 2, "operation": "alltoall", "env": {"NCCL_NET_PLUGIN": "none"}}),
        ("dgx-a100", {"operation": "allreduce", "algorithm": "tree", "ranks": range(4)}),
        ("fat-tree:k=4", {"operation": "allreduce"}),
    ],
)
def test_every_kind_of_run_can_be_built_again(system: str, more: dict[str, Any]) -> None:
    words = dict(more)
    result = clusim.collective(system, words.pop("operation"), "16KiB", **words)
    evidence: Any = result.judge
    image = evidence._inputs().image
    again = evidence.variants.scaled({})
    assert all(np.array_equal(again[name], image[name]) for name in image)


def test_a_system_that_was_changed_has_no_interval() -> None:
    fabric = clusim.load("a100x4-mesh")
    links = tuple(replace(link, latency_ps=2 * link.latency_ps) for link in fabric.links)
    found = interval_of_run(replace(fabric, links=links))
    assert found.note.startswith("no interval: the system was changed")
    assert found.lines(1) == [f"interval  {found.note}"]


def interval_of_run(fabric: Any) -> Interval:
    """Return the interval of a small run."""
    found = clusim.collective(fabric, "allreduce", "1KiB").sensitivity().interval
    assert found is not None
    return found


def test_large_runs_have_no_interval_unless_requested() -> None:
    result = clusim.collective("dgx-1v", "allreduce", "1KiB", confirm=False)
    found = result.sensitivity()
    assert found.interval is None
    assert found.note.startswith("no interval")
    assert "interval" not in found.to_json()


def test_a_time_limit_during_the_interval_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    result = clusim.collective("dgx-1v", "allreduce", "1KiB")

    def limited(*_: Any) -> Interval:
        raise TimeLimitReached("time limit of 1 s")

    monkeypatch.setattr(intervals, "interval_of", limited)
    found = result.sensitivity()
    assert found.interval is None
    assert found.derivatives
    assert found.unfinished == "interval; time limit of 1 s"


def test_figures_without_bounds_are_named() -> None:
    variants, inputs, time_ps = run_case("host memory")
    without = [item for item in variants.variables if not item.has_bounds]
    vars(variants)["variables"] = without  # those with bounds take most of the time
    found = interval_of(variants, inputs.image, time_ps, partial(simulate, inputs))
    assert found.unknown == [
        "chip ddr4-3200x8: write_latency",
        "link type dram-ddr4-3200x8: latency",
    ]
    text = " ".join(line.strip() for line in found.lines(time_ps))
    assert f"no bounds known for: {'; '.join(found.unknown)}" in text


@pytest.mark.usefixtures("once")
def test_the_command_prints_the_table_and_the_interval(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["run", "a100x4-mesh", "--size", "1KiB", "--sensitivity", "--no-progress"]
    assert run(words) == 0
    text = capsys.readouterr().out
    assert "5% to 95%; time " in text
    assert "% per %" in text
    assert max(map(len, text.splitlines())) <= 100
    assert run([*words, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["sensitivity"]
    rows, found = found["derivatives"], found["interval"]
    assert all(row["figure"] in text for row in rows if abs(row["elasticity"]) >= 0.01)
    assert found["low_us"] < found["high_us"]
    for row in found["figures"]:
        assert row["half_width_us"] >= abs(row["at_high_us"] - row["at_low_us"]) / 2 - 1e-6
        assert row["figure"] in text or row["half_width_us"] < 0.01 * found["high_us"]


@pytest.mark.usefixtures("once")
def test_the_measured_interval_contains_launch_and_errors_of_comparable_rows() -> None:
    result = clusim.collective("a100x4-mesh", "allreduce", "1KiB")
    found = result.sensitivity()
    assert found.measured is not None
    assert found.interval is not None
    told = expected_error(RunPlace.of(Setup("a100x4-mesh")), 1024, "Ring").nearest
    assert told is not None
    launched_ps = result.launched_ps
    assert launched_ps is not None
    assert found.measured.time_ps == launched_ps > result.time_ps
    low_ps = launched_ps * (1 + told.low_pct / 100)
    by_bounds_ps = launched_ps + found.interval.low_ps - result.time_ps
    assert found.measured.low_ps == pytest.approx(min(low_ps, by_bounds_ps), abs=2)
    assert found.measured.high_ps >= launched_ps * (1 + told.high_pct / 100) - 2
    assert f"with launch {format_time(launched_ps)}" in " ".join(found.measured.lines())


def test_without_comparable_rows_the_measured_interval_is_not_known() -> None:
    result = clusim.collective("rtx4090x8-pcie", "allreduce", "1KiB", confirm=False)
    found = result.sensitivity().measured
    assert found is not None
    assert found.lines() == ["measured  not known (no measurements of comparable systems)"]
