"""Laws of the derivatives: exact on one wire, a sum of 1, and equal to finite differences of runs."""

from __future__ import annotations

from fractions import Fraction
from functools import cache
from typing import Any

import pytest

import clusim
from clusim.analysis.sensitivity import PathFigure, path_figures
from clusim.analysis.whatif import Change, changed_image
from clusim.results.result import Result
from clusim.results.sensitivity import Sensitivity
from clusim.simulation import diagnose

RUNS = [
    ("dgx-h100", None, "allreduce", "ring", "64KiB"),
    ("dgx-h100", None, "allreduce", "nvls", "64KiB"),
    ("dgx-h100", None, "alltoall", "nccl", "1MiB"),
    ("dgx-a100", None, "allreduce", "ring", "2MiB"),
    ("dgx-a100", None, "allreduce", "tree", "64KiB"),
    ("a100x4-mesh", None, "allreduce", "ring", "4MiB"),
    ("a100x4-mesh", None, "alltoall", "nccl", "1MiB"),
    ("hgx-h100-ndr", 2, "allreduce", "ring", "64KiB"),
    ("hgx-h100-ndr", 2, "allreduce", "tree", "64KiB"),
    ("hgx-h100-ndr", 2, "alltoall", "nccl", "64KiB"),
]
"""Cheap runs, small and large: preset, nodes, operation, algorithm, size."""


@cache
def of(case: tuple[Any, ...]) -> tuple[Result, Any, Any, list[PathFigure], Sensitivity]:
    """Return a run, its inputs, simulated times, figures and derivatives."""
    preset, nodes, operation, algorithm, size = case
    more: dict[str, Any] = {} if nodes is None else {"nodes": nodes}
    result = clusim.collective(preset, operation, size, algorithm=algorithm, **more)
    evidence: Any = result.judge
    inputs = evidence._inputs()
    figures = path_figures(diagnose._critical(result, inputs, evidence._records))
    return result, inputs, evidence, figures, result.sensitivity()


@pytest.mark.parametrize("case", RUNS, ids=lambda case: f"{case[0]}-{case[2]}-{case[3]}-{case[4]}")
def test_derivatives_are_finite_differences(case: tuple[Any, ...]) -> None:
    result, inputs, _, figures, found = of(case)
    rows = {row.figure: row for row in found.derivatives}
    assert len(rows) == len(figures)
    for figure in figures:
        row, sign = rows[figure.name], -1 if figure.rate else 1
        differences = []
        # On the other side of the figure than the check of the path, and on both.
        for factor in (Fraction(99, 100), Fraction(101, 100)):
            change = Change(figure.change.what, factor, figure.change.wires)
            time_ps = diagnose.run_image(changed_image(inputs.image, change), inputs).time_ps
            differences.append(sign * (time_ps - result.time_ps) / float(1 / factor - 1))
        measured = sum(differences) / 2 / result.time_ps
        larger = max(abs(measured), abs(row.elasticity))
        # 0.1% of the run at a change by 1%.
        assert abs(measured - row.elasticity) <= max(0.1 * larger, 0.1), (row, differences)
        assert row.basis in ("path", "re-simulated")
        if row.basis == "path":
            assert row.elasticity == row.path_elasticity
        if abs(row.elasticity) >= 0.01:
            assert row.reach is not None


@pytest.mark.parametrize("case", RUNS, ids=lambda case: f"{case[0]}-{case[2]}-{case[3]}-{case[4]}")
def test_costs_of_the_path_add_up_to_the_run(case: tuple[Any, ...]) -> None:
    result, inputs, _, figures, _ = of(case)
    assert sum(figure.time_ps for figure in figures) == result.time_ps
    # The time scales if all figures do. Rounding, the quantum of memory and burst lengths do not scale.
    arrays: Any = inputs.image
    for figure in figures:
        change = Change(figure.change.what, Fraction(1, 2), figure.change.wires)
        arrays = changed_image(arrays, change)
    twice_ps = diagnose.run_image(arrays, inputs).time_ps
    assert twice_ps == pytest.approx(2 * result.time_ps, rel=2e-3)
