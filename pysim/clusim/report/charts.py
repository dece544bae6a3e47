"""Small charts: stacked bars of fractions, bars of derivatives, and curves over sizes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from clusim.analysis.flowrates import FlowRates
from clusim.base.errors import InputError
from clusim.base.units import format_size
from clusim.report.plot_style import Look, colour_map, styled_figure
from clusim.report.plots import SCREEN_IN, stack
from clusim.results.sensitivity import Sensitivity

if TYPE_CHECKING:
    from matplotlib.figure import Figure


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
    with styled_figure(Look(width_in)) as figure:
        figure.set_size_inches(
            width_in, width_in * (0.16 + 0.042 * max(3, len(labels)))
        )
        axes = figure.add_subplot()
        named = zip(parts.items(), PALETTE, strict=True)
        bars = (
            (name, 100 * shares, colour)
            for (name, shares), colour in named
            if shares.any()
        )
        stack(axes, labels, bars)
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
    with styled_figure(Look(width_in)) as figure:
        figure.set_size_inches(width_in, width_in * 0.5)
        axes = figure.add_subplot()
        for (name, values), colour, mark in zip(
            series.items(), PALETTE, MARKS, strict=False
        ):
            axes.plot(
                sizes, values, color=colour, marker=mark, markersize=4, label=name
            )
        axes.set_xscale("log", base=2)
        ticks = sizes[:: max(1, len(sizes) // 8)]
        axes.set_xticks(ticks, labels=[format_size(size) for size in ticks])
        axes.minorticks_off()
        axes.set_ylim(bottom=0)
        axes.set_ylabel("bus bandwidth [GB/s]")
        axes.grid(color="#e3e6eb", linewidth=0.5)
        _head(figure, axes, title)
    return figure


def plot_flows(rates: FlowRates, width_in: float = SCREEN_IN) -> Figure:
    """Draw the rates of flows over time; the first few are named."""
    with styled_figure(Look(width_in)) as figure:
        figure.set_size_inches(width_in, width_in * 0.5)
        axes = figure.add_subplot()
        time_us = [
            rates.bin_ps * (place + 0.5) / 1e6 for place in range(_bins_of(rates))
        ]
        for place, flow in enumerate(rates.flows):
            name = (
                f"{flow.source} to {flow.destination}"
                if place < MOST_NAMES
                else None
            )
            style = "-" if place < len(PALETTE) else "--"
            colour = PALETTE[place % len(PALETTE)]
            axes.plot(
                time_us,
                flow.rates_GBps,
                style,
                color=colour,
                linewidth=1,
                label=name,
            )
        axes.set_ylim(bottom=0)
        axes.set_xlabel("time [us]")
        axes.set_ylabel("rate of the flow [GB/s]")
        axes.grid(color="#e3e6eb", linewidth=0.5)
        _head(figure, axes, "arriving data")
    return figure


MOST_NAMES = 6
"""Flows in the legend."""


def _bins_of(rates: FlowRates) -> int:
    return len(rates.flows[0].rates_GBps) if rates.flows else 0


def plot_sensitivity(
    result: Sensitivity, figure: str = "", width_in: float = SCREEN_IN
) -> Figure:
    """Draw ``elasticity``: a horizontal bar for each figure of at least 1%, the largest at the top."""
    if figure not in ("", "elasticity"):
        raise InputError(
            f"figure {figure!r}: unknown; a sensitivity has one, 'elasticity'"
        )
    rows = result.shown
    if not rows:
        raise InputError(f"elasticity: no derivatives to draw; {result.note}")
    with styled_figure(Look(width_in)) as chart:
        chart.set_size_inches(
            width_in, width_in * (0.16 + 0.042 * max(3, len(rows)))
        )
        axes = chart.add_subplot()
        values = [row.elasticity for row in rows]
        colours = [PALETTE[value > 0] for value in values]
        axes.barh(range(len(rows)), values, color=colours, height=0.74)
        axes.set_yticks(range(len(rows)), labels=[row.figure for row in rows])
        axes.invert_yaxis()
        axes.axvline(0, color="#5a6270", linewidth=0.6)
        axes.set_xlabel("change of the time [% per %]")
        axes.set_title("sensitivity of the time", loc="left")
    return chart


class ParetoPoint(NamedTuple):
    """A layout: memory of a GPU [GiB], time of a step [s], its words, and whether no other one is better in both."""

    memory_GiB: float
    step_time_s: float
    words: str
    best: bool


def plot_pareto(
    points: Sequence[ParetoPoint], width_in: float = SCREEN_IN
) -> Figure:
    """Draw steps over memory; layouts that no other one is faster and smaller than are joined and named."""
    front = sorted(point for point in points if point.best)
    dominated = [point for point in points if not point.best]
    with styled_figure(Look(width_in)) as figure:
        figure.set_size_inches(width_in, width_in * 0.6)
        axes = figure.add_subplot()
        axes.scatter(
            [point.memory_GiB for point in dominated],
            [point.step_time_s * 1e3 for point in dominated],
            color=PALETTE[4],
            label="other layouts",
        )
        axes.plot(
            [point.memory_GiB for point in front],
            [point.step_time_s * 1e3 for point in front],
            marker=MARKS[0],
            color=PALETTE[0],
            label="no layout is faster with less memory",
        )
        middle_GiB = (front[0].memory_GiB + front[-1].memory_GiB) / 2
        for point in front:
            right = point.memory_GiB > middle_GiB
            axes.annotate(
                point.words,
                (point.memory_GiB, point.step_time_s * 1e3),
                xytext=(-6 if right else 6, 5),
                textcoords="offset points",
                fontsize="small",
                ha="right" if right else "left",
            )
        axes.margins(0.12, 0.12)
        axes.set_xlabel("memory of a GPU [GiB]")
        axes.set_ylabel("step [ms]")
        axes.grid(color="#e3e6eb", linewidth=0.5)
        _head(figure, axes, "steps and memory of layouts")
    return figure


def plot_matrix(
    rows: Sequence[str],
    columns: Sequence[str],
    values: NDArray[Any],
    title: str,
    width_in: float = SCREEN_IN,
) -> Figure:
    """Draw a table of factors of 1 and more; NaN is an empty cell."""
    most = max(float(np.nanmax(values)), 1.01)
    with styled_figure(Look(width_in)) as figure:
        figure.set_size_inches(width_in, 1.4 + 0.45 * len(rows))
        axes = figure.add_subplot()
        axes.imshow(values, cmap=colour_map(), vmin=1.0, vmax=most, aspect="auto")
        axes.set_xticks(range(len(columns)), columns)
        axes.set_yticks(range(len(rows)), rows)
        for (row, column), value in np.ndenumerate(values):
            if not np.isnan(value):
                dark = value > 1 + 0.5 * (most - 1)
                axes.text(
                    column,
                    row,
                    f"{value:.2f}",
                    ha="center",
                    va="center",
                    color="white" if dark else "black",
                )
        axes.set_title(title, loc="left")
    return figure


class RatePoint(NamedTuple):
    """Throughput of a user and of a GPU [tokens/s], and the load."""

    per_user: float
    per_gpu: float
    words: str


def plot_rates(
    series: Mapping[str, Sequence[RatePoint]], width_in: float = SCREEN_IN
) -> Figure:
    """Draw the throughput of GPUs over the throughput of users, a curve for each name."""
    with styled_figure(Look(width_in)) as figure:
        figure.set_size_inches(width_in, width_in * 0.6)
        axes = figure.add_subplot()
        for number, (name, points) in enumerate(series.items()):
            x, y = ([point[axis] for point in points] for axis in (0, 1))
            colour = PALETTE[number % len(PALETTE)]
            mark = MARKS[number % len(MARKS)]
            axes.plot(
                x, y, color=colour, marker=mark, markersize=4, label=name or None
            )
            for point in points:
                axes.annotate(
                    point.words,
                    point[:2],
                    xytext=(5, 4),
                    textcoords="offset points",
                    fontsize="small",
                )
        axes.margins(0.1, 0.1)
        axes.set_ylim(bottom=0)
        axes.set_xlabel("tokens/s of a user")
        axes.set_ylabel("tokens/s of a GPU")
        axes.grid(color="#e3e6eb", linewidth=0.5)
        _head(figure, axes, "throughput at several numbers of requests")
    return figure


def _head(figure: Any, axes: Any, title: str) -> None:
    """Put the title and the legend above the axes."""
    axes.set_title(title, loc="left")
    handles, labels = axes.get_legend_handles_labels()
    figure.legend(
        handles, labels, loc="outside lower center", ncols=len(labels), frameon=False
    )
