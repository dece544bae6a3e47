"""How connections are cut into bursts: what no word may make coarser."""

from __future__ import annotations

from dataclasses import replace

import pytest

import clusim
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
    monkeypatch.setattr("clusim.lowering.api.SLICES_HOPS", 10_000)
    coarse = replace(grain.RULES["coarse"], target_hops=100, most_hops=100)
    monkeypatch.setitem(grain.RULES, "coarse", coarse)
    both = lower(fabric, schedule, "coarse")
    assert (both.image.conns["burst"] == cuts[10_000].image.conns["burst"]).all()
    assert both.grain.requested == "step"
    assert both.grain.step_error == grain.STEP_ERROR
