"""How connections are cut into bursts: what no word may make coarser."""

from __future__ import annotations

from dataclasses import replace

import pytest

import clusim
from clusim.base.errors import InputError
from clusim.collectives import build
from clusim.engine.abi import ConnKind
from clusim.lowering import grain, lower


@pytest.mark.parametrize("machine", ["dgx-h100", "hgx-b200"])
def test_reductions_in_switches_are_cut_as_finely_by_quick_as_by_auto(machine: str) -> None:
    """Requests and sums share the wires of a switch: with larger bursts 4 GiB over 8 H100 took 6 % less."""
    fabric = clusim.load(machine)
    schedule = build(fabric, "allreduce", "nvls", 64 << 30)
    bursts = {}
    for word in ("auto", "quick", "coarse"):
        conns = lower(fabric, schedule, word).image.conns
        bursts[word] = conns["burst"][conns["kind"] == ConnKind.MULTIMEM].max()
    assert bursts["auto"] == bursts["quick"] < bursts["coarse"]


def test_long_steps_are_cut_into_complete_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bursts of at most 1/6 of a slice become complete slices, 6 times as large rounded to a power of two: 4 or 8."""
    fabric = clusim.load("dgx-a100")
    schedule = build(fabric, "allreduce", "ring", 256 << 20)
    rule = replace(grain.RULES["step"], target_hops=100, most_hops=100, exact_hops=100)
    cuts = {}
    for slices_hops in (None, 10_000):
        monkeypatch.setitem(grain.RULES, "step", replace(rule, slices_hops=slices_hops))
        cuts[slices_hops] = lower(fabric, schedule, "step")
    sixth, whole = (cut.image.conns["burst"].max() for cut in cuts.values())
    assert whole // sixth in (4, 8)
    assert whole * 128 <= (256 << 20) // 8
    # Then nothing is finer with `step` than with `coarse`: one run has the error limit of `step`.
    assert lower(fabric, schedule, "coarse").grain.requested == "coarse"
    coarse = replace(grain.RULES["coarse"], target_hops=100, most_hops=100)
    monkeypatch.setitem(grain.RULES, "coarse", coarse)
    both = lower(fabric, schedule, "coarse")
    assert (both.image.conns["burst"] == cuts[10_000].image.conns["burst"]).all()
    assert both.grain.requested == "step"
    assert both.grain.step_error == grain.STEP_ERROR


def test_runs_that_share_a_budget_have_the_burst_hops_of_one() -> None:
    """Four equal runs of 4 M packet-hops: bursts of 8 packets give 0.5 M in one, bursts of 32 in all together."""
    hops, limits = [4_000_000], lambda factor: [1 << 10]
    assert grain.share_granularity("coarse", 3) == "coarse/4"
    assert grain.automatic(hops, limits, "coarse") == [8]
    assert grain.automatic(hops, limits, "coarse/4") == [32]
    assert 4 * (hops[0] // 32) <= grain.COARSE_HOPS
    # Exact packets are shared too.
    assert grain.automatic([200_000], limits, "coarse") == [1]
    assert grain.automatic([200_000], limits, "coarse/4") == [2]
    assert grain.step_error("coarse/4", 2) == grain.COARSE_ERROR


@pytest.mark.parametrize(
    ("word", "runs", "same"), [("coarse", 1, "coarse"), ("packet", 9, "packet"), (4096, 9, 4096)]
)
def test_other_granularities_are_not_shared(word: str | int, runs: int, same: str | int) -> None:
    assert grain.share_granularity(word, runs) == same


@pytest.mark.parametrize("word", ["coarse/0", "coarse/", "coarse/x", "packet/2", "other/2"])
def test_an_unknown_share_is_rejected(word: str) -> None:
    with pytest.raises(InputError, match="unknown; use packet"):
        grain.check_granularity(word)
