"""Figures for papers and slides by matplotlib: heatmap, timeline, overlap, topology, flows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from clusim.base.arrays import Array
from clusim.base.display import Plot, picture_format
from clusim.base.errors import InputError, suggest
from clusim.report.flowcurves import NAMED_FLOWS, Band, FlowCurves, most_shown
from clusim.report.histories import FULL, MEASURES, history
from clusim.report.lanes import window
from clusim.report.page_data import Feed
from clusim.report.plot_style import (
    Look,
    colour_map,
    colour_scale,
    styled_figure,
    time_axis,
)
from clusim.results.result import Result

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SCREEN_IN = 7.0
"""Width of a figure in a notebook [inch]."""

COLOURS = {
    "compute": "#3b7dbd",
    "communication": "#d9822b",
    "pause": "#9aa1ad",
    "marker": "#1b1f27",
}
SHARES = {
    "computation only": "#3b7dbd",
    "both": "#62bf9f",
    "exposed communication": "#cc4a26",
    "neither": "#e3e6eb",
}

PALEST = 30
"""Minimum shade of a thin line with traffic, of `FULL`; it keeps it darker than an idle one."""

SHOWN_RANKS = 32
"""Maximum number of overlap bars: the ranks with the most exposed communication."""

SHOWN_LANES = 48

LETTER = 19.6
"""Largest letters of boxes, in units of the picture."""

LEAST_SECTION = 0.1
"""Height of a heatmap for each class of wires, in widths of the figure: two lines of letters."""


def save_figure(
    feed: Feed, name: str, target: Path, look: Look | None = None
) -> None:
    """Draw one of `FIGURES` into a file; its extension selects the format."""
    look = look or Look()
    picture_format(target)
    with styled_figure(look) as figure:
        _draw(figure, feed, name, look)
        Plot(figure).save(target, look.dpi)


def plot_result(result: Result, figure: str = "", **look: Any) -> Figure:
    """Draw a result in memory: ``heatmap`` (the default) or ``topology``.

    Further options are those of `Look`. Other figures need the tasks of a trace: `plot_trace`.
    """
    return _plot_figure(Feed.of(result), figure or "heatmap", **look)


def plot_trace(path: str | Path, figure: str, **look: Any) -> Plot:
    """Draw one of `FIGURES` of a trace, as ``clusim plot`` does; `look` as of `Look`.

    Raises
    ------
    InputError
        A figure or measure is unknown or missing in this trace.
    TraceError
        The trace cannot be read.
    """
    return Plot(_plot_figure(Feed.open(path, findings=False), figure, **look))


def _plot_figure(feed: Feed, figure: str, **look: Any) -> Figure:
    """Return a figure for notebooks."""
    if figure not in FIGURES:
        raise InputError(f"figure {figure!r}: unknown{suggest(figure, FIGURES)}")
    unknown = [name for name in look if name not in ("width_in", "measure")]
    if unknown:
        raise InputError(
            f"plot: no option {unknown[0]!r}; there are width_in, measure"
        )
    settings = Look(**{"width_in": SCREEN_IN, **look})
    with styled_figure(settings) as canvas:
        _draw(canvas, feed, figure, settings)
    return canvas


def _draw(figure: Figure, feed: Feed, name: str, look: Look) -> None:
    """Draw one of `FIGURES`."""
    if look.measure not in MEASURES:
        raise InputError(
            f"measure {look.measure!r}: unknown; use one of {', '.join(MEASURES)}"
        )
    FIGURES[name](figure, feed, look.measure, look.width_in)


def _heatmap(figure: Any, feed: Feed, measure: str, width_in: float) -> None:
    result = history(feed.result.bins, feed.rows, columns=512)
    if not result.values:
        raise InputError("heatmap: no history in the trace; the run was too short")
    axes = figure.add_subplot()
    scale = time_axis(axes, feed.result.time_ps)
    rows, classes = len(feed.rows), feed.rows.classes
    bounds = [0, *(i for i in range(1, rows) if classes[i] != classes[i - 1]), rows]
    places = _places(bounds)
    figure.set_size_inches(
        width_in, width_in * max(0.66, 0.2 + LEAST_SECTION * len(bounds))
    )
    # Columns and rows differ in size, which an image cannot show.
    image = axes.pcolormesh(
        result.edge_ps / scale,
        places,
        result.values.get(measure, result.values["load"]),
        cmap=colour_map(),
        vmin=0,
        vmax=FULL,
        rasterized=True,
        linewidth=0,
    )
    axes.set_ylim(places[-1], 0)
    for bound in bounds[1:-1]:
        axes.axhline(places[bound], color="#5a6270", linewidth=0.4)
    middles = [(places[a] + places[b]) / 2 for a, b in pairwise(bounds)]
    labels = [_two_lines(classes[bound]) for bound in bounds[:-1]]
    axes.set_yticks(middles, labels=labels, fontsize="small", linespacing=1.05)
    axes.tick_params(axis="y", length=0)
    colour_scale(figure, image, axes, measure, result.queue_max_bytes)


def _places(bounds: list[int]) -> Array:
    """Return the edges of rows, such that a class of few rows has room for its name."""
    counts = np.diff(bounds)
    smallest_height = counts.sum() / max(8, 2 * len(counts))
    return np.append(
        0, np.cumsum(np.repeat(np.maximum(counts, smallest_height) / counts, counts))
    )


def _two_lines(wire_class: str) -> str:
    words, _, ends = wire_class.rpartition(" ")
    return f"{words}\n{ends.replace('->', ' → ')}"


def _timeline(figure: Any, feed: Feed, _measure: str, width_in: float) -> None:
    lanes = feed.lanes
    if not lanes.ranks:
        raise InputError(
            "timeline: no tasks of ranks in the trace; it is synthetic traffic"
        )
    num_lanes = min(len(lanes.ranks), SHOWN_LANES)
    figure.set_size_inches(
        width_in, max(0.3 * width_in, width_in * (0.18 + 0.028 * num_lanes))
    )
    axes = figure.add_subplot()
    scale = time_axis(axes, feed.result.time_ps)
    bars = window(lanes, 0, feed.result.time_ps, 1600)
    for number, (kind, colour) in enumerate(COLOURS.items()):
        mine = (bars.kind == number) & (bars.lane < num_lanes)
        if not mine.any():
            continue
        axes.barh(
            bars.lane[mine],
            np.maximum(bars.end_ps - bars.start_ps, feed.result.time_ps / 2000)[mine]
            / scale,
            left=bars.start_ps[mine] / scale,
            height=0.78,
            color=colour,
            linewidth=0,
            label={"compute": "computation"}.get(kind, kind),
        )
    _lane_names(axes, lanes.ranks[:num_lanes], lanes.streams[:num_lanes])
    axes.set_ylim(num_lanes - 0.4, -0.6)
    if num_lanes < len(lanes.ranks):
        axes.set_title(f"first {num_lanes} of {len(lanes.ranks)} lanes", loc="left")
    _legend(figure, axes)


def _lane_names(axes: Any, ranks: list[int], streams: list[str]) -> None:
    """Name every rank once, and streams if a rank has several."""
    several = len(ranks) > len(set(ranks))
    axes.set_yticks(
        range(len(ranks)),
        labels=[
            f"rank {rank}  {stream}"
            if several and (i == 0 or ranks[i - 1] != rank)
            else stream
            if several
            else f"rank {rank}"
            for i, (rank, stream) in enumerate(zip(ranks, streams, strict=True))
        ],
        fontsize="small" if len(ranks) > 16 else None,
    )
    axes.tick_params(axis="y", length=0)
    for i in range(1, len(ranks)):
        if several and ranks[i] != ranks[i - 1]:
            axes.axhline(i - 0.5, color="#d9dde4", linewidth=0.4, zorder=0)


def _legend(figure: Any, axes: Any) -> None:
    handles, labels = axes.get_legend_handles_labels()
    figure.legend(
        handles, labels, loc="outside upper right", ncols=len(labels), frameon=False,
        handlelength=0.9, handleheight=0.9, columnspacing=1.2, handletextpad=0.5,
    )  # fmt: skip


def _overlap(figure: Any, feed: Feed, _measure: str, width_in: float) -> None:
    shares, time_ps = feed.shares, max(1, feed.result.time_ps)
    if not len(shares.ranks):
        raise InputError(
            "overlap: no tasks of ranks in the trace; it is synthetic traffic"
        )
    order = list(range(len(shares.ranks)))
    if len(order) > SHOWN_RANKS:
        order = sorted(
            np.argsort(-shares.exposed, kind="stable")[:SHOWN_RANKS].tolist()
        )
    figure.set_size_inches(width_in, width_in * (0.2 + 0.042 * len(order)))
    axes = figure.add_subplot()
    parts = (shares.compute, shares.both, shares.exposed, shares.idle)
    named = zip(SHARES.items(), parts, strict=True)
    bars = [
        (name, 100 * part[order] / time_ps, colour) for (name, colour), part in named
    ]
    stack(axes, [f"rank {shares.ranks[i]}" for i in order], bars)
    axes.set_xlabel("part of the run [%]")
    handles, labels = axes.get_legend_handles_labels()
    figure.legend(
        handles, labels, loc="outside upper center", ncols=4, frameon=False, fontsize="small",
        handlelength=0.9, handleheight=0.9, columnspacing=0.9, handletextpad=0.4,
    )  # fmt: skip


def stack(
    axes: Any, labels: Sequence[str], bars: Iterable[tuple[str, Array, str]]
) -> None:
    """Draw stacked bars: the name, the values for all `labels` [%], and the colour of each part."""
    offsets = np.zeros(len(labels))
    for name, values, colour in bars:
        axes.barh(
            range(len(labels)),
            values,
            left=offsets,
            color=colour,
            height=0.74,
            label=name,
        )
        offsets = offsets + values
    axes.set_yticks(range(len(labels)), labels=labels)
    axes.tick_params(axis="y", length=0)
    axes.set_ylim(len(labels) - 0.4, -0.6)
    axes.set_xlim(0, 100)


def _topology(figure: Any, feed: Feed, measure: str, width_in: float) -> None:
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import Normalize

    from clusim.base.drawing.paint import Ink, paint

    picture = feed.picture
    if not len(picture.lines):
        raise InputError("topology: no wires in the trace")
    figure.set_size_inches(
        width_in, width_in * (picture.height / picture.width * 0.88 + 0.02)
    )
    axes = figure.add_subplot()
    axes.set_aspect("equal")
    values, longest_queue = _line_values(feed, measure)
    palette_values = np.where(values > 0, np.maximum(values, PALEST), -1)
    colours = ScalarMappable(
        Normalize(0, FULL), colour_map().with_extremes(under="#d9dde4")
    )
    ink = Ink(
        list(colours.to_rgba(palette_values)),
        {"endpoint": "#eef1f5"},
        width_in / picture.width,
        LETTER,
    )
    paint(axes, picture, picture.line_widths(feed.result.wires.rate_Bps), ink)
    colour_scale(figure, colours, axes, measure, longest_queue)


def _line_values(feed: Feed, measure: str) -> tuple[Array, int]:
    """Return the measure of every line over the run (`FULL` is 1) and the longest queue [bytes]."""
    counters, lines = feed.result.wires.counters, feed.picture.lines
    time_ps = max(1, feed.result.time_ps)
    if measure == "queue":
        longest_queue = int(counters["queued_max"].max(initial=0))
        return FULL * lines.largest(counters["queued_max"]) / max(
            1, longest_queue
        ), longest_queue
    name = {"credit": "stall_credit_ps", "contended": "stall_arbitration_ps"}.get(
        measure, "busy_ps"
    )
    merge = lines.largest if measure == "peak" else lines.mean
    return FULL * np.asarray(merge(counters[name] / time_ps)), 0


FLOW_COLOURS = (
    "#3b7dbd",
    "#cc4a26",
    "#62bf9f",
    "#8a6fb3",
    "#d9a82b",
    "#1b1f27",
    "#9aa1ad",
    "#a82a55",
)
"""Colours of flows with a name, and of queues."""

BAND_LABEL = "median of the flows, 10% to 90%"


def _flows(figure: Any, feed: Feed, _measure: str, width_in: float) -> None:
    curves = FlowCurves.of(feed.result)
    if curves is None:
        raise InputError(
            "flows: no flow with rate control in the trace; NICs with DCQCN or a policy have them"
        )
    panels = [_flow_heatmap, _flow_band]
    if len(curves.names) <= NAMED_FLOWS:
        panels = [_flow_lines]
    panels.append(_flow_queues)
    if curves.has_round_trips:
        panels.append(_flow_trips)
    heights = [1.5 if panel is _flow_heatmap else 1.0 for panel in panels]
    figure.set_size_inches(width_in, width_in * (0.14 + 0.19 * sum(heights)))
    rows = figure.subplots(
        len(panels), 1, sharex=True, height_ratios=heights, squeeze=False
    )
    scale = time_axis(rows[-1][0], feed.result.time_ps)
    for (axes,), panel in zip(rows, panels, strict=True):
        axes.spines[["top", "right"]].set_visible(False)
        panel(figure, axes, curves, scale)
        if axes.get_autoscaley_on():
            axes.set_ylim(bottom=0)


def _flow_lines(_figure: Any, axes: Any, curves: FlowCurves, scale: float) -> None:
    for name, rates, colour in zip(
        curves.names, curves.rate_GBps, FLOW_COLOURS, strict=False
    ):
        axes.plot(
            curves.middle_ps / scale, rates, color=colour, linewidth=0.9, label=name
        )
    axes.set_ylabel("rate [GB/s]")
    _named_curves(axes)


def _flow_heatmap(figure: Any, axes: Any, curves: FlowCurves, scale: float) -> None:
    from matplotlib.colors import PowerNorm

    rows = np.arange(len(curves.names) + 1)
    image = axes.pcolormesh(
        curves.edge_ps / scale,
        rows,
        curves.rate_GBps,
        cmap=colour_map(),
        # A flow that begins at the line rate must not hide the differences afterwards.
        norm=PowerNorm(0.5, 0),
        rasterized=True,
        linewidth=0,
    )
    axes.set_ylabel(f"{len(curves.names)} flows")
    axes.set_yticks([])
    axes.set_ylim(len(curves.names), 0)
    bar = figure.colorbar(
        image, ax=axes, location="top", pad=0.02, fraction=0.07, aspect=60
    )
    bar.outline.set_linewidth(0.3)
    bar.set_label("rate of each flow [GB/s]")


def _flow_band(_figure: Any, axes: Any, curves: FlowCurves, scale: float) -> None:
    band = Band.of(curves.active_GBps)
    time = curves.middle_ps / scale
    axes.fill_between(
        time, band.low, band.high, color=FLOW_COLOURS[0], alpha=0.25, linewidth=0
    )
    axes.plot(
        time, band.median, color=FLOW_COLOURS[0], linewidth=1, label=BAND_LABEL
    )
    axes.set_ylim(0, most_shown(band))
    axes.set_ylabel("rate [GB/s]")
    _named_curves(axes)


def _flow_queues(_figure: Any, axes: Any, curves: FlowCurves, scale: float) -> None:
    time = curves.middle_ps / scale
    longest_queue = max(
        (float(queue.max()) for queue in curves.queues.values()), default=0.0
    )
    unit, factor = "KiB", 1 << 10
    if longest_queue >= 1 << 20:
        unit, factor = "MiB", 1 << 20
    for (name, queue), colour in zip(
        curves.queues.items(), FLOW_COLOURS, strict=False
    ):
        axes.plot(time, queue / factor, color=colour, linewidth=0.9, label=name)
    axes.set_ylabel(f"queue [{unit}]")
    _named_curves(axes)
    if curves.marked.any():
        share = axes.twinx()
        share.fill_between(
            time, 100 * curves.marked, color="#9aa1ad", alpha=0.3, linewidth=0
        )
        share.set_ylim(0, 100)
        share.set_ylabel("marked [%]")
        share.spines["top"].set_visible(False)
        axes.set_zorder(share.get_zorder() + 1)
        axes.patch.set_visible(False)


def _flow_trips(_figure: Any, axes: Any, curves: FlowCurves, scale: float) -> None:
    band = Band.of(curves.rtt_us)
    time = curves.middle_ps / scale
    axes.fill_between(
        time, band.low, band.high, color=FLOW_COLOURS[3], alpha=0.25, linewidth=0
    )
    axes.plot(
        time, band.median, color=FLOW_COLOURS[3], linewidth=1, label=BAND_LABEL
    )
    axes.set_ylabel("round trip [us]")
    _named_curves(axes)


def _named_curves(axes: Any) -> None:
    if axes.get_legend_handles_labels()[0]:
        axes.legend(
            loc="best",
            frameon=False,
            fontsize="small",
            handlelength=1.2,
            labelspacing=0.3,
        )


FIGURES: dict[str, Callable[[Any, Feed, str, float], None]] = {
    "heatmap": _heatmap,
    "timeline": _timeline,
    "overlap": _overlap,
    "topology": _topology,
    "flows": _flows,
}
"""Figures by name."""
