"""Intervals of predictions: against simulations of drawn systems, and laws of bounds."""

from __future__ import annotations

import json
import os
from functools import cache
from typing import Any

import numpy as np
import pytest

import clusim
from clusim.base.errors import InputError
from clusim.hardware.calibration import ROW_SETS
from clusim.hardware.figures import assumed, calibrated, figure, published, scaled, scaled_figures
from clusim.results.sensitivity import Interval
from clusim.simulation import diagnose
from clusim.simulation.intervals import LEVEL, Variants
from clusim_cli.main import run

CASES: dict[str, dict[str, Any]] = {
    "nvls": {"system": "dgx-h100", "size": "1MiB", "algorithm": "nvls"},
    "ring LL": {"system": "dgx-h100", "size": "64KiB"},
    "ring Simple": {
        "system": "hgx-h100-ndr",
        "size": "16MiB",
        "algorithm": "ring",
        "nodes": 2,
        "granularity": 8192,
    },
    "tree": {"system": "hgx-h100-ndr", "size": "64KiB", "algorithm": "tree", "nodes": 2},
    "PCIe": {"system": "a100-pcie-x8", "size": "256KiB"},
}
"""An in-switch reduction, a latency-bound ring, a ring that moves data between nodes, a tree, and a PCIe server."""

DRAWS = 200 if os.environ.get("CLUSIM_THOROUGH") else 12


@cache
def of(name: str) -> tuple[Interval, Variants, Any, int]:
    """Return the interval of a case, its run with other figures, its inputs and its time [ps]."""
    case = dict(CASES[name])
    result = clusim.collective(case.pop("system"), "allreduce", case.pop("size"), **case)
    evidence: Any = result.judge
    found = result.sensitivity().interval
    assert found is not None
    return found, evidence.variants, evidence._inputs(), result.time_ps


def drawn_ps(name: str, draws: int) -> list[int]:
    """Return the times of a case on systems with figures drawn from their bounds [ps]."""
    _, variants, inputs, _ = of(name)
    known = [item for item in variants.variables if item.figure.limits is not None]
    places = np.random.default_rng(1).uniform(-1, 1, (draws, len(known)))
    times = []
    for row in places:
        image = variants.image(dict(zip(known, row.tolist(), strict=True)))
        times.append(diagnose.run_image(image, inputs).time_ps)
    return times


@pytest.mark.parametrize("name", CASES)
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
