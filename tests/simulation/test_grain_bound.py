"""The error that runs in bursts of `auto` publish holds where the largest was found, against exact packets."""

from __future__ import annotations

from dataclasses import replace

import pytest

import clusim
from clusim.lowering import grain
from support.covering import THOROUGH

SIZE = "32MiB" if THOROUGH else "4MiB"


def test_bursts_of_auto_are_within_the_error_they_publish(monkeypatch: pytest.MonkeyPatch) -> None:
    """Outside thorough runs, bursts begin at an eighth of the packet-hops."""
    if not THOROUGH:
        rule = grain.RULES["auto"]
        names = ("exact_hops", "target_hops", "most_hops")
        smaller = {name: getattr(rule, name) // 8 for name in names}
        monkeypatch.setitem(grain.RULES, "auto", replace(rule, **smaller))
    fabric = clusim.load("rtx3090x8-edr56")
    auto, exact = (
        clusim.collective(fabric, "allreduce", SIZE, algorithm="ring", granularity=word)
        for word in ("auto", "packet")
    )
    bound = auto.provenance.error_bound
    assert bound, "the run is exact: take a larger one"
    assert exact.provenance.error_bound == 0
    assert abs(auto.time_ps / exact.time_ps - 1) <= bound


def test_bursts_are_within_their_error_over_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU that sends to all others of another node: its messages block each other in PCIe buffers."""
    limits = {
        "quick": grain.QUICK_ERROR,
        "step": grain.STEP_ERROR / 4,
        "coarse": grain.COARSE_ERROR,
    }
    for word in limits:
        rule = replace(grain.RULES[word], exact_hops=200_000, target_hops=50_000, most_hops=100_000)
        monkeypatch.setitem(grain.RULES, word, rule)
    exact, *bursts = (
        clusim.collective("aws-p5", "alltoall", "12MiB", nodes=2, granularity=word)
        for word in ("packet", *limits)
    )
    for run, limit in zip(bursts, limits.values(), strict=True):
        assert run.grants < exact.grants / 4
        assert abs(run.time_ps / exact.time_ps - 1) <= limit
