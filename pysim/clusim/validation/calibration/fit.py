"""Fit of a few figures to measured times, in logarithms, with priors and errors of omitted rows.

**Model** The logarithm of a time is its prediction, linear in the logarithms of the figures' factors, plus an error
with one spread for all rows (at least `LEAST_ERROR`). Factors have normal priors. Rows with more than `HUBER`
spreads count less. The fit is the most probable one, found by Gauss-Newton steps whose derivatives are
corrected by every simulation (Broyden).
**Intervals** The wider of the posterior's and the jackknife's over groups of rows: errors of the rows of a curve agree.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from clusim.base.arrays import Array

LEAST_ERROR = 0.005
"""Least spread of a row's error, in logarithms: the repetitions of most sources differ by more."""

HUBER = 2.0
"""Spreads from which a row counts less."""

LEAST_GAIN = 1.0
"""Least gain of a figure in the logarithm of the rows' probability."""

ERRORS = (0.005, 0.01, 0.02, 0.04, 0.08, 0.16)
"""Spreads of rows that are compared."""

REWEIGHTINGS = 8
"""Repetitions of a linear fit with weights and error of the one before."""

STEPS = 6
"""Most Gauss-Newton steps."""

CLOSE = 0.05
"""A step that moves no factor by more than this share of its interval is the last."""

TRIALS = 4
"""Halvings of a step that does not reduce the misfit."""

Predict = Callable[[Array], Array]
"""Returns the logarithms of the predicted times with logarithms of factors."""


@dataclass(frozen=True)
class LinearFit:
    """Prediction near a point, and the measured times.

    Attributes
    ----------
    measured, predicted : array
        Logarithms of times, one per row.
    slopes : array
        Derivatives by the logarithms of the factors, rows x figures.
    spreads : array
        Spread of the prior of each logarithm.
    at : array
        Logarithms of the factors.
    """

    measured: Array
    predicted: Array
    slopes: Array
    spreads: Array
    at: Array

    @property
    def residuals(self) -> Array:
        """Return the logarithms of measured by predicted times."""
        return self.measured - self.predicted

    def error(self) -> float:
        """Return the spread of the rows' errors."""
        return _error(self.residuals)

    def of(self, figures: Sequence[int]) -> LinearFit:
        """Return the prediction as a function of some of the figures."""
        chosen = list(figures)
        parts = self.slopes[:, chosen], self.spreads[chosen], self.at[chosen]
        return replace(self, slopes=parts[0], spreads=parts[1], at=parts[2])

    def solve(self, rows: Array | None = None) -> Array:
        """Return the most probable logarithms of the factors; `rows` selects rows."""
        counted = np.ones(len(self.measured)) if rows is None else rows * 1.0
        # In units of the prior, so that figures without effect stay exactly at it.
        scaled = self.slopes * self.spreads
        target = self.residuals + self.slopes @ self.at
        units = self.at / self.spreads
        for _ in range(REWEIGHTINGS):
            errors = target - scaled @ units
            error = _error(errors[counted > 0])
            weights = (
                np.minimum(
                    counted, HUBER * error / np.maximum(np.abs(errors), 1e-12)
                )
                / error**2
            )
            normal = scaled.T @ (scaled * weights[:, None]) + np.eye(len(units))
            units = np.linalg.solve(normal, scaled.T @ (weights * target))
        solved: Array = units * self.spreads
        return solved

    def left_out(self, groups: Sequence[Hashable]) -> Array:
        """Return the residuals of every row after a fit to the rows of the other groups."""
        result = np.empty(len(self.measured))
        for group in dict.fromkeys(groups):
            inside = np.array([one == group for one in groups])
            moved = self.solve(~inside) - self.at
            result[inside] = self.residuals[inside] - self.slopes[inside] @ moved
        return result

    def deviations(self, groups: Sequence[Hashable]) -> Array:
        """Return the spreads of the logarithms of the factors, at most the prior's."""
        scaled = self.slopes * self.spreads
        normal = scaled.T @ scaled / self.error() ** 2 + np.eye(len(self.at))
        spreads = np.sqrt(np.diag(np.linalg.inv(normal))) * self.spreads
        names = list(dict.fromkeys(groups))
        if len(names) > 1:
            fits = [
                self.solve(np.array([one != name for one in groups]))
                for name in names
            ]
            spread = np.sum((np.array(fits) - np.mean(fits, axis=0)) ** 2, axis=0)
            spreads = np.maximum(
                spreads, np.sqrt(spread * (len(names) - 1) / len(names))
            )
        result: Array = np.minimum(spreads, self.spreads)
        return result

    def misfit(self, error: float) -> float:
        """Return the misfit of rows and priors, for a spread of the rows."""
        size = np.abs(self.residuals) / error
        rows = np.where(size < HUBER, size**2, 2 * HUBER * size - HUBER**2)
        return float(rows.sum() + ((self.at / self.spreads) ** 2).sum())


def _error(residuals: Array) -> float:
    """Return the spread of errors, from their median."""
    return max(LEAST_ERROR, 1.4826 * float(np.median(np.abs(residuals))))


def ordered_figures(
    residuals: Array, slopes: Array, spreads: Array, limit: int
) -> list[int]:
    """Return the figures that explain residuals best by their priors, each in addition to earlier figures.

    A figure raises the probability of the residuals, which are normal with the spreads of the priors and the error of
    `ERRORS` that is most probable, by the factor exp(`LEAST_GAIN`) at least.
    """
    scaled = slopes * spreads
    result: list[int] = []
    best = _evidence(residuals, scaled[:, result])
    while len(result) < min(limit, scaled.shape[1]):
        values = [
            -np.inf
            if index in result
            else _evidence(residuals, scaled[:, [*result, index]])
            for index in range(scaled.shape[1])
        ]
        index = int(np.argmax(values))
        if values[index] < best + LEAST_GAIN:
            break
        best = values[index]
        result.append(index)
    return result


def _evidence(residuals: Array, scaled: Array) -> float:
    """Return the logarithm of the probability of residuals, by the most probable error."""
    result = -np.inf
    for error in ERRORS:
        covariance = scaled @ scaled.T + error**2 * np.eye(len(residuals))
        _, size = np.linalg.slogdet(covariance)
        misfit = residuals @ np.linalg.solve(covariance, residuals)
        result = max(result, -0.5 * float(size + misfit))
    return result


def fit(start: LinearFit, predict: Predict) -> LinearFit:
    """Return the most probable prediction; every step is simulated by `predict`."""
    now = start
    for _ in range(STEPS):
        step = now.solve() - now.at
        if np.all(np.abs(step) <= CLOSE * now.deviations(range(len(now.measured)))):
            break
        error = now.error()
        for _ in range(TRIALS):
            predicted = predict(now.at + step)
            change = predicted - now.predicted - now.slopes @ step
            slopes = now.slopes + np.outer(change, step) / (step @ step)
            moved = replace(
                now, predicted=predicted, slopes=slopes, at=now.at + step
            )
            if moved.misfit(error) < now.misfit(error):
                now = moved
                break
            now = replace(now, slopes=slopes)
            step = step / 2
        else:
            break
    return now
