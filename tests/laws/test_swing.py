"""Swing on tori: bytes of the busiest wire by the paper's sum, and goodput at the bound that they set."""

from __future__ import annotations

import runpy
from fractions import Fraction
from pathlib import Path

import clusim

EXAMPLE = Path(__file__).parents[2] / "docs" / "examples" / "swing.py"
SIDE, SIZE_BYTES = 8, 64 << 20


def test_swing_reaches_the_bound_of_its_busiest_wire() -> None:
    """Step s moves a fraction 2^-(s+1) of a quarter of the data, twice, over |d(s)| wires: 1, 1, 1, 1, 3, 3.

    A router has two ports in each direction, so the peak is twice the rate of a link; 4096 of 4160 B are data.
    """
    example = runpy.run_path(str(EXAMPLE))
    distance, steps = example["distance"], range(6)
    hops = [abs(distance(step)) for step in steps]
    assert hops == [1, 1, 1, 1, 3, 3]
    share = sum(Fraction(hop, 2 ** (step + 1)) for step, hop in zip(steps, hops, strict=True)) / 2
    result = clusim.simulate(
        clusim.load(example["torus"](SIDE)), example["swing"](SIDE, SIZE_BYTES)
    )
    between = [name.count("router") == 2 for name in result.wires.names]
    payload = result.wires.counters["payload"][between]
    assert payload.max() == payload.min() == share * SIZE_BYTES
    least_ps = float(share) * SIZE_BYTES * 20 * 4160 / 4096
    assert least_ps < result.time_ps < 1.05 * least_ps


def test_swing_computes_the_sum() -> None:
    example = runpy.run_path(str(EXAMPLE))
    fabric = clusim.load(example["torus"](4))
    result = clusim.simulate(fabric, example["swing"](4, 1 << 16), verify=True)
    assert result.verified
