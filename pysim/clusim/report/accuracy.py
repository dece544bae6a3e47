"""Figure of predictions against measurements: one panel per system, time over size.

Lines are predicted, dots measured.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from clusim.base.display import picture_format
from clusim.base.errors import InputError
from clusim.base.files import Staging, replacing
from clusim.base.units import format_size

PANEL_IN = 3.4
"""Width of a panel [inch]."""

SMALL_DPI = 75
"""Dots per inch of figures embedded in a page."""

SHOWN = 8
"""Curves that the legend of a panel names."""


@dataclass(frozen=True, slots=True)
class Curve:
    """Measured and predicted times [us] by size [bytes] of one group of a system.

    Curves with the same `panel` are drawn together.
    """

    system: str
    name: str
    sizes: Sequence[int]
    measured_us: Sequence[float]
    predicted_us: Sequence[float]
    panel: str = ""


def save_accuracies(curves: Sequence[Curve], target: Path) -> list[tuple[str, Path]]:
    """Draw curves into one file, or a figure per system into a directory (no extension).

    Returns
    -------
    list of (str, Path)
        Content and file of every figure.
    """
    if target.suffix and not target.is_dir():
        save_accuracy(curves, target)
        return [("all systems", target)]
    result = []
    with Staging() as staging:
        staging.folder(target)
        for system, own in _split(curves, lambda curve: curve.system).items():
            # System names come from external tables and may contain path characters.
            name = re.sub(r"[^A-Za-z0-9_-]+", "-", system).strip("-") or "system"
            result.append((system, target / f"{name}.png"))
            with staging.open(result[-1][1]) as out:
                _draw(_panels(own), out, "png", SMALL_DPI)
    return result


def save_accuracy(curves: Sequence[Curve], target: Path, *, dpi: int = 150) -> None:
    """Draw curves, one panel per system, into a file; its extension selects the format."""
    form = picture_format(target)
    if not curves:
        raise InputError("nothing to draw: no row was predicted")
    with replacing(target) as out:
        _draw(_split(curves, lambda curve: curve.system), out, form, dpi)


def _panels(curves: Sequence[Curve]) -> dict[str, list[Curve]]:
    """Return the curves by panel; a panel with too many curves is split by system name prefix."""
    result: dict[str, list[Curve]] = {}
    for panel, own in _split(curves, lambda curve: curve.panel).items():
        if len(own) <= SHOWN:
            result[panel] = own
            continue
        for machines, some in _split(own, lambda curve: curve.name.partition(" ")[0]).items():
            result[f"{panel} {machines}"] = some
    return result


def _split(curves: Sequence[Curve], key: Callable[[Curve], str]) -> dict[str, list[Curve]]:
    result: dict[str, list[Curve]] = {}
    for curve in curves:
        result.setdefault(key(curve), []).append(curve)
    return result


def _draw(panels: Mapping[str, Sequence[Curve]], out: BinaryIO, form: str, dpi: int) -> None:
    """Draw a panel for each of several lists of curves."""
    import matplotlib
    from matplotlib.figure import Figure

    columns = min(3, len(panels))
    lines = -(-len(panels) // columns)
    style: Any = {
        "font.size": 7,
        "axes.linewidth": 0.5,
        "svg.fonttype": "none",
        "text.parse_math": False,
    }
    with matplotlib.rc_context({**style, "svg.hashsalt": "clusim"}):
        size = (PANEL_IN * columns, PANEL_IN * 0.8 * lines)
        figure = Figure(figsize=size, layout="constrained")
        places = list(figure.subplots(lines, columns, squeeze=False).flat)
        for axes, (title, curves) in zip(places, panels.items(), strict=False):
            _panel(axes, title, curves)
        for axes in places[len(panels) :]:
            axes.set_axis_off()
        figure.supxlabel("size [bytes]")
        figure.supylabel("time [us]: dots measured, lines predicted")
        # No date or library version: equal curves give equal files.
        metadata = {"svg": {"Date": None}, "pdf": {"CreationDate": None}, "png": {"Software": None}}
        figure.savefig(out, format=form, dpi=dpi, metadata=metadata[form])


def _panel(axes: Any, title: str, curves: Sequence[Curve]) -> None:
    axes.set_title(title)
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    # The library's default power labels are formulas, but names of tables must not be parsed as formulas.
    axes.xaxis.set_major_locator(LogLocator(2, numticks=5))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda size, _: format_size(max(1, round(size)))))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda time, _: f"{time:,g}"))
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_minor_formatter(NullFormatter())
    said = set(title.split())
    for number, curve in enumerate(curves):
        colour = f"C{number % 10}"
        words = [word for word in curve.name.split() if word not in said]
        label = " ".join(words) if number < SHOWN else None
        # A single point draws no line.
        mark = "_" if len(curve.sizes) == 1 else None
        style: Any = {"color": colour, "linewidth": 0.8, "marker": mark}
        axes.plot(curve.sizes, curve.predicted_us, label=label, **style)
        axes.plot(curve.sizes, curve.measured_us, ".", color=colour, markersize=3)
    if len(curves) > SHOWN:
        axes.plot([], [], " ", label=f"and {len(curves) - SHOWN} more")
    axes.grid(visible=True, linewidth=0.3, alpha=0.5)
    if axes.get_legend_handles_labels()[1]:
        axes.legend(fontsize=5, frameon=False)
