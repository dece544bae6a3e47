"""Fits of measured matrix products: the form of the times, and ratios to it."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields, replace

import numpy as np
from numpy.typing import NDArray

from clusim.hardware.kernels.measured_tables import pack
from clusim.hardware.kernels.products import Form, Silicon, form_s

Reals = NDArray[np.float64]

_SIDE = (32, 64, 128, 256, 512, 768, 1024, 1536, 2048, 2560, 3072, 3584, 4096, 5120, 6144, 7168, 8192, 10240, 12288,
         16384, 51200, 65536)  # fmt: skip
KNOTS = {
    "m": (1, 2, 4, 8, 16, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096, 6144, 8192,
          16384, 32768),
    "n": _SIDE,
    "k": _SIDE,
}  # fmt: skip
"""Sizes at which ratios are stored."""

FIRST = Form(2.5, 1.0, 0.9, 1.0, 5.0, 0.8, 2.0, 4.0, 0.9, 1.5, 50.0)
LEAST = Form(0.5, 0.2, 0.1, 0.05, 0.5, 0.05, 0.05, 1.0, 0.0, 0.0, 4.0)
MOST = {"memory": 1.15, "spread": 1.0, "whole": 1.0, "sharp": 12.0, "l2": 40.0}
"""Start and bounds of the search."""

SHARES = (0.5, 0.3, 0.2)
"""Shares of the residuals by number of sizes: all three, two, one."""

NOISE, OTHER = 0.4, 0.2
"""Noise relative to the spread of residuals, and extra noise of other libraries' rows."""

MOST_ROWS = 4000
"""Rows that a Gaussian process is given at most."""


@dataclass(frozen=True)
class ProductRows:
    """Measured products.

    Attributes
    ----------
    shapes : array
        Rows of batch, m, n, k and the fraction of fresh data.
    seconds : array
        Measured times [s].
    sizes : (float, float)
        Element sizes of operands and output [bytes].
    """

    shapes: Reals
    seconds: Reals
    sizes: tuple[float, float]


def fit_form(
    chip: Silicon, rows: ProductRows, first: Form = FIRST, steps: int = 1800
) -> Form:
    """Fit the form with the least mean log error by a random walk of `steps` steps."""
    rng = np.random.default_rng(1)
    some = rng.permutation(len(rows.seconds))[:1000]
    shapes, log_seconds = rows.shapes[some], np.log(rows.seconds[some])

    def loss(form: Form) -> float:
        apart = np.log(form_s(form, chip, shapes, rows.sizes)) - log_seconds
        return float(np.abs(apart).mean() + 0.5 * abs(apart.mean()))

    names = [field.name for field in fields(Form)]
    width = dict.fromkeys(names, 0.3)
    best, min_loss = first, loss(first)
    for step in range(steps):
        chosen = (
            [names[step % len(names)]]
            if rng.random() < 0.6
            else rng.choice(names, 3, False)
        )
        changed = {}
        for name in chosen:
            moved = getattr(best, name) * np.exp(rng.normal() * width[name])
            bounded = min(MOST.get(name, np.inf), max(getattr(LEAST, name), moved))
            changed[name] = float(bounded)
        tried = replace(best, **changed)
        result = loss(tried)
        better = result < min_loss
        if better:
            best, min_loss = tried, result
        if len(chosen) == 1:
            name = chosen[0]
            width[name] = (
                min(0.6, width[name] * 1.5)
                if better
                else max(0.02, width[name] * 0.93)
            )
    return replace(
        best, **{name: float(f"{value:.4g}") for name, value in asdict(best).items()}
    )


def _falls(apart: Reals) -> Reals:
    """Return the correlation of values at a distance (Matern 3/2)."""
    result: Reals = (1 + np.sqrt(3) * apart) * np.exp(-np.sqrt(3) * apart)
    return result


def _correlate_residuals(one: Reals, two: Reals) -> Reals:
    """Return correlations of residuals at two sets of shapes, in octaves of m, n and k."""
    m, n, k = (np.abs(one[:, None, axis] - two[None, :, axis]) for axis in range(3))
    all_three = _falls(np.sqrt(m * m + n * n + k * k) / 3)
    pairs = _falls(np.hypot(m, n)) + _falls(np.hypot(m, k)) + _falls(np.hypot(n, k))
    single = _falls(m) + _falls(n) + _falls(k)
    result: Reals = (
        SHARES[0] * all_three + SHARES[1] / 3 * pairs + SHARES[2] / 3 * single
    )
    return result


def fit_ratios(form: Form, chip: Silicon, products: list[ProductRows]) -> str:
    """Return the residual ratios on the grid, with other libraries' rows as weaker evidence.

    They are the most likely values of a Gaussian process through the logarithms of measured / computed.
    """
    residuals, noise = [], []
    for index, rows in enumerate(products):
        residuals.append(
            np.log(rows.seconds / form_s(form, chip, rows.shapes, rows.sizes))
        )
        noise.append(
            np.full(len(residuals[-1]), np.hypot(NOISE, OTHER if index else 0.0))
        )
    places = np.log2(np.concatenate([rows.shapes[:, 1:4] for rows in products]))[
        :MOST_ROWS
    ]
    matrix = _correlate_residuals(places, places)
    matrix[np.diag_indices_from(matrix)] += np.concatenate(noise)[:MOST_ROWS] ** 2
    weights = np.linalg.solve(matrix, np.concatenate(residuals)[:MOST_ROWS])
    grid = np.stack(
        np.meshgrid(*(np.log2(KNOTS[axis]) for axis in "mnk"), indexing="ij"), -1
    )
    targets = grid.reshape(-1, 3)
    parts = np.array_split(targets, max(1, len(targets) // 500))
    result = np.concatenate(
        [_correlate_residuals(part, places) @ weights for part in parts]
    )
    return pack(result.reshape(grid.shape[:3]))
