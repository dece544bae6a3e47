"""Flows with rate control over time: payload rates, queues of the fullest wires, marks and round trips.

Curves have columns of several bins, so that a flow sends many packets in each.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from clusim.base.arrays import Array
from clusim.base.records import dataclass
from clusim.base.units import format_rate, format_size, format_time
from clusim.report.markup import Markup, element, join_markup
from clusim.results.result import Result

COLUMN_BYTES = 1 << 16
"""Payload that the median flow sends in a column."""

LEAST_COLUMNS, MOST_COLUMNS = 32, 160

SHOWN_QUEUES = 3
"""Number of wires with a curve of their queue, the longest queues first."""

NAMED_FLOWS = 8
"""Flows up to which each has a colour and a name."""

DRAWN_FLOWS = 64
"""Most flows of a page with a line each."""


class Band(NamedTuple):
    """Median of the flows in each column, and the range of all but the lowest and highest tenth."""

    low: Array
    median: Array
    high: Array

    @classmethod
    def of(cls, values: Array) -> Band:
        """Return the band of a table, shape (flows, columns); unknown values are not counted."""
        any_value = ~np.isnan(values).all(axis=0)
        rows = np.zeros((3, values.shape[1]))
        rows[:, any_value] = np.nanpercentile(
            values[:, any_value], (10, 50, 90), axis=0
        )
        return cls(*rows)


@dataclass(frozen=True, slots=True)
class FlowCurves:
    """Curves of the flows that sent payload, by receiver and sender.

    Attributes
    ----------
    edge_ps : ndarray, shape (columns + 1,)
        Where columns start and end [ps].
    names : list of str
        Flows.
    rate_GBps : ndarray, shape (flows, columns)
        Payload rates [10^9 bytes/s].
    queues : dict of ndarray
        Longest queue in each column of the wires with the longest queues [bytes].
    marked : ndarray, shape (columns,)
        Part of the payload that was delivered with a mark.
    rtt_us : ndarray, shape (flows, columns)
        Round trips [us]; not a number without one.
    """

    edge_ps: Array
    names: list[str]
    rate_GBps: Array
    queues: dict[str, Array]
    marked: Array
    rtt_us: Array

    @classmethod
    def of(cls, result: Result) -> FlowCurves | None:
        """Return the curves of a run; None if no flow with rate control sent payload."""
        bins = result.bins
        if not bins.flows:
            return None
        sent = bins.flows.tables["sent"].sum(axis=1)
        used = np.flatnonzero(sent)
        if not len(used):
            return None
        source = bins.flows.source[used]
        destination = bins.flows.destination[used]
        order = np.lexsort((source, destination))
        flows = bins.flows.part(used[order])
        columns = int(np.median(sent[used])) // COLUMN_BYTES
        columns = int(np.clip(columns, LEAST_COLUMNS, MOST_COLUMNS))
        count = len(bins.edge_ps) - 1
        step = -(-count // columns)
        starts = np.arange(0, count, step)
        last = np.append(starts[1:], count) - 1
        edges = np.append(bins.edge_ps[starts], bins.edge_ps[count])
        width_ps = np.diff(edges)
        tables = flows.tables
        payload = np.add.reduceat(tables["sent"], starts, axis=1)
        marked = np.add.reduceat(tables["marked"], starts, axis=1)
        rtt_ps = tables["rtt"][:, last]
        rtt_us = rtt_ps / 1e6
        rtt_us[(rtt_ps < 0) | (payload == 0)] = np.nan
        queue = np.maximum.reduceat(bins.wires["queue"], starts, axis=1)
        top = np.argsort(-queue.max(axis=1), kind="stable")[:SHOWN_QUEUES]
        queues = {
            result.wires.names[row]: queue[row] for row in top if queue[row].any()
        }
        return cls(
            edge_ps=edges,
            names=flows.names,
            rate_GBps=payload * 1e3 / width_ps,
            queues=queues,
            marked=marked.sum(axis=0) / np.maximum(1, payload.sum(axis=0)),
            rtt_us=rtt_us,
        )

    @property
    def active_GBps(self) -> Array:
        """Payload rates; not a number before the first and after the last payload of a flow."""
        moving = self.rate_GBps > 0
        begun = np.logical_or.accumulate(moving, axis=1)
        unfinished = np.logical_or.accumulate(moving[:, ::-1], axis=1)[:, ::-1]
        return np.where(begun & unfinished, self.rate_GBps, np.nan)

    @property
    def middle_ps(self) -> Array:
        """Middles of the columns [ps]."""
        return np.asarray((self.edge_ps[1:] + self.edge_ps[:-1]) / 2)

    @property
    def has_round_trips(self) -> bool:
        """True if a policy read notices."""
        return not bool(np.isnan(self.rtt_us).all())


# ---- page

_WIDTH, _LEFT, _HIGH, _GAP = 720.0, 72.0, 120.0, 34.0
_LETTER = 5.9
"""Mean width of a letter."""

_KINDS = ("first", "second", "third")


class _Panel:
    """One chart of a page over the time of the run: curves of a quantity from 0 to `top_value`."""

    def __init__(self, curves: FlowCurves, top: float, top_value: float) -> None:
        self._top, self._most = top, top_value or 1.0
        span = _WIDTH - _LEFT - 8
        self._x = _LEFT + span * curves.middle_ps / max(1, int(curves.edge_ps[-1]))

    def _points(self, values: Array) -> list[str]:
        heights = _HIGH * np.minimum(1.0, values / self._most)
        places = self._top + _HIGH - heights
        pairs = zip(self._x.tolist(), places.tolist(), strict=True)
        return [f"{x:.0f},{y:.1f}" for x, y in pairs]

    def line(self, kind: str, values: Array, title: str) -> Markup:
        """Return a curve; values that are not numbers are omitted."""
        points = self._points(np.nan_to_num(values))
        points = [points[column] for column in np.flatnonzero(~np.isnan(values))]
        return element(
            "polyline", element("title", title), class_=kind, points=" ".join(points)
        )

    def band(self, band: Band) -> Markup:
        """Return the range of a band, and its median."""
        outline = self._points(band.high)
        outline += reversed(self._points(band.low))
        area = element("polygon", class_="range", points=" ".join(outline))
        return join_markup([area, self.line("median", band.median, "median")])

    def frame(self, label: str, top_label: str) -> Markup:
        """Return the axis of a quantity, with its label."""
        base = self._top + _HIGH
        axis = element(
            "line", x1=_LEFT, x2=_WIDTH - 8, y1=f"{base:.0f}", y2=f"{base:.0f}"
        )
        title = element("text", label, x=_LEFT, y=f"{self._top - 8:.0f}")
        label_x = f"{_LEFT - 6:.0f}"
        high = element(
            "text", top_label, x=label_x, y=f"{self._top + 8:.0f}", text_anchor="end"
        )
        low = element("text", "0", x=label_x, y=f"{base:.0f}", text_anchor="end")
        return join_markup([axis, title, high, low])


FIRST_COLUMNS = 96
"""Percentile of a band of rates that its axis shows: flows begin at the line rate."""

QUEUES_LABEL = "longest queues: "


def most_shown(band: Band) -> float:
    """Return the end of the axis of a band of rates."""
    return 1.15 * float(np.percentile(band.high, FIRST_COLUMNS)) or 1.0


def flows_svg(curves: FlowCurves) -> Markup:
    """Return the charts of a page: rates of flows, queues below them, then round trips."""
    parts: list[Markup] = []
    top = 24.0
    for draw in (_rates, _queues, _trips):
        panel = list(draw(curves, top))
        parts += panel
        if panel:
            top += _HIGH + _GAP
    height = top + 4
    end = int(curves.edge_ps[-1])
    span = _WIDTH - _LEFT - 8
    for part, anchor in ((0.0, "start"), (0.5, "middle"), (1.0, "end")):
        label = element(
            "text",
            format_time(round(part * end)),
            x=f"{_LEFT + part * span:.0f}",
            y=f"{height - 16:.0f}",
            text_anchor=anchor,
        )
        parts.append(label)
    return element(
        "svg",
        join_markup(parts, "\n"),
        class_="curves",
        viewBox=f"0 0 {_WIDTH:.0f} {height:.0f}",
        role="img",
        aria_label=f"Payload rates of {len(curves.names)} flows, and queues, over {format_time(end)}",
    )


def _rates(curves: FlowCurves, top: float) -> Iterator[Markup]:
    rates = curves.rate_GBps
    band = Band.of(curves.active_GBps)
    top_GBps = most_shown(band)
    panel = _Panel(curves, top, top_GBps)
    step = -(-len(rates) // DRAWN_FLOWS)
    for row in range(0, len(rates), step):
        yield panel.line("flow", rates[row], curves.names[row])
    if len(rates) > 1:
        yield panel.band(band)
    yield panel.frame(
        "payload rate of each flow; median, and 80% of the flows",
        format_rate(top_GBps * 1e9),
    )


def _queues(curves: FlowCurves, top: float) -> Iterator[Markup]:
    if not curves.queues:
        return
    longest_bytes = max(float(queue.max()) for queue in curves.queues.values())
    panel = _Panel(curves, top, longest_bytes)
    x = _LEFT + _LETTER * len(QUEUES_LABEL)
    for kind, (name, queue) in zip(_KINDS, curves.queues.items(), strict=False):
        yield panel.line(kind, queue, name)
        yield element("text", name, class_=kind, x=f"{x:.0f}", y=f"{top - 8:.0f}")
        x += _LETTER * (len(name) + 3)
    yield panel.frame(QUEUES_LABEL, format_size(int(longest_bytes)))


def _trips(curves: FlowCurves, top: float) -> Iterator[Markup]:
    if not curves.has_round_trips:
        return
    band = Band.of(curves.rtt_us)
    longest_us = float(band.high.max())
    panel = _Panel(curves, top, longest_us)
    yield panel.band(band)
    yield panel.frame(
        "round trip: median, and 80% of the flows",
        format_time(round(longest_us * 1e6)),
    )
