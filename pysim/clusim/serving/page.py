"""Page of a serving run: verdict, latencies and their parts, steps, requests and cache over time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from clusim.base.units import format_time
from clusim.report.comparison import plain_page
from clusim.report.markup import (
    Content,
    Markup,
    element,
    histogram_svg,
    join_markup,
    table,
)
from clusim.report.verdictcard import AxisRow, axis
from clusim.serving.replica import StepRecord
from clusim.serving.report import run_rows
from clusim.serving.result import Serving
from clusim.serving.verdict import LatencyPart

Values = NDArray[np.float64]

COLUMNS = 240
"""Columns of a chart over time."""

SHOWN_REQUESTS = 60
"""Most requests of the chart of requests."""

WIDTH, LEFT, HIGH = 860.0, 60.0, 120.0
"""Size of charts and their margin, in units of the picture."""

KINDS = {"prompts": "exposed", "prompts and decoding": "both", "decoding": "compute"}
"""Kinds of steps, and their colours."""


def kind_of(row: StepRecord) -> str:
    """Return the kind of a step."""
    if not row.prompt_tokens:
        return "decoding"
    return "prompts and decoding" if row.decodes else "prompts"


def serving_page(result: Serving) -> str:
    """Return the page of a run."""
    sections = [
        _verdict(result),
        _latencies(result),
        _charts(result),
        element("h2", "Parts of latencies"),
        *_parts(result),
        element("h2", "Parts of steps"),
        table(
            ("part", "#share"),
            [(name, f"{share:.1%}") for name, share in result.spent.items()],
        ),
        element("h2", "Run"),
        table(
            ("", ""), [(str(name), str(words)) for name, words in run_rows(result)]
        ),
    ]
    sections += [
        element("p", f"Note: {note}", class_="hint") for note in result.notes
    ]
    title = f"{result.name} on {result.system}"
    return plain_page(title, join_markup(sections, "\n"))


def _verdict(result: Serving) -> Markup:
    first, *more = result.verdict.lines()
    return element(
        "div",
        element("h2", "Verdict"),
        element("p", first, class_="headline"),
        *(element("p", line) for line in more),
        class_="verdict",
    )


def _latencies(result: Serving) -> Markup:
    named: dict[str, Sequence[float]] = {
        "Time to first token": result.ttft_ps,
        "Time per token": [
            time_ps
            for time_ps, item in zip(result.tpot_ps, result.sequences, strict=True)
            if item.generated > 1
        ],
        "Between tokens": result.gaps_ps,
    }
    parts: list[Content] = [element("h2", "Latencies")]
    for name, values in named.items():
        if len(values):
            parts.append(element("h3", name))
            parts.append(histogram_svg(np.asarray(values, float), "latencies"))
    return element("section", *parts)


def _parts(result: Serving) -> Iterator[Markup]:
    verdict = result.verdict
    for name, parts in (
        ("Time to first token", verdict.ttft),
        ("Time per token", verdict.tpot),
    ):
        yield element("h3", name)
        yield axis([_bar(part) for part in parts], lambda value: f"{value:g} ms")


def _bar(part: LatencyPart) -> AxisRow:
    return AxisRow(
        part.name, "", part.time_ms, f"{part.time_ms:.2f} ms, {part.share:.0%}"
    )


def _charts(result: Serving) -> Markup:
    start = min(item.arrival_ps for item in result.sequences)
    edges = start + np.linspace(0, result.time_ps, COLUMNS + 1)
    legend = [
        element("span", element("b", class_=colour), f" {name}")
        for name, colour in KINDS.items()
    ]
    waits = [
        element("span", element("b", class_="exposed"), " to the first token"),
        element("span", element("b", class_="compute"), " further tokens"),
    ]
    shares = cache_shares(result, edges)
    hint = f"Up to {SHOWN_REQUESTS} requests, evenly chosen of {result.count}."
    return join_markup(
        [
            element("h2", "Steps over time"),
            element("p", *legend, class_="legend"),
            _over_time(_step_bars(result, edges), edges, "100%", "time of replicas"),
            element("h2", "Requests"),
            element("p", hint, class_="hint"),
            element("p", *waits, class_="legend"),
            _over_time(_request_bars(result, edges), edges, "", "requests"),
            element("h2", "Cache in use"),
            _over_time(
                _cache_curve(shares),
                edges,
                f"{100 * shares.max():.2g}%",
                "fullest cache",
            ),
        ]
    )


def covered_time(rows: Sequence[StepRecord], edges: Values) -> Values:
    """Return the time of steps within each column, by the integral of the number of running steps."""
    integrals = []
    for times in ([row.start_ps for row in rows], [row.end_ps for row in rows]):
        ordered = np.sort(np.array(times, float))
        before = np.searchsorted(ordered, edges)
        sums = np.concatenate(([0.0], np.cumsum(ordered)))
        integrals.append(before * edges - sums[before])
    return np.diff(integrals[0] - integrals[1])


def _step_bars(result: Serving, edges: Values) -> Iterator[Markup]:
    heights = np.zeros(COLUMNS)
    pitch = (WIDTH - LEFT) / COLUMNS
    full = result.batches * float(edges[1] - edges[0])
    for kind, colour in KINDS.items():
        rows = [row for row in result.records if kind_of(row) == kind]
        shares = covered_time(rows, edges) / full if rows else np.zeros(COLUMNS)
        for column in np.flatnonzero(shares > 1e-3).tolist():
            yield element(
                "rect",
                class_=colour,
                x=f"{LEFT + pitch * column:.2f}",
                y=f"{HIGH * (1 - heights[column] - shares[column]):.2f}",
                width=f"{pitch:.2f}",
                height=f"{HIGH * shares[column]:.2f}",
            )
        heights += shares


def _request_bars(result: Serving, edges: Values) -> Iterator[Markup]:
    count = min(SHOWN_REQUESTS, result.count)
    pitch, span = HIGH / count, float(edges[-1] - edges[0])
    for row, at in enumerate(
        np.linspace(0, result.count - 1, count).round().astype(int)
    ):
        item = result.sequences[at]
        times = item.arrival_ps, item.token_ps[0], item.token_ps[-1]
        x = [LEFT + (WIDTH - LEFT) * (time - edges[0]) / span for time in times]
        for colour, low, high in (("exposed", x[0], x[1]), ("compute", x[1], x[2])):
            yield element(
                "rect",
                class_=colour,
                x=f"{low:.2f}",
                y=f"{row * pitch:.2f}",
                width=f"{max(high - low, 0.3):.2f}",
                height=f"{0.8 * pitch:.2f}",
            )


def cache_shares(result: Serving, edges: Values) -> Values:
    """Return the fraction of the fullest cache in use in each column; idle columns keep the last one."""
    shares = np.full(COLUMNS, np.nan)
    for row in result.cache_records:
        columns = np.searchsorted(edges, (row.start_ps, row.end_ps), "right") - 1
        low, high = np.clip(columns, 0, COLUMNS - 1)
        use = row.used_blocks / result.batch_blocks
        shares[low : high + 1] = np.fmax(shares[low : high + 1], use)
    last = np.where(np.isnan(shares), 0, np.arange(COLUMNS))
    result_shares: Values = np.nan_to_num(shares[np.maximum.accumulate(last)])
    return result_shares


def _cache_curve(shares: Values) -> Iterator[Markup]:
    x = LEFT + (WIDTH - LEFT) * (np.arange(COLUMNS) + 0.5) / COLUMNS
    y = HIGH * (1 - shares / (shares.max() or 1.0))
    points = " ".join(f"{a:.1f},{b:.1f}" for a, b in zip(x, y, strict=True))
    yield element("polyline", points=points)


def _over_time(
    marks: Iterator[Markup], edges: Values, top: str, words: str
) -> Markup:
    """Return a chart over the time of the run."""
    span = round(edges[-1] - edges[0])
    labels: list[Content] = [
        element("text", words, x=0, y=-8),
        element("text", top, x=LEFT - 6, y=12, text_anchor="end"),
        element("line", x1=LEFT, x2=WIDTH, y1=HIGH, y2=HIGH),
    ]
    for part, anchor in ((0.0, "start"), (0.5, "middle"), (1.0, "end")):
        x = LEFT + part * (WIDTH - LEFT)
        time = format_time(round(part * span))
        labels.append(element("text", time, x=x, y=HIGH + 18, text_anchor=anchor))
    return element(
        "svg",
        join_markup([*marks, *labels], "\n"),
        class_="curves bar",
        viewBox=f"0 -22 {WIDTH:.0f} {HIGH + 46:.0f}",
        role="img",
        aria_label=f"{words} over {format_time(span)}",
    )
