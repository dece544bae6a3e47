"""Bounds of figures: their form in files, defaults by mark, and scaled systems."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

import clusim
from clusim.base.errors import InputError
from clusim.hardware import GPUS, SWITCHES, all_figures
from clusim.hardware.bounds import bounds_words, scale_value
from clusim.hardware.calibration import ROW_SETS
from clusim.hardware.ctas import CTAS, cta_figure
from clusim.hardware.figures import Figure, assumed, calibrated, figure, published, scaled_figures

ACCURACY = Path(__file__).resolve().parents[2] / "docs" / "accuracy.md"


def entry(value: Any, bounds: Any, mark: str = "assumed") -> Figure:
    """Return the figure of an entry of a file."""
    return figure({"value": value, "mark": mark, "source": "a test", "bounds": bounds})


@pytest.mark.parametrize(
    ("value", "bounds", "low", "high", "words"),
    [
        ("400ns", ["300ns", "0.5us"], 0.75, 1.25, "300 ns to 500 ns"),
        ("400ns", "10%", 0.9, 1.1, "360 ns to 440 ns"),
        ("400ns", ["-10%", "25%"], 0.9, 1.25, "360 ns to 500 ns"),
        ("50 GB/s", ["400 Gb/s", "800 Gb/s"], 1, 2, "50 GB/s to 100 GB/s"),
        ("32KiB", ["16KiB", "64KiB"], 0.5, 2, "16 KiB to 64 KiB"),
        (0.5, [0.25, 1], 0.5, 2, "0.25 to 1"),
        ({"read": "8B", "write": 4}, "50%", 0.5, 1.5, "-50% to +50%"),
        ("1B", "0%", 1, 1, "1 B to 1 B"),
    ],
)
def test_bounds_are_values_or_shares(
    value: Any, bounds: Any, low: float, high: float, words: str
) -> None:
    found = entry(value, bounds)
    assert found.limits == pytest.approx((low, high))
    assert bounds_words(value, (low, high)) == words
    assert f"(assumed, {words}: a test)" in str(found)


@pytest.mark.parametrize(
    ("value", "bounds", "message"),
    [
        ("400ns", "ten", r"bounds is 'ten'; write \[low, high\], or 10% of the value"),
        ("400ns", ["ten", "1us"], r"bound 'ten': not a number; write it as the value"),
        ("400ns", "-10%", r"bounds is '-10%'; write \[low, high\], or 10% of the value"),
        ("400ns", ["500ns", "600ns"], "is not between them"),
        ("400ns", ["600ns", "300ns"], "is not between them"),
        ("400ns", ["300ns"], r"write \[low, high\], or 10% of the value"),
        ("400ns", 5, r"write \[low, high\], or 10% of the value"),
        ("400ns", [100, 500], "use its unit, or a percentage"),
        ("400ns", ["1KiB", "2KiB"], "use its unit, or a percentage"),
        ("400ns", "150%", "is not between them"),
        ({"read": 8}, [4, 16], "of several numbers; write a percentage, such as -10%"),
        ("0", ["0", "1ns"], "use its unit, or a percentage"),
        ("read", "10%", "bounds belong to numbers"),
        (True, "10%", "bounds belong to numbers"),
    ],
)
def test_wrong_bounds_are_refused(value: Any, bounds: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        entry(value, bounds)


def test_the_mark_decides_without_bounds() -> None:
    assert published("1us", "a brief").limits == (1, 1)
    assert assumed("1us", "a guess").limits is None
    assert assumed("pull", "a word").limits == (1, 1)
    assert calibrated("1us", "timings", "npkit-gh200").limits is None
    spread = ROW_SETS["wayne-h100"].spread
    assert spread > ROW_SETS["simllm-gh200"].spread > 0
    found = calibrated("1us", "rows", "wayne-h100", "simllm-gh200")
    assert found.limits == pytest.approx((1 - 2 * spread, 1 + 2 * spread))
    assert published("1us", "a range", ["1us", "2us"]).limits == (1, 2)


def test_residuals_of_calibration_rows_are_those_of_the_accuracy_page() -> None:
    text = ACCURACY.read_text(encoding="utf-8")
    text = text.partition("\n## Calibration rows\n")[2].partition("\n## ")[0]
    checked = set()
    for line in text.splitlines():
        name = line.removeprefix("| ").partition(":")[0]
        if name not in ROW_SETS:
            continue
        classes = re.findall(r"\| ([0-9.]+) / [0-9.]+ \(([0-9]+)\)", line)
        total = sum(int(count) for _, count in classes)
        median = sum(float(value) * int(count) for value, count in classes) / total
        assert 100 * ROW_SETS[name].spread == pytest.approx(median, abs=2.5), name
        checked.add(name)
    # Campaigns with held-out rows are scored without their calibration rows.
    assert len(checked) >= 7
    assert checked <= {name for name, item in ROW_SETS.items() if item.spread}


def test_every_bound_contains_its_value_and_scales_it() -> None:
    bounded = [item for item in all_figures() if item.bounds]
    assert len({str(item) for item in bounded}) > 100
    for item in bounded:
        for factor in item.bounds or ():
            entry(scale_value(item.value, factor), "0%")


def test_scaled_figures_apply_to_systems_created_within_the_context() -> None:
    latency = SWITCHES["nvswitch3"]["latency"]
    with scaled_figures({str(latency): 2.0}):
        fabric = clusim.load("dgx-h100")
    times = {node.latency_ps for node in fabric.nodes if node.model == "nvswitch3"}
    assert times == {220_000}
    again = clusim.load("dgx-h100")
    assert {node.latency_ps for node in again.nodes if node.model == "nvswitch3"} == {110_000}
    gather = CTAS["nvls gather"]
    with scaled_figures({str(gather): 2.0}):
        assert cta_figure("nvls gather") == 8
    assert cta_figure("nvls gather") == 4
    share = GPUS["h100-sxm5"].figures["memory_efficiency"]
    with scaled_figures({str(share): 2.0}), pytest.raises(InputError, match="equal to 1"):
        clusim.load("dgx-h100")
