"""Derivatives of runs whose time is a formula of a figure: what is checked, replaced, and how far it is valid."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from types import SimpleNamespace
from typing import Any

import pytest

from clusim.analysis.sensitivity import PathFigure
from clusim.analysis.whatif import Change
from clusim.base.errors import TimeLimitReached, TraceError
from clusim.results.sensitivity import Derivative, Sensitivity
from clusim.simulation import derivatives as module
from clusim.simulation.derivatives import UNCHECKED, derivatives

TIME_PS = 1_000_000

Formula = Callable[[Fraction], float]


def figure(name: str, part_ps: int, *, rate: bool = True) -> PathFigure:
    return PathFigure(name, rate, Change(name, Fraction(1)), part_ps)


def proportional(part_ps: float) -> Formula:
    """Return the time saved of a run of which a part is inversely proportional to a factor."""
    return lambda factor: part_ps * float(1 - 1 / factor)


def found(
    figures: list[PathFigure], saved: dict[str, Formula] | None, monkeypatch: pytest.MonkeyPatch
) -> Sensitivity:
    """Return the derivatives of a run of 1 us, with time saved by the factor of each figure."""
    monkeypatch.setattr(module, "path_figures", lambda _: figures)
    run: Any = SimpleNamespace(traced=SimpleNamespace(result=SimpleNamespace(time_ps=TIME_PS)))
    if saved is None:
        return derivatives(run, None)
    return derivatives(run, lambda change: round(TIME_PS - saved[change.what](change.factor)))


def alone(part_ps: int, saved: Formula, monkeypatch: pytest.MonkeyPatch) -> Derivative:
    (row,) = found([figure("f", part_ps)], {"f": saved}, monkeypatch).derivatives
    return row


def test_unchecked_derivatives_are_parts_of_the_path(monkeypatch: pytest.MonkeyPatch) -> None:
    figures = [figure("rate", 400_000), figure("latency", 100_000, rate=False)]
    result = found(figures, None, monkeypatch)
    assert result.derivatives == [
        Derivative("rate", -0.4, 4000, None, "path", -0.4),
        Derivative("latency", 0.1, 1000, None, "path", 0.1),
    ]
    assert (result.time_ps, result.note) == (TIME_PS, UNCHECKED)


def test_a_run_that_obeys_the_path_keeps_its_estimate(monkeypatch: pytest.MonkeyPatch) -> None:
    row = alone(400_000, proportional(400_000), monkeypatch)
    assert row == Derivative("f", -0.4, 4000, 8.0, "path", -0.4)


@pytest.mark.parametrize(
    ("part_ps", "slope_ps", "basis"),
    [
        (400_000, 440_000, "path"),
        (400_000, 450_000, "re-simulated"),
        (400_000, 361_000, "path"),
        (400_000, 359_000, "re-simulated"),
        (50_000, 59_900, "path"),  # 1% of the run
        (50_000, 61_000, "re-simulated"),
        (50_000, 40_100, "path"),
        (50_000, 39_000, "re-simulated"),
        (20_000, -20_000, "re-simulated"),
    ],
)
def test_an_estimate_is_replaced_beyond_a_tenth_and_1_percent_of_the_run(
    part_ps: int, slope_ps: int, basis: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = alone(part_ps, proportional(slope_ps), monkeypatch)
    assert row.basis == basis
    expected_ps = part_ps if basis == "path" else slope_ps
    assert row.elasticity == pytest.approx(-expected_ps / TIME_PS, rel=1e-3)
    assert row.path_elasticity == -part_ps / TIME_PS
    assert row.gain_ps == pytest.approx(expected_ps / 100, abs=1)
    assert (row.scatter is None) == (basis == "path")
    assert row.scatter is None or row.scatter < 2e-4


def test_single_changes_that_scatter_are_averaged_by_their_size(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Slopes of 600, 400, 405 and 395 ns of 1 and 2 %: by squares of changes near 420 ns, and the path is right."""
    slopes = {101: 600_000, 99: 400_000, 102: 405_000, 98: 395_000}

    def saved(factor: Fraction) -> float:
        return slopes.get(round(factor * 100), 400_000) * float(1 - 1 / factor)

    row = alone(400_000, saved, monkeypatch)
    assert (row.basis, row.elasticity) == ("path", -0.4)
    assert row.scatter == pytest.approx(0.2, rel=1e-3)
    row = alone(100_000, saved, monkeypatch)
    weights = {101: 1 / 101**2, 99: 1 / 99**2, 102: 4 / 102**2, 98: 4 / 98**2}
    mean = sum(weights[n] * slopes[n] for n in slopes) / sum(weights.values())
    assert (row.basis, row.elasticity) == ("re-simulated", pytest.approx(-mean / TIME_PS, rel=1e-4))
    assert row.scatter == pytest.approx((600_000 - mean) / TIME_PS, rel=1e-3)


@pytest.mark.parametrize(
    ("end", "reach"), [(1.05, 1.0), (1.1, 1.1), (1.25, 1.25), (3, 3.0), (9, 8.0)]
)
def test_an_estimate_is_valid_until_something_else_limits_the_run(
    end: float, reach: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From `end` on a faster part saves nothing more; 1 % of the run is the next step away."""
    limit = Fraction(end)
    row = alone(400_000, lambda f: proportional(400_000)(min(f, limit)), monkeypatch)
    assert (row.basis, row.reach) == ("path", reach)


@pytest.mark.parametrize(("error_ps", "reach"), [(9_990, 8.0), (10_010, 1.0), (-10_010, 1.0)])
def test_valid_is_within_1_percent_of_the_run(
    error_ps: int, reach: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    def saved(factor: Fraction) -> float:
        return proportional(400_000)(factor) + error_ps * (factor >= Fraction(11, 10))

    assert alone(400_000, saved, monkeypatch).reach == reach


def test_figures_below_1_percent_have_no_range(monkeypatch: pytest.MonkeyPatch) -> None:
    assert alone(9_999, proportional(9_999), monkeypatch).reach is None
    assert alone(10_000, proportional(10_000), monkeypatch).reach == 8.0


def test_rows_are_by_size_and_name(monkeypatch: pytest.MonkeyPatch) -> None:
    figures = [figure("a", 100_000), figure("c", 100_000), figure("b", 100_000, rate=False)]
    saved = {name: proportional(100_000) for name in "bc"} | {"a": proportional(300_000)}
    result = found(figures, saved, monkeypatch)
    assert [row.figure for row in result.derivatives] == ["a", "b", "c"]
    assert not result.unfinished


def test_a_figure_that_cannot_be_changed_keeps_the_estimate_of_the_path(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def saved(factor: Fraction) -> float:
        raise TraceError("no such image")

    row = alone(400_000, saved, monkeypatch)
    assert row == Derivative("f", -0.4, 4000, None, "path", -0.4)


def test_what_a_time_limit_leaves_is_said_and_estimated(monkeypatch: pytest.MonkeyPatch) -> None:
    def late(factor: Fraction) -> float:
        raise TimeLimitReached("time limit of 1 s")

    figures = [figure(name, 100_000) for name in "abc"]
    saved = {"a": proportional(100_000), "b": late, "c": proportional(100_000)}
    result = found(figures, saved, monkeypatch)
    assert result.unfinished == "re-simulation of 2 of 3 derivatives; time limit of 1 s"
    assert [(row.figure, row.reach) for row in result.derivatives] == [
        ("a", 8.0),
        ("b", None),
        ("c", None),
    ]
