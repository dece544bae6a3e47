"""Result of a calibration: moved figures, errors before and after, and the overlay."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath

import numpy as np

from clusim.base.arrays import Array
from clusim.base.json_schema import JsonObject, Round3
from clusim.base.tables import text_table, wrap_line
from clusim.base.terms.times import REGIME_TITLES
from clusim.hardware.figures import Figure
from clusim.topology.overlays import write_overlay
from clusim.validation.collectives.measurements import Row

LEAST_EFFECT = 0.02
"""Least elasticity of a range of sizes that is printed."""


def median_pct(residuals: Array | Sequence[float]) -> float:
    """Return the median absolute error of predictions with these logarithms of measured by predicted time [%]."""
    return float(np.median(np.abs(100 * (np.exp(-np.asarray(residuals)) - 1))))


@dataclass(frozen=True, slots=True)
class Effect(JsonObject):
    """Effect of a figure on a collective and range of sizes.

    Attributes
    ----------
    elasticity : float
        Change of the time by a figure that is 1% larger [%].
    """

    collective: str
    regime: str
    elasticity: Round3


@dataclass(frozen=True, slots=True)
class MovedFigure(JsonObject):
    """Figure that a calibration moved.

    Attributes
    ----------
    place : str
        Its place, as in ``clusim topo show --figures``.
    before, after : str
        Value, or its 90% interval, before and after.
    factor : float
        Value after by value before.
    prior_spread, spread : float
        Spreads of the logarithm before and after.
    effects : list
        Effects, the largest first.
    """

    KEYS = (
        "place",
        "before",
        "after",
        "factor",
        "prior_spread",
        "spread",
        "effects",
    )

    place: str
    figure: Figure
    before: str
    after: str
    factor: Round3
    prior_spread: Round3
    spread: Round3
    effects: list[Effect]

    def words(self) -> str:
        """Return the largest effects in words."""
        words = [
            f"{effect.collective} {REGIME_TITLES[effect.regime]} {effect.elasticity:+.2f}"
            for effect in self.effects[:2]
            if abs(effect.elasticity) >= LEAST_EFFECT
        ]
        return ", ".join(words)


@dataclass(frozen=True, slots=True)
class LeftOutError(JsonObject):
    """Median errors of omitted rows, one group after the other.

    Attributes
    ----------
    groups : int
        Number of groups.
    before_pct, after_pct : float
        Median absolute error of all rows without a calibration, and of each group by a fit to the others [%].
    """

    left_out: str
    groups: int
    before_pct: Round3
    after_pct: Round3

    def cells(self) -> tuple[str, str, str, str]:
        """Return the cells of a table; without a group, of all rows."""
        title = f"without {self.left_out}" if self.left_out else "all"
        groups = str(self.groups) if self.groups else ""
        return title, groups, f"{self.before_pct:.1f}%", f"{self.after_pct:.1f}%"


@dataclass(frozen=True)
class Calibration(JsonObject):
    """Result of a calibration.

    Attributes
    ----------
    candidates : int
        Calibrated and assumed figures that could move.
    before, after : list of float
        Logarithms of measured by predicted time of the rows.
    before_pct, after_pct : float
        Median absolute errors of the rows [%].
    simulations : int
        Number of simulated kernels.
    """

    KEYS = (
        *("system", "rows=row_count", "candidates", "figures", "before_pct"),
        *("after_pct", "left_out", "simulations"),
    )

    system: str
    rows: list[Row]
    figures: list[MovedFigure]
    candidates: int
    left_out: list[LeftOutError]
    before: list[float]
    after: list[float]
    simulations: int

    @property
    def row_count(self) -> int:
        """Number of measured times."""
        return len(self.rows)

    @property
    def before_pct(self) -> Round3:
        """Return the median error of the rows before [%]."""
        return median_pct(self.before)

    @property
    def after_pct(self) -> Round3:
        """Return the median error of the rows after [%]."""
        return median_pct(self.after)

    def write(self, path: Path) -> None:
        """Write the overlay, a topology file.

        Raises
        ------
        InputError
            No figure moved.
        """
        base = self.system
        if Path(base).exists():
            base = str(PurePath(Path(base).resolve()))
        description = f"{self.system}, calibrated by {len(self.rows)} measured times"
        figures = {item.place: item.figure for item in self.figures}
        write_overlay(path, base, figures, description)

    def lines(self) -> Iterator[str]:
        """Yield figures and errors as text."""
        count = f"{len(self.figures)} of {self.candidates} calibrated and assumed figures moved"
        yield f"{self.system}: {count}, by {len(self.rows)} measured times"
        yield ""
        if self.figures:
            rows = [("before", "after (90%)", "figure")]
            rows += [(item.before, item.after, item.place) for item in self.figures]
            yield from text_table("  {:<..}  {:<..}  {}", rows)
            yield ""
            for item in self.figures:
                yield from wrap_line(
                    f"  1% more {item.place} [% of the time]: {item.words()}"
                )
            yield ""
        head = ("error of the rows", "groups", "before", "after")
        every = LeftOutError("", 0, self.before_pct, self.after_pct)
        cells = [item.cells() for item in (every, *self.left_out)]
        yield from text_table("  {:<..} {:>6} {:>..} {:>..}", [head, *cells])
