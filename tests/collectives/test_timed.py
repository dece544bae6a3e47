"""The timed engine moves real data: every algorithm on fabrics that pull, push, reduce and relay."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

import clusim
from clusim.collectives import build
from clusim.collectives.api import REGISTRY
from clusim.schedule import Schedule
from clusim.topology import Fabric, load
from support.collective_laws import fitting
from support.covering import THOROUGH

EXAMPLES = Path(__file__).resolve().parents[2] / "docs" / "examples"
SWITCHED = ("nvls", "multimem")
FABRICS = ("dgx-a100", "dgx-h100", "dgx-1v")


def has_units(fabric: str, algorithm: str) -> bool:
    """Return True if switches of a fabric reduce what an algorithm lets them reduce."""
    if algorithm == "sharp":
        return False
    return fabric == "dgx-h100" or algorithm not in SWITCHED


CELLS = [
    (name, pair)
    for column, name in enumerate(FABRICS)
    for row, pair in enumerate(REGISTRY)
    if has_units(name, pair[1]) and (THOROUGH or (row + column) % 3 == 0 or pair[1] in SWITCHED)
]
"""Every algorithm on one of the fabrics; `tests/laws/test_collectives_data.py` has all ranks of others, too."""


def assert_verified(fabric: Fabric, schedule: Schedule) -> None:
    """Run with real data, and fail unless they are right."""
    result = clusim.simulate(fabric, schedule, verify=True)
    assert result.verified, (fabric.name, schedule.name, result.verify_note)
    assert result.time_ps > 0


@pytest.mark.parametrize(
    ("name", "pair"),
    CELLS,
    ids=lambda value: value if isinstance(value, str) else "/".join(value),
)
def test_algorithms_are_right_in_the_engine_order(name: str, pair: tuple[str, str]) -> None:
    fabric = load(name)
    size_bytes = 0 if pair[0] == "barrier" else 100_004
    for ranks in fitting(pair, 2, 3, 5, 8):
        schedule = build(fabric, *pair, size_bytes, ranks=range(ranks), channels=2)
        assert_verified(fabric, schedule)


@pytest.mark.parametrize("protocol", ["ll", "ll128"])
def test_protocols_with_flags_in_the_data_are_right(protocol: str) -> None:
    fabric = load("dgx-a100")
    for operation, algorithm in (
        ("allreduce", "ring"),
        ("allreduce", "tree"),
        ("alltoall", "direct"),
    ):
        assert_verified(fabric, build(fabric, operation, algorithm, 300_000, protocol=protocol))


def test_coarse_bursts_move_the_same_data() -> None:
    fabric = load("dgx-h100")
    for algorithm in ("ring", "nvls"):
        schedule = build(fabric, "allreduce", algorithm, 1 << 20, dtype="bf16")
        result = clusim.simulate(fabric, schedule, verify=True, granularity=4096)
        assert result.verified


def test_the_example_runs(capsys: pytest.CaptureFixture[str]) -> None:
    example = runpy.run_path(str(EXAMPLES / "custom_algorithm.py"))
    schedule = example["chain_allreduce"](8, 300_000)
    assert_verified(load("dgx-a100"), schedule)
    example["main"]()
    assert capsys.readouterr().out.count("result.verified=True") == 2
