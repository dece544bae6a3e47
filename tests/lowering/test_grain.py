"""How connections are cut into bursts: what no word may make coarser."""

from __future__ import annotations

import pytest

import clusim
from clusim.collectives import build
from clusim.engine.abi import ConnKind
from clusim.lowering import lower


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
