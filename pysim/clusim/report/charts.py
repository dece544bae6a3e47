"""Small charts: stacked bars of fractions, and curves over sizes.

Histories of wires for pictures, merged over wires and time, eight bits per value.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from clusim.base.units import format_size
from clusim.report.drawnmachine import WireGroups
from clusim.report.plots import SCREEN_IN, Look, styled
from clusim.results.bins import Bins

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Array = NDArray[Any]

FULL = 255
"""Value of an eight-bit column that represents 1."""

MEASURES: dict[str, tuple[str, str]] = {
    "load": ("Load", "part of the time in which the wire was busy"),
    "peak": ("Load, fullest wire", "the same of the fullest wire of the row"),
    "credit": ("No credit", "part of the time the wire stood still for want of credit"),
    "contended": ("Contended", "part of the time a packet waited while the wire served another"),
    "queue": ("Queue", "bytes queued for the wire, largest sample"),
}
"""Histories of wires: name -> (title, meaning)."""

_COUNTERS = {"load": "busy", "credit": "stall_credit", "contended": "stall_arbitration"}


@dataclass(frozen=True, slots=True)
class History:
    """Measures of groups of wires in time columns.

    Attributes
    ----------
    edge_ps : ndarray, shape (columns + 1,)
        Where columns start and end [ps].
    values : dict of ndarray of uint8, shape (groups, columns)
        One for each of `MEASURES`; `FULL` is 100 %, or `queue_max_bytes`. Without groups of several wires, ``peak`` is
        absent.
    queue_max_bytes : int
        Longest queue of all [bytes].
    """

    edge_ps: Array
    values: dict[str, Array]
    queue_max_bytes: int


def history(
    bins: Bins, groups: WireGroups, *, columns: int, from_ps: int = 0, until_ps: int | None = None
) -> History:
    """Return the history of `groups` between two times [ps].

    It has at most `columns` columns, each of an integer number of bins.
    """
    edge_ps = bins.edge_ps
    count = len(edge_ps) - 1
    if count < 1 or not len(groups):
        return History(np.zeros(1), {}, 0)
    low = int(np.clip(np.searchsorted(edge_ps, from_ps, "right") - 1, 0, count - 1))
    high = (
        count
        if until_ps is None
        else int(np.clip(np.searchsorted(edge_ps, until_ps), low + 1, count))
    )
    step = max(1, -(-(high - low) // columns))
    starts = np.arange(low, high, step)
    edges = np.append(edge_ps[starts], edge_ps[high])
    width = np.diff(edges).astype(np.float64)
    values: dict[str, Array] = {}
    for name, counter in _COUNTERS.items():
        table = np.add.reduceat(bins.wires[counter][:, :high], starts, axis=1)
        values[name] = _bytes(groups.mean(table) / width)
        if name == "load" and groups.sizes.max() > 1:
            values["peak"] = _bytes(groups.largest(table) / width)
    queue = groups.largest(np.maximum.reduceat(bins.wires["queue"][:, :high], starts, axis=1))
    longest = int(bins.wires["queue"].max(initial=0))
    values["queue"] = _bytes(queue / max(1, longest))
    return History(edges, values, longest)


def _bytes(part: Array) -> Array:
    """Return fractions of 1 as bytes; a nonzero fraction never becomes 0."""
    scaled = np.clip(np.rint(part * FULL), 0, FULL)
    return np.where((part > 0) & (scaled == 0), 1, scaled).astype(np.uint8)


PALETTE = ("#3b7dbd", "#cc4a26", "#8a6fb3", "#d9a82b", "#c9ced6")
"""Colours of parts, distinguishable without red and green."""

MARKS = ("o", "s", "^", "D")


def stacked_bars(
    labels: Sequence[str],
    parts: Mapping[str, NDArray[Any]],
    title: str,
    width_in: float = SCREEN_IN,
) -> Figure:
    """Return bars divided into fractions of 1; parts absent from all bars are omitted."""
    with styled(Look(width_in)) as figure:
        figure.set_size_inches(width_in, width_in * (0.16 + 0.042 * max(3, len(labels))))
        axes = figure.add_subplot()
        left = np.zeros(len(labels))
        for (name, values), colour in zip(parts.items(), PALETTE, strict=True):
            if values.any():
                axes.barh(
                    range(len(labels)),
                    100 * values,
                    left=left,
                    color=colour,
                    height=0.74,
                    label=name,
                )
                left = left + 100 * values
        axes.set_yticks(range(len(labels)), labels=labels)
        axes.tick_params(axis="y", length=0)
        axes.set_ylim(len(labels) - 0.4, -0.6)
        axes.set_xlim(0, 100)
        axes.set_xlabel("part of the step [%]")
        _head(figure, axes, title)
    return figure


def curves(
    sizes: Sequence[int],
    series: Mapping[str, Sequence[float]],
    title: str,
    width_in: float = SCREEN_IN,
) -> Figure:
    """Return curves over sizes [bytes], to a base of two."""
    with styled(Look(width_in)) as figure:
        figure.set_size_inches(width_in, width_in * 0.5)
        axes = figure.add_subplot()
        for (name, values), colour, mark in zip(series.items(), PALETTE, MARKS, strict=False):
            axes.plot(sizes, values, color=colour, marker=mark, markersize=4, label=name)
        axes.set_xscale("log", base=2)
        shown = sizes[:: max(1, len(sizes) // 8)]
        axes.set_xticks(shown, labels=[format_size(size) for size in shown])
        axes.minorticks_off()
        axes.set_ylim(bottom=0)
        axes.set_ylabel("bus bandwidth [GB/s]")
        axes.grid(color="#e3e6eb", linewidth=0.5)
        _head(figure, axes, title)
    return figure


def _head(figure: Any, axes: Any, title: str) -> None:
    """Put the title and the legend above the axes."""
    axes.set_title(title, loc="left")
    handles, labels = axes.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels), frameon=False)
