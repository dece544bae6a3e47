"""Figures of a system that are not exact, as independent variables.

Figures with the same text (value, mark, source) are one variable: they share their origin, for example the latency of
all NVLinks. Figures of kernels, which `Fabric.sources` omits, belong to every system; values given in a description are
exact.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager

from clusim.base.errors import TopologyError
from clusim.base.records import dataclass
from clusim.hardware import KERNELS, all_figures
from clusim.hardware.bounds import bounds_words
from clusim.hardware.figures import Figure, scaled_figures
from clusim.topology.loading import load
from clusim.topology.model import Fabric

EXACT = (1.0, 1.0)


@dataclass(frozen=True, slots=True, eq=False)
class UncertainFigure:
    """Figure of a system that is not exact.

    Attributes
    ----------
    name : str
        Its places, as in ``clusim topo show --figures``.
    place : str
        The first of them.
    """

    name: str
    figure: Figure
    place: str = ""

    @property
    def has_bounds(self) -> bool:
        """True if its bounds are known."""
        return self.figure.limits is not None

    @property
    def bounds(self) -> str:
        """Bounds in words."""
        return bounds_words(self.figure.value, self.figure.limits or EXACT)

    def factor(self, place: float) -> float:
        """Return the factor of the figure at a place between its bounds (-1 and 1); 0 is its value."""
        low, high = self.figure.limits or EXACT
        return 1 + abs(place) * ((low if place < 0 else high) - 1)


def uncertain_figures(fabric: Fabric) -> list[UncertainFigure]:
    """Return the figures of a system that are not exact."""
    registered = [*all_figures(), *fabric.figures.values()]
    figures = {str(figure): figure for figure in registered}
    places: dict[str, list[str]] = {}
    for place, text in fabric.sources.items():
        if text in figures:
            places.setdefault(text, []).append(place.removeprefix("network: "))
    for key, figure in KERNELS.items():
        places.setdefault(str(figure), []).append(f"kernels: {key}")
    result = [
        UncertainFigure(_name(names), figures[text], names[0])
        for text, names in places.items()
    ]
    return [item for item in result if item.figure.limits != EXACT]


def _name(places: list[str]) -> str:
    """Return one name for all places of a figure."""
    stem = places[0].rpartition(": ")[0]
    if all(place.rpartition(": ")[0] == stem for place in places):
        return ", ".join(
            [places[0], *(place.rpartition(": ")[2] for place in places[1:])]
        )
    return f"{places[0]} and {len(places) - 1} more"


def scale_figures(
    factors: Mapping[UncertainFigure, float],
) -> AbstractContextManager[None]:
    """Return the context in which systems are loaded, and programs are written, with figures times factors."""
    return scaled_figures(
        {str(item.figure): factor for item, factor in factors.items()}
    )


def loaded_again(fabric: Fabric) -> Fabric:
    """Return a system, loaded again by its name or from its file; a system that was changed differs.

    Raises
    ------
    TopologyError
        The system is invalid with scaled figures, or without name and file.
    """
    try:
        return load(fabric.name)
    except TopologyError:
        return load(next(iter(fabric.source_files), ""))
