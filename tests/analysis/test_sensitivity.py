"""Laws of the derivatives: exact on one wire, a sum of 1, and equal to finite differences of runs."""

from __future__ import annotations

from collections import Counter
from fractions import Fraction
from functools import cache
from typing import Any

import numpy as np
import pytest

import clusim
from analysis.conftest import inputs_of
from analysis.conftest import run_image as ran
from clusim.analysis.charge import Charger
from clusim.analysis.sensitivity import PathFigure, path_figures
from clusim.analysis.whatif import Change, changed_image
from clusim.base.errors import InputError
from clusim.engine.image import DTYPES, Image
from clusim.results.bins import Usage
from clusim.results.result import Result
from clusim.results.sensitivity import LEAST_SCATTER, Sensitivity
from clusim.simulation import diagnose, reruns
from support.covering import THOROUGH
from support.images import ImageBuilder, prim

RUNS = [
    ("dgx-h100", None, "allreduce", "ring", "64KiB", range(8)),
    ("dgx-h100", None, "allreduce", "nvls", "64KiB", range(3)),
    ("dgx-a100", None, "allreduce", "tree", "64KiB", range(3)),
    ("a100x4-mesh", None, "alltoall", "nccl", "256KiB", range(4)),
    ("hgx-h100-ndr", 2, "allreduce", "ring", "64KiB", (0, 1, 8)),
]
if THOROUGH:
    RUNS += [
        ("dgx-h100", None, "allreduce", "nvls", "64KiB", range(8)),
        ("dgx-h100", None, "alltoall", "nccl", "1MiB", range(8)),
        ("dgx-a100", None, "allreduce", "ring", "2MiB", range(8)),
        ("a100x4-mesh", None, "allreduce", "ring", "4MiB", range(4)),
        ("hgx-h100-ndr", 2, "allreduce", "ring", "64KiB", range(16)),
        ("hgx-h100-ndr", 2, "allreduce", "tree", "64KiB", range(16)),
        ("hgx-h100-ndr", 2, "alltoall", "nccl", "64KiB", range(16)),
    ]
"""Cheap runs, small and large: preset, nodes, operation, algorithm, size, ranks."""


def image_tables(image: Image) -> dict[str, Any]:
    """Return the tables of an image."""
    return {name: getattr(image, name) for name in DTYPES}


@cache
def of(case: tuple[Any, ...]) -> tuple[Result, Any, Any, list[PathFigure], Sensitivity]:
    """Return a run, its inputs, simulated times, figures and derivatives."""
    preset, nodes, operation, algorithm, size, ranks = case
    more: dict[str, Any] = {"ranks": ranks} if nodes is None else {"ranks": ranks, "nodes": nodes}
    result = clusim.collective(preset, operation, size, algorithm=algorithm, **more)
    evidence: Any = result.judge
    evidence.variants = None  # its interval takes most of the time, and has tests of its own
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
        for factor in (Fraction(99, 100), Fraction(101, 100)):
            change = Change(figure.change.what, factor, figure.change.wires)
            time_ps = reruns.run_image(changed_image(inputs.image, change), inputs).time_ps
            saved = (result.time_ps - time_ps) / result.time_ps
            differences.append(sign * saved / float(1 - 1 / factor))
        # 0.1% of the run at a change by 1%.
        for measured in [sum(differences) / 2, *differences]:
            larger = max(abs(measured), abs(row.elasticity))
            assert abs(measured - row.elasticity) <= max(0.1 * larger, 0.1), (row, differences)
        assert (row.scatter or 0.0) < LEAST_SCATTER
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
    twice_ps = reruns.run_image(arrays, inputs).time_ps
    assert twice_ps == pytest.approx(2 * result.time_ps, rel=2e-3)


def test_one_transfer_over_one_wire_is_exact() -> None:
    builder = ImageBuilder()
    a, b = builder.endpoint(), builder.endpoint()
    builder.link(a, b)
    index = builder.conn(a, b, slots=2, tail_ps=50, head_ps=70)
    builder.cost(fixed_ps=300)
    builder.run_alone(a, prim("send", send=0), conns=(index,))
    builder.run_alone(b, prim("recv", recv=0), conns=(index,))
    image = builder.build()
    one = ran(image)
    session = reruns.simulate_inputs(image, "c")
    usage = Usage(session.recorder.bins(), image.endpoints["mem_cost16"], None)
    charger = Charger(one.walk, one.network, usage, np.ones(len(image.wires), bool))
    parts: Counter[str] = Counter()
    for step in one.walk.steps():
        for delay in charger.figures(step):
            parts[delay.what] += delay.ps
    # 100 bytes at 10 ps; 1000 ps on the wire; 10 ps to memory; the flag; two CTAs.
    expected = {"wires": 1000, "wire latency": 1000, "memory latency": 10, "flags": 50, "step": 600}
    assert {what: ps for what, ps in parts.items() if ps} == expected
    assert one.time_ps == sum(expected.values())
    for what, factor, time_ps in (("wires", 2, 2160), ("wire latency", 2, 2160), ("step", 2, 2360)):
        wires = frozenset({0, 1}) if what.startswith("wire") else frozenset[int]()
        arrays = changed_image(image_tables(image), Change(what, Fraction(factor), wires))
        assert reruns.run_image(arrays, inputs_of(image)).time_ps == time_ps


def test_competing_packets_scatter_and_the_table_has_their_slope() -> None:
    found = of(("dgx-h100", None, "allreduce", "nvls", "128KiB", range(4)))[4]
    scattered = [row for row in found.derivatives if row.scatter is not None]
    assert scattered
    assert all(len(line) <= 100 for line in found.lines())
    assert any(row.basis == "re-simulated" for row in scattered)


def test_large_runs_are_not_checked_unless_requested() -> None:
    result = clusim.collective("dgx-a100", "allreduce", "1MiB", algorithm="ring", confirm=False)
    found = result.sensitivity()
    assert found.note.endswith("--confirm re-simulates them")
    assert {row.valid for row in found.derivatives} == {"not checked"}
    assert sum(abs(row.elasticity) for row in found.derivatives) == pytest.approx(1)


def test_slices_of_large_runs_are_dropped_after_the_verdict(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(diagnose, "CHECKED_GRANTS", 0)
    result = clusim.collective("dgx-1v", "allreduce", "64KiB", confirm=False)
    assert result.diagnose().causes
    with pytest.raises(InputError, match=r"call sensitivity\(\) before diagnose"):
        result.sensitivity()


def test_runs_without_a_path_have_no_derivatives() -> None:
    found = clusim.traffic("ring:4", "alltoall", message="64KiB").sensitivity()
    assert not found.derivatives
    assert "synthetic traffic" in found.note
    with pytest.raises(InputError, match="no derivatives to draw"):
        found.plot()


def test_the_picture_has_a_bar_for_each_printed_row() -> None:
    pytest.importorskip("matplotlib")
    found = of(RUNS[0])[4]
    (axes,) = found.plot().figure.axes
    assert len(axes.patches) == len(found.shown)
    with pytest.raises(InputError, match="a sensitivity has one"):
        found.plot("other")
