"""Figures that a calibration may move, with their priors.

Calibrated and assumed figures of the topology, and of launches, that are times, rates or shares; not published figures,
sizes, counts, and figures of kernels, which belong to every system. A prior is normal in the logarithm, with 90% within
the bounds of the figure, or, without bounds, within the factor `WIDE`; at least within the factor `NARROW`: bounds are
of the systems that were measured.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import exp, log

from clusim.base.errors import InputError
from clusim.hardware.bounds import bounds_words, is_continuous, scale_value
from clusim.hardware.figures import Figure
from clusim.topology import Fabric
from clusim.topology.overlays import figure_at, is_launch
from clusim.topology.render import figures_around
from clusim.topology.uncertain import uncertain_figures

WIDE, NARROW = 2.0, 1.25
"""Factors of figures without bounds, and least factor of the others; assumed."""

NORMAL_90 = 1.645
"""Spreads on either side of the mean that contain 90% of a normal distribution."""


@dataclass(frozen=True, eq=False)
class MovableFigure:
    """Figure that a calibration may move.

    Attributes
    ----------
    place : str
        Its place, as in ``clusim topo show --figures``.
    """

    place: str
    figure: Figure

    @property
    def outside(self) -> bool:
        """True if kernels do not depend on it, but launches do."""
        return is_launch(self.place)

    @property
    def kind(self) -> str:
        """Return the part of the system that it belongs to."""
        return self.place.rpartition(": ")[0] or self.place

    @property
    def spread(self) -> float:
        """Return the spread of the prior of the logarithm."""
        low, high = self.figure.limits or (1 / WIDE, WIDE)
        ends = [abs(log(end)) for end in (low, high) if end not in (0.0, 1.0)]
        return max(log(NARROW), sum(ends) / len(ends)) / NORMAL_90

    def move(self, at: float, deviation: float = 0.0, source: str = "") -> Figure:
        """Return the figure times ``exp(at)``, as calibrated.

        Parameters
        ----------
        deviation : float
            Spread of the logarithm; 0 is without bounds.
        source : str
            Origin of the value.
        """
        half = NORMAL_90 * deviation
        return Figure(
            scale_value(self.figure.value, exp(at)),
            "calibrated",
            source or self.figure.source,
            bounds=(exp(-half), exp(half)) if half else None,
        )

    def words(self, figure: Figure) -> str:
        """Return a value and its bounds in words."""
        bounds = figure.bounds
        return bounds_words(figure.value, bounds) if bounds else str(figure.value)


def candidates_of(fabric: Fabric) -> list[MovableFigure]:
    """Return the figures that a calibration of a system may move, by place."""
    figures = {item.place: item.figure for item in uncertain_figures(fabric)}
    figures |= {
        place: figure for place, figure in figures_around(fabric) if is_launch(place)
    }
    return [
        MovableFigure(place, figure)
        for place, figure in figures.items()
        if _is_movable(place, figure)
    ]


def _is_movable(place: str, figure: Figure) -> bool:
    if figure.mark == "published" or figure.limits == (1.0, 1.0):
        return False
    try:
        figure_at(place)
        return is_continuous(figure.value)
    except InputError:
        return False
