"""Calibration of a system by the measurements of its user.

1. Movable figures (`figures`) are moved one after the other, first all of a part of the system together, at a few rows.
   The first are the best explanations of the errors by their priors (`ordered_figures`).
2. Their derivatives are simulated at all rows. The number of figures has the least error of omitted rows.
3. The most probable factors are found (`fit`), each step simulated.

The result is an overlay of the system (`clusim.topology.overlays`).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import exp
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TypedDict, Unpack

import numpy as np

from clusim.base.arrays import Array
from clusim.base.errors import InputError
from clusim.base.executors import Jobs
from clusim.base.tables import group_values
from clusim.base.terms.times import REGIMES, regime_of
from clusim.topology import load
from clusim.validation.calibration.figures import MovableFigure, candidates_of
from clusim.validation.calibration.fit import LinearFit, fit, ordered_figures
from clusim.validation.calibration.result import (
    Calibration,
    Effect,
    LeftOutError,
    MovedFigure,
    median_pct,
)
from clusim.validation.calibration.rows import SIZES, calibration_rows
from clusim.validation.calibration.simulated import Notify, RowTimes
from clusim.validation.collectives.measurements import Row

FIGURES = 4
"""Most figures that move."""

PROBED = 8
"""Rows at which candidates are compared."""

STEP = 0.1
"""Change of a figure for a derivative, in its logarithm."""

LARGE = list(REGIMES)[-1]
"""Range of the largest sizes."""

NO_EFFECT = 1e-6
"""Largest change of a time, in its logarithm, of a figure without effect."""

LEAST_GAIN = 0.97
"""Largest ratio of errors of omitted rows with a further figure and without for which it moves."""


class CalibrationOptions(TypedDict, total=False):
    """Further options of `calibrate`.

    Attributes
    ----------
    figures : int
        Most figures that move.
    sizes : int
        Most sizes of a curve.
    jobs : int or None
        Worker processes; None is one per core.
    notify : callable or None
        Called with the last work.
    """

    figures: int
    sizes: int
    jobs: Jobs
    notify: Notify | None


def calibrate(
    system: str | Path,
    files: Sequence[str | Path],
    **options: Unpack[CalibrationOptions],
) -> Calibration:
    """Return the figures of a system that fit measurements; published figures do not move.

    Parameters
    ----------
    system : str or Path
        Preset, file or overlay.
    files : sequence of str or Path
        Outputs of nccl-tests, tables of ``clusim validate``, dumps of NCCL's Inspector.
    **options
        See `CalibrationOptions`.

    Raises
    ------
    InputError
        A file cannot be read or is of other systems, or a row cannot be simulated.
    """
    figures, sizes = options.get("figures", FIGURES), options.get("sizes", SIZES)
    if figures < 1 or sizes < 1:
        raise InputError(f"figures={figures}, sizes={sizes}: must be at least 1")
    rows = calibration_rows(files, str(system), sizes)
    with TemporaryDirectory(prefix="clusim-") as folder:
        times = RowTimes(
            rows,
            str(system),
            Path(folder),
            options.get("jobs"),
            options.get("notify"),
        )
        return _Search(times, candidates_of(load(system)), figures).calibration()


@dataclass(frozen=True)
class _Search:
    times: RowTimes
    candidates: list[MovableFigure]
    most: int

    @property
    def rows(self) -> Sequence[Row]:
        return self.times.rows

    def calibration(self) -> Calibration:
        """Return the result."""
        measured = np.log([row.time_us for row in self.rows])
        before = self.times.logs({})
        chosen = self._chosen(measured, before)
        slopes = [(self._logs(chosen[i : i + 1], [STEP]) - before) / STEP
                  for i in range(len(chosen))]  # fmt: skip
        empty = np.zeros((len(self.rows), 0))
        start = LinearFit(
            measured,
            before,
            np.stack(slopes, axis=1) if slopes else empty,
            np.array([item.spread for item in chosen]),
            np.zeros(len(chosen)),
        )
        number = _best_number(start, self._groupings())
        moving = chosen[:number]
        fitted = start.of(range(number))
        if moving:
            fitted = fit(fitted, lambda at: self._logs(moving, at))
        return self._result(start, fitted, moving)

    def _logs(
        self, figures: Sequence[MovableFigure], at: Array | Sequence[float]
    ) -> Array:
        moved = {
            item.place: item.move(float(x))
            for item, x in zip(figures, at, strict=True)
        }
        return self.times.logs(moved)

    def _chosen(self, measured: Array, before: Array) -> list[MovableFigure]:
        """Return the candidates that explain the errors of some rows best."""
        numbers = _probe_rows(self.rows)
        base = before[numbers]

        def changes(items: Sequence[MovableFigure]) -> Array:
            moved = {item.place: item.move(STEP) for item in items}
            return (self.times.logs(moved, numbers) - base) / STEP

        effects: dict[MovableFigure, Array] = {}
        parts = group_values((item.kind, item) for item in self.candidates)
        for items in parts.values():
            effects |= _separate(items, changes)
        if not effects:
            return []
        spreads = np.array([item.spread for item in effects])
        slopes = np.stack(list(effects.values()), axis=1)
        order = ordered_figures(
            (measured - before)[numbers], slopes, spreads, self.most
        )
        return [list(effects)[index] for index in order]

    def _groupings(self) -> dict[str, list[Hashable]]:
        """Return the group of every row that is omitted together, by their common property."""
        keys: dict[str, Callable[[Row], Hashable]] = {
            "a size of a curve": lambda row: (row.group, row.size_bytes),
            "a factor of 8 in size": lambda row: row.size_bytes.bit_length() // 3,
            "a collective": lambda row: row.group.kind,
            "a file": lambda row: row.source or row.where,
        }
        groupings = {name: [*map(key, self.rows)] for name, key in keys.items()}
        return {name: keys for name, keys in groupings.items() if len(set(keys)) > 1}

    def _result(
        self, start: LinearFit, fitted: LinearFit, moving: Sequence[MovableFigure]
    ) -> Calibration:
        groupings = self._groupings()
        finest = next(iter(groupings.values()), [0] * len(self.rows))
        deviations = fitted.deviations(finest)
        moved = [
            _moved_figure(item, self.rows, (float(at), float(deviation)), slopes)
            for item, at, deviation, slopes in zip(
                moving, fitted.at, deviations, fitted.slopes.T, strict=True
            )
        ]
        left_out = [
            LeftOutError(
                name,
                len(set(keys)),
                median_pct(start.residuals),
                median_pct(fitted.left_out(keys)),
            )
            for name, keys in groupings.items()
        ]
        return Calibration(
            self.times.system,
            list(self.rows),
            moved,
            len(self.candidates),
            left_out,
            start.residuals.tolist(),
            fitted.residuals.tolist(),
            self.times.count,
        )


def _probe_rows(rows: Sequence[Row]) -> list[int]:
    """Return indices of rows of different curves and sizes: the smallest of large sizes, the middle of others."""
    cells = group_values(
        ((regime_of(row.size_bytes), row.group), number)
        for number, row in enumerate(rows)
    )
    share = max(1, PROBED // len(cells))
    some: list[int] = []
    for (regime, _), numbers in cells.items():
        count = min(share, len(numbers))
        ends = 0 if regime == LARGE else (len(numbers) - 1) / (2 * count)
        places = np.linspace(ends, len(numbers) - 1 - ends, count)
        some += [numbers[round(place)] for place in places.tolist()]
    some.sort(key=lambda number: rows[number].size_bytes)
    chosen = np.linspace(0, len(some) - 1, min(PROBED, len(some)))
    return [some[round(place)] for place in chosen.tolist()]


def _separate(
    items: Sequence[MovableFigure],
    changes: Callable[[Sequence[MovableFigure]], Array],
) -> dict[MovableFigure, Array]:
    """Return the derivatives of the figures with an effect; halves without an effect need one simulation."""
    try:
        joint = changes(items)
        if np.abs(joint).max() * STEP < NO_EFFECT:
            return {}
        if len(items) == 1:
            return {items[0]: joint}
    except InputError:
        if len(items) == 1:
            return {}  # It has no other value in this system.
    middle = len(items) // 2
    return _separate(items[:middle], changes) | _separate(items[middle:], changes)


def _best_number(start: LinearFit, groupings: Mapping[str, list[Hashable]]) -> int:
    """Return the number of figures, in their order, with the least error of omitted rows."""
    number, lowest = 0, float(np.mean(np.abs(start.residuals)))
    for count in range(1, start.slopes.shape[1] + 1):
        part = start.of(range(count))
        errors = [
            float(np.mean(np.abs(part.left_out(keys))))
            for keys in groupings.values()
        ] or [float(np.mean(np.abs(start.residuals)))]
        error = float(np.mean(errors))
        if error < LEAST_GAIN * lowest:
            number, lowest = count, error
    return number


def _moved_figure(
    item: MovableFigure,
    rows: Sequence[Row],
    place: tuple[float, float],
    slopes: Array,
) -> MovedFigure:
    at, deviation = place
    names = sorted({row.group.kind for row in rows})
    gpus = sorted({row.group.n_gpus for row in rows})
    source = (
        f"fit to {len(rows)} measured times of {', '.join(names)} on {', '.join(map(str, gpus))} GPUs;"
        f" before: {item.figure}"
    )
    after = item.move(at, deviation, source)
    some = group_values(
        ((row.group.kind, regime_of(row.size_bytes)), float(slope))
        for row, slope in zip(rows, slopes, strict=True)
    )
    effects = [
        Effect(kind, regime, float(np.mean(values)))
        for (kind, regime), values in some.items()
    ]
    effects.sort(key=lambda effect: -abs(effect.elasticity))
    prior = replace(item.figure, bounds=item.figure.limits)
    return MovedFigure(
        item.place,
        after,
        item.words(prior),
        item.words(after),
        exp(at),
        item.spread,
        deviation,
        effects,
    )
