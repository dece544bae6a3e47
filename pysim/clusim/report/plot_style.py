"""Style of figures: size, fonts, axes of time, colour scales."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from clusim.base.display import need_matplotlib
from clusim.base.units import format_size
from clusim.report.histories import FULL, MEASURES

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COLUMN_IN = 3.4
"""Width of a column of a two-column page [inch]; everything else is in proportion to it."""

SCALE = (
    "#f3f1ee",
    "#fbdfae",
    "#f9b66a",
    "#ee8549",
    "#d5503f",
    "#a82a55",
    "#6f1560",
    "#34094a",
)
"""Colours of loads, as in the light theme of the report."""

_TIMES = ((10**12, "s"), (10**9, "ms"), (10**6, "us"), (10**3, "ns"), (1, "ps"))


@dataclass(frozen=True, slots=True)
class Look:
    """Style of a figure.

    Attributes
    ----------
    width_in : float
        Width of the figure [inch]; letters grow with it.
    measure : str
        Which of `MEASURES` heatmap and topology show.
    dpi : int
        Resolution of PNG files [dots/inch].
    """

    width_in: float = COLUMN_IN
    measure: str = "load"
    dpi: int = 300


@contextmanager
def styled_figure(look: Look) -> Iterator[Figure]:
    """Yield a figure to draw on, with the common settings in effect."""
    need_matplotlib()
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    big = (look.width_in / COLUMN_IN) ** 0.75
    style: Any = {
        "font.size": 7 * big,
        "axes.linewidth": 0.5 * big,
        "axes.titlesize": 7.5 * big,
        "xtick.major.width": 0.5 * big,
        "ytick.major.width": 0.5 * big,
        "xtick.major.size": 2.5 * big,
        "ytick.major.size": 2.5 * big,
        # Names are texts: a `$` in one starts no formula.
        "text.parse_math": False,
    }
    with rc_context(style):
        yield Figure(
            figsize=(look.width_in, look.width_in * 0.66), layout="constrained"
        )


def time_axis(axes: Any, time_ps: int) -> float:
    """Label the axis of time and return its unit [ps]."""
    scale, unit = next((s, u) for s, u in _TIMES if time_ps >= s or s == 1)
    axes.set_xlabel(f"time [{unit}]")
    axes.set_xlim(0, max(1, time_ps) / scale)
    return float(scale)


def colour_map() -> Any:
    """Return the colours of loads as a map of matplotlib."""
    from matplotlib.colors import LinearSegmentedColormap

    return LinearSegmentedColormap.from_list("load", SCALE)


def colour_scale(
    figure: Any, image: Any, axes: Any, measure: str, most_bytes: int
) -> None:
    """Add the scale of colours: per cent, or bytes."""
    bar = figure.colorbar(image, ax=axes, pad=0.015, fraction=0.05, aspect=28)
    bar.outline.set_linewidth(0.3)
    if measure == "queue":
        bar.set_ticks([0, FULL], labels=["0", format_size(most_bytes)])
        bar.set_label("queue")
        return
    bar.set_ticks(
        [0, FULL / 4, FULL / 2, 3 * FULL / 4, FULL],
        labels=["0", "25", "50", "75", "100"],
    )
    bar.set_label(f"{MEASURES[measure][0].lower()} [%]")
