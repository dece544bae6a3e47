"""Derivatives of a run by the figures of its hardware, checked by re-simulation.

A figure that is 1% better is simulated, so that queues, windows and parallel paths count. Where the estimate of the
critical path disagrees, it is replaced by the least-squares slope of changes by 1% and 2% in both directions: where
packets compete, the order of arbitration changes with every figure, and single differences scatter. Larger changes are
simulated to find the range of the first-order estimate.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass, replace
from fractions import Fraction

from clusim.analysis.critical import Critical
from clusim.analysis.sensitivity import PathFigure, path_figures
from clusim.analysis.whatif import Change
from clusim.base.errors import ClusimError, TimeLimitReached
from clusim.results.sensitivity import LEAST_SHOWN, Derivative, Sensitivity

STEP = Fraction(101, 100)
"""Simulated improvement of a figure."""

MORE_STEPS = (Fraction(99, 100), Fraction(102, 100), Fraction(98, 100))
"""Changes that are simulated where the path disagrees."""

FACTORS = tuple(Fraction(n, 20) for n in (22, 25, 30, 40, 60, 80, 120, 160))
"""Larger improvements, of which the largest with a valid first-order estimate is found by bisection."""

TOLERANCE = 0.1
"""Largest relative difference of the path's estimate from the re-simulation."""

LEAST_DIFFERENCE = 0.01
"""Difference of elasticities that is always tolerated."""

VALID = 0.01
"""Largest error of a valid first-order estimate, as a share of the run."""

UNCHECKED = "no interval, and derivatives are estimates of the critical path; --confirm re-simulates them"

Simulate = Callable[[Change], int]
"""Returns the time of the run with a change of its image [ps]."""


def derivatives(run: Critical, simulate: Simulate | None) -> Sensitivity:
    """Return the derivatives of a run.

    Parameters
    ----------
    run : Critical
        The run, with its completed slices.
    simulate : callable or None
        None: the estimates are not checked.

    Raises
    ------
    TraceError
        The critical path cannot be followed.
    """
    time_ps = max(1, run.traced.result.time_ps)
    figures = path_figures(run)
    if simulate is None:
        rows = [_row(figure, figure.time_ps, time_ps) for figure in figures]
        return Sensitivity(time_ps, rows, UNCHECKED)
    rows, unfinished = [], ""
    for figure in figures:
        try:
            rows.append(_Checked(figure, time_ps, simulate).row())
        except TimeLimitReached as error:
            later = figures[len(rows) :]
            unfinished = f"re-simulation of {len(later)} of {len(figures)} derivatives; {error}"
            rows += [_row(each, each.time_ps, time_ps) for each in later]
            break
    rows.sort(key=lambda row: (-abs(row.elasticity), row.figure))
    return Sensitivity(time_ps, rows, unfinished=unfinished)


def _row(figure: PathFigure, part_ps: int, time_ps: int) -> Derivative:
    """Return the derivative by a figure on which `part_ps` of a run depends."""
    sign = -1 if figure.rate else 1
    elasticity, path = (sign * ps / time_ps for ps in (part_ps, figure.time_ps))
    return Derivative(
        figure.name, elasticity, round(part_ps / 100), None, "path", path
    )


@dataclass(frozen=True, slots=True)
class _Checked:
    """Derivative by a figure, with re-simulation."""

    figure: PathFigure
    time_ps: int
    simulate: Simulate

    def row(self) -> Derivative:
        """Return the derivative; unchecked if the changed image is invalid or cannot end."""
        figure = self.figure
        try:
            slopes = {STEP: self._slope_ps(STEP)}
            if self._agrees(slopes[STEP]):
                row = _row(figure, figure.time_ps, self.time_ps)
                return replace(row, reach=self._reach(figure.time_ps))
            slopes |= {step: self._slope_ps(step) for step in MORE_STEPS}
            weights = {step: float(1 - 1 / step) ** 2 for step in slopes}
            weighted = sum(weights[step] * slope for step, slope in slopes.items())
            measured_ps = round(weighted / sum(weights.values()))
            agrees = self._agrees(measured_ps)
            measured_ps = figure.time_ps if agrees else measured_ps
            basis = "path" if agrees else "re-simulated"
            scatter_ps = max(abs(slope - measured_ps) for slope in slopes.values())
            row = _row(figure, measured_ps, self.time_ps)
            scatter = scatter_ps / self.time_ps
            return replace(
                row, basis=basis, scatter=scatter, reach=self._reach(measured_ps)
            )
        except TimeLimitReached:
            raise
        except ClusimError:
            return _row(figure, figure.time_ps, self.time_ps)

    def _agrees(self, part_ps: float) -> bool:
        """Return True if the estimate of the path is right."""
        larger_ps = max(abs(part_ps), self.figure.time_ps)
        most_ps = max(TOLERANCE * larger_ps, LEAST_DIFFERENCE * self.time_ps)
        return abs(part_ps - self.figure.time_ps) <= most_ps

    def _slope_ps(self, factor: Fraction) -> float:
        """Return the part of the run that depends on the figure, from one changed run [ps]."""
        return self._saved_ps(factor) / float(1 - 1 / factor)

    def _saved_ps(self, factor: Fraction) -> int:
        return self.time_ps - self.simulate(
            replace(self.figure.change, factor=factor)
        )

    def _reach(self, part_ps: int) -> float | None:
        """Return the largest factor with a valid estimate; None for rows that are not printed."""
        if abs(part_ps) < LEAST_SHOWN * self.time_ps:
            return None

        def is_wrong(factor: Fraction) -> bool:
            error_ps = self._saved_ps(factor) - part_ps * (1 - 1 / factor)
            return abs(error_ps) > VALID * self.time_ps

        index = bisect_left(FACTORS, True, key=is_wrong)
        return float(FACTORS[index - 1]) if index else 1.0
