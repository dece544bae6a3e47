"""A page as a matplotlib figure; this package is imported only when a picture is asked for."""

from __future__ import annotations

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Arc, FancyBboxPatch

from clusim.topology.drawing.machine import place_machine
from clusim.topology.drawing.network import place_network
from clusim.topology.drawing.page import CHAR, DrawnBox, Page, Text
from clusim.topology.outline import Outline

UNIT_INCH = 0.42
"""A box's height [inch]."""

FILL = {
    "cpu": "#dfe6f2",
    "pcie": "#ece7f6",
    "gpu": "#d8efd3",
    "host": "#d8efd3",
    "nic": "#fdebd0",
    "memory": "#f1f1f1",
    "nvswitch": "#cdebe4",
    "switch": "#fbdcdc",
    "machine": "#f4f6f9",
    "more": "#ffffff",
}
LEGEND_ROW = 0.62
TEXT_SIZES = {"title": 12.0, "small": 7.5}
ALIGNMENT = {"small": "center", "right": "right"}


def render(view: Outline) -> Figure:
    """Return the picture of a fabric."""
    page = Page()
    bottom = 0.0
    for group in view.alike()[:2]:
        bottom = place_machine(page, group, view, bottom) + 1.4
    if view.tiers:
        place_network(page, view, bottom)
    return _paint(page)


def _paint(page: Page) -> Figure:
    left = min(box.x - box.width / 2 for box in page.boxes) - 0.4
    right = max(box.x + box.width / 2 for box in page.boxes) + 0.4
    right = max(right, left + 1 + max((text.width for text in page.texts), default=0))
    low = min(
        [box.y - box.height / 2 for box in page.boxes]
        + [text.y - 0.3 for text in page.texts]
        + [arch.end for arch in page.arches]
    )
    high = max([text.y + 0.5 for text in page.texts] + [box.y + 1 for box in page.boxes])
    longest = max((len(name) for name in page.legend), default=1)
    columns = max(1, min(len(page.legend), int((right - left) / (2.4 + 1.25 * CHAR * longest))))
    low -= 0.8 + LEGEND_ROW * -(-len(page.legend) // columns)
    figure = Figure(figsize=((right - left) * UNIT_INCH, (high - low) * UNIT_INCH))
    FigureCanvasAgg(figure)
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set_xlim(left, right)
    axes.set_ylim(low, high)
    axes.axis("off")
    _draw_links(axes, page)
    for box in page.boxes:
        _draw_box(axes, box)
    for text in page.texts:
        _draw_text(axes, text, left + 0.4)
    handles = [
        Line2D([], [], color=colour, linewidth=2.5, label=name)
        for name, colour in page.legend.items()
    ]
    if handles:
        axes.legend(handles=handles, loc="lower center", ncols=columns, fontsize=8, frameon=False)
    return figure


def _draw_links(axes: Axes, page: Page) -> None:
    for line in page.lines:
        axes.add_line(
            Line2D(
                [line.x1, line.x2],
                [line.y1, line.y2],
                color=line.colour,
                linewidth=line.width,
                zorder=1,
                alpha=0.8,
            )
        )
    for arch in page.arches:
        axes.add_patch(
            Arc(
                ((arch.x1 + arch.x2) / 2, arch.y),
                abs(arch.x2 - arch.x1),
                2 * arch.height,
                theta1=0 if arch.up else 180,
                theta2=180 if arch.up else 360,
                color=arch.colour,
                linewidth=arch.width,
                zorder=1,
                alpha=0.8,
            )
        )


def _draw_box(axes: Axes, box: DrawnBox) -> None:
    axes.add_patch(
        FancyBboxPatch(
            (box.x - box.width / 2, box.y - box.height / 2),
            box.width,
            box.height,
            boxstyle="round,pad=0,rounding_size=0.12",
            facecolor=FILL[box.kind],
            edgecolor="#555555",
            linewidth=0.8,
            linestyle="--" if box.dashed else "-",
            zorder=2,
        )
    )
    step = 0.38
    for number, line in enumerate(box.lines):
        first = number == 0
        axes.text(
            box.x,
            box.y + (len(box.lines) - 1) / 2 * step - number * step,
            line,
            ha="center",
            va="center",
            zorder=3,
            fontsize=8 if first else 6.6,
            weight="bold" if first else "normal",
        )


def _draw_text(axes: Axes, text: Text, left: float) -> None:
    axes.text(
        left if text.style in ("title", "note") else text.x,
        text.y,
        text.words,
        fontsize=TEXT_SIZES.get(text.style, 8.5),
        ha=ALIGNMENT.get(text.style, "left"),
        va="center",
        weight="bold" if text.style == "title" else "normal",
        zorder=3,
    )
