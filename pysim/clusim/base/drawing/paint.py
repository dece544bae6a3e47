"""Pictures of systems as figures by matplotlib, which is imported only when a picture is requested."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib import rc_context
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import FancyBboxPatch

from clusim.base.arrays import Array
from clusim.base.drawing.boxes import Picture

BAR = 7.4
"""Width of a bar [units]."""

HEAD, MARGIN = 44.0, 14.0
"""Height of a title, and width of the margins [units]."""

EDGE, SOFT = "#8b93a1", "#5a6270"
"""Colours of the borders of boxes, and of words beside boxes."""


@dataclass(frozen=True, slots=True)
class Ink:
    """Colours and sizes of a figure.

    Attributes
    ----------
    lines : list
        Colour of every line.
    boxes : mapping
        Colour of boxes by tier, or by kind; others are white.
    unit_in : float
        Size of a unit of the picture [inch].
    letter : float
        Largest letters of boxes; other letters are in proportion to it [units].
    """

    lines: Sequence[Any]
    boxes: Mapping[str, str]
    unit_in: float
    letter: float


@dataclass(frozen=True, slots=True)
class Sheet:
    """A picture with its title, the widths of its lines, and remarks below the titles of rows, by height [units]."""

    title: str
    picture: Picture
    widths: Sequence[float]
    notes: Mapping[float, str]
    ink: Ink


def figure_of(sheets: Sequence[Sheet], legend: Mapping[str, str]) -> Figure:
    """Return pictures of the same width, one below the other; `legend` has the colour of each type of link."""
    inner, unit_in, letter = (
        sheets[0].picture.width,
        sheets[0].ink.unit_in,
        sheets[0].ink.letter,
    )
    point, width = 72 * unit_in * letter, inner + 2 * MARGIN
    longest = max(map(len, legend), default=0)
    columns = max(1, min(len(legend), int(width / (50 + 0.6 * letter * longest))))
    top = height = (
        1.6 * letter * -(-len(legend) // columns)
        + MARGIN
        + sum(HEAD + sheet.picture.height for sheet in sheets)
    )
    # Names are plain text: a `$` does not start a formula.
    with rc_context({"text.parse_math": False}):
        figure = Figure(figsize=(width * unit_in, height * unit_in))
        for sheet in sheets:
            tall = sheet.picture.height
            top -= HEAD + tall
            place = (MARGIN / width, top / height, inner / width, tall / height)
            axes = figure.add_axes(place)
            paint(axes, sheet.picture, sheet.widths, sheet.ink)
            axes.text(
                0,
                -HEAD / 2,
                sheet.title,
                fontsize=1.3 * point,
                weight="bold",
                va="center",
            )
            for y, text in sheet.notes.items():
                axes.text(
                    4,
                    y + 1.1 * letter,
                    text,
                    fontsize=0.65 * point,
                    va="center",
                    color=SOFT,
                )
        handles = [
            Line2D([], [], color=colour, linewidth=2.5, label=name)
            for name, colour in legend.items()
        ]
        words: dict[str, Any] = {"fontsize": 0.8 * point, "frameon": False}
        if handles:
            figure.legend(
                handles=handles, loc="lower center", ncols=columns, **words
            )
    return figure


def paint(axes: Any, picture: Picture, widths: Sequence[float], ink: Ink) -> None:
    """Draw a picture; `widths` are those of its lines [units]."""
    axes.set_axis_off()
    axes.set_xlim(0, picture.width)
    axes.set_ylim(picture.height, 0)
    point, num_ways = 72 * ink.unit_in, picture.num_ways
    bars = [np.array([[x, y], [right, y]]) for x, right, y in picture.bar_spans()]
    lines = [_line_points(picture, line) for line in range(num_ways)]
    for strokes, colours, sizes, height in (
        (
            lines,
            ink.lines[:num_ways],
            [point * width for width in widths[:num_ways]],
            1,
        ),
        (bars, ink.lines[num_ways:], [point * BAR] * len(bars), 4),
    ):
        collection = LineCollection(
            strokes, colors=colours, linewidths=sizes, zorder=height
        )
        collection.set_capstyle("butt")
        axes.add_collection(collection)
    words: dict[str, Any] = {"va": "center", "color": SOFT}
    for frame in picture.frames:
        axes.add_patch(
            FancyBboxPatch(frame.corner, frame.width, frame.height, boxstyle="round,pad=0,rounding_size=8",
                           facecolor="none", edgecolor="#c3c8d0", linewidth=2 * point, zorder=0)
        )  # fmt: skip
        axes.text(
            *frame.text, frame.label, fontsize=1.05 * ink.letter * point, **words
        )
    letters = picture.label_sizes(ink.letter, 1.2)
    for box in picture.boxes:
        style = f"round,pad=0,rounding_size={box.radius}"
        fill = ink.boxes.get(box.tier) or ink.boxes.get(box.kind, "#ffffff")
        axes.add_patch(
            FancyBboxPatch(box.corner, box.width, box.height, boxstyle=style, facecolor=fill, edgecolor=EDGE,
                           linewidth=1.6 * point, zorder=2)
        )  # fmt: skip
        axes.text(
            box.x,
            box.text_y,
            box.label,
            ha="center",
            va="center_baseline",
            fontsize=letters[box.width] * point,
            zorder=3,
        )
    for size, titles in ((0.9, picture.titles), (0.75, picture.bar_titles())):
        for text, y in titles:
            axes.text(
                4, y, text, ha="left", fontsize=size * ink.letter * point, **words
            )


def _line_points(picture: Picture, line: int) -> Array:
    """Return the points of a line between two boxes, as the report draws it in SVG."""
    start, control, end = (np.array(place) for place in picture.bend(line))
    t = np.linspace(0, 1, 17 if picture.bent(line) else 2)[:, None]
    return np.asarray((1 - t) ** 2 * start + 2 * t * (1 - t) * control + t**2 * end)
