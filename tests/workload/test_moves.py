"""Kernels that move data: errors on measurements that calibrated nothing, and what each kind moves."""

from __future__ import annotations

import csv
from collections import defaultdict
from pathlib import Path

import pytest

import clusim
from clusim.hardware.kernels.fused import EAGER_NORM, FILL_US, SHARES, kind_of, moved_s
from clusim.workload.chips import chip_of
from clusim.workload.kernels import PRECISIONS

ROWS = Path(__file__).parent / "data" / "moves.csv"
PRESETS = {"a100-sxm4-80gb": "dgx-a100", "h100-sxm5": "dgx-h100"}

FORWARD = (
    ("cast", 0.5 + 1),
    ("greatest", 1),
    ("difference", 2),
    ("exponent", 2),
    ("sum", 1),
    ("quotient", 2),
)
BACKWARD = (("quotient", 2), ("cast", 1 + 0.5))
"""Kernels of an unfused loss, and how often each moves 32-bit logits."""


def predicted_s(row: dict[str, str], rate: float) -> float:
    """Return what the kernels of a row take at a rate of copies [s]."""
    elements = int(row["rows"]) * int(row["columns"])
    size, eager = elements * int(row["element_bytes"]), row["maker"] == "eager"
    if row["kernel"] == "norm":
        # Forwards a read and a write; backwards two kernels that read both, of which one writes.
        return moved_s("norm", (2 if row["pass"] == "forward" else 5) * size, rate, eager=eager)
    if row["kernel"] == "two elementwise":
        return 2 * moved_s("copy", 2 * size, rate)
    parts = FORWARD if row["pass"] == "forward" else BACKWARD
    return sum(
        moved_s(f"cross entropy {name}", 4 * elements * times, rate) for name, times in parts
    )


def test_kernels_that_calibrated_nothing_are_met() -> None:
    """Large kernels; small ones, of 16 MiB, are up to 25% longer, which is their launch in the measurement."""
    rates = {
        name: chip_of(clusim.load(p), PRECISIONS["bf16"]).memory_Bps for name, p in PRESETS.items()
    }
    found: dict[tuple[str, str], list[float]] = defaultdict(list)
    with ROWS.open(encoding="utf-8") as file:
        for row in csv.DictReader(line for line in file if not line.startswith("#")):
            if int(row["columns"]) >= 4096 and float(row["us"]) >= 40:
                took = predicted_s(row, rates[row["chip"]])
                found[row["kernel"], row["maker"]].append(took / float(row["us"]) / 1e-6 - 1)
    assert {key: len(own) for key, own in found.items()} == {
        ("loss", "eager"): 12, ("norm", "eager"): 8, ("norm", "library"): 4, ("two elementwise", "eager"): 3,
    }  # fmt: skip
    for key, own in found.items():
        assert sum(map(abs, own)) / len(own) < 0.12, key
        assert abs(sum(own) / len(own)) < 0.12, key


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("norm 1 backward", "norm"), ("summed norm 1", "copy"), ("joined qkv", "copy"), ("add", "copy"),
        ("residual", "function"), ("activation", "function"), ("softmax", "rows"), ("cross entropy sum", "rows"),
        ("cross entropy difference", "copy"), ("cross entropy cast backward", "copy"), ("cross entropy", "rows"),
    ],
)  # fmt: skip
def test_kinds(name: str, kind: str) -> None:
    assert kind_of(name) == kind


def test_only_norms_depend_on_who_wrote_them() -> None:
    eager, other = (moved_s("norm", 1e9, 1e12, eager=eager) for eager in (True, False))
    assert eager == pytest.approx(FILL_US * 1e-6 + 1e-3 / EAGER_NORM)
    assert other == pytest.approx(FILL_US * 1e-6 + 1e-3 / SHARES["norm"])
    for name in ("softmax", "activation", "copy"):
        assert moved_s(name, 1e9, 1e12, eager=True) == moved_s(name, 1e9, 1e12)
