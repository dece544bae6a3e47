"""Figure of predictions against measurements: one panel per system, time over size, lines predicted, dots measured."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from clusim.errors import InputError
from clusim.files import replacing

__all__ = ["FORMATS", "Curve", "save_accuracy"]

FORMATS = ("png", "svg", "pdf")

PANEL_IN = 3.4
"""Width of a panel [inch]."""

SHOWN = 8
"""Curves that the legend of a panel names."""


@dataclass(frozen=True, slots=True)
class Curve:
    """Sizes [bytes], measured and predicted times [us] of one group of a system."""

    system: str
    name: str
    sizes: Sequence[int]
    measured_us: Sequence[float]
    predicted_us: Sequence[float]


def save_accuracy(curves: Sequence[Curve], target: Path, *, dpi: int = 150) -> None:
    """Draw curves, a panel per system, into a file whose ending says the format."""
    form = target.suffix.lstrip(".").lower()
    if form not in FORMATS:
        wanted = ", ".join(f".{name}" for name in FORMATS)
        raise InputError(f"{target}: no kind of figure; end the name in {wanted}")
    if not curves:
        raise InputError("nothing to draw: no row was predicted")
    import matplotlib
    from matplotlib.figure import Figure

    systems = list(dict.fromkeys(curve.system for curve in curves))
    columns = min(3, len(systems))
    lines = -(-len(systems) // columns)
    style: Any = {
        "font.size": 7,
        "axes.linewidth": 0.5,
        "svg.fonttype": "none",
        "text.parse_math": False,
    }
    with matplotlib.rc_context({**style, "svg.hashsalt": "clusim"}):
        size = (PANEL_IN * columns, PANEL_IN * 0.8 * lines)
        figure = Figure(figsize=size, layout="constrained")
        panels = figure.subplots(lines, columns, squeeze=False).flat
        for axes, system in zip(panels, systems, strict=False):
            _panel(axes, system, [curve for curve in curves if curve.system == system])
        for axes in list(panels)[len(systems) :]:
            axes.set_axis_off()
        figure.supxlabel("size [bytes]")
        figure.supylabel("time [us]: dots measured, lines predicted")
        metadata = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}.get(form)
        with replacing(target) as out:
            figure.savefig(out, format=form, dpi=dpi, metadata=metadata)


def _panel(axes: Any, system: str, curves: Sequence[Curve]) -> None:
    axes.set_title(system)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    for number, curve in enumerate(curves):
        colour = f"C{number % 10}"
        label = curve.name if number < SHOWN else None
        axes.plot(curve.sizes, curve.predicted_us, color=colour, linewidth=0.8, label=label)
        axes.plot(curve.sizes, curve.measured_us, ".", color=colour, markersize=3)
    if len(curves) > SHOWN:
        axes.plot([], [], " ", label=f"and {len(curves) - SHOWN} more")
    axes.grid(visible=True, linewidth=0.3, alpha=0.5)
    axes.legend(fontsize=5, frameon=False)
