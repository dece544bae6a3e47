"""Bottleneck card at the top of a report, and bar charts on a common axis.

The card contains the bottleneck, its phases as a bar, and remedies. Axis charts show one bar per row,
with marks for measured or alternative values.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from clusim.report.markup import Content, Markup, element, join_markup
from clusim.results.cause_kinds import CauseKind
from clusim.results.causes import Phase
from clusim.results.diagnosis import Verdict


@dataclass(frozen=True, slots=True)
class AxisRow:
    """Row of an axis chart.

    Attributes
    ----------
    name, remark : str
        Label, and a remark in smaller type.
    value : float or None
        Value in the unit of the axis; None if unknown.
    words : str
        Text at the end of the row.
    marks : tuple of (str, float)
        Further values: a kind (`measured` or `held`) and the value.
    """

    name: str
    remark: str
    value: float | None
    words: str
    marks: tuple[tuple[str, float], ...] = ()


def axis(
    rows: Sequence[AxisRow], label_of: Callable[[float], str], *, log: bool = False
) -> Markup:
    """Return rows of bars on an axis from 0.

    A logarithmic axis starts at the power of ten below the values. `label_of` formats a number of the axis.
    """
    bar_values = [value for row in rows for value in _values(row)]
    if not bar_values:
        return join_markup(())
    ticks = _decades(bar_values) if log else _steps(max(bar_values))
    low, high = (
        (math.log10(ticks[0]), math.log10(ticks[-1])) if log else (0.0, ticks[-1])
    )

    def place(value: float) -> float:
        position = math.log10(max(value, ticks[0])) if log else value
        return 100 * (position - low) / (high - low)

    lines = [place(tick) for tick in ticks[1:-1]]
    cells: list[Content] = []
    for row in rows:
        spots = [(kind, place(value)) for kind, value in row.marks]
        end = None if row.value is None else place(row.value)
        words = f"{row.name}: {row.words}"
        cells += [
            element(
                "span",
                row.name,
                element("small", row.remark),
                class_="what",
                title=words,
            ),
            _bar(end, spots, lines, words),
            element("span", row.words),
        ]
    scale = element(
        "span", *(element("i", label_of(tick)) for tick in ticks), class_="ticks"
    )
    return element(
        "div", *cells, element("span"), scale, element("span"), class_="overlap axis"
    )


def _values(row: AxisRow) -> list[float]:
    values = [] if row.value is None else [row.value]
    return [
        value for value in (*values, *(value for _, value in row.marks)) if value > 0
    ]


def _decades(values: Sequence[float]) -> list[float]:
    low, high = (
        math.floor(math.log10(min(values))),
        math.ceil(math.log10(max(values))),
    )
    return [10.0**power for power in range(low, max(high, low + 1) + 1)]


def _steps(largest: float) -> list[float]:
    """Return four or five steps from 0 to a round number that is not below `largest`."""
    power = 10.0 ** math.floor(math.log10(largest))
    step = next(
        factor * power
        for factor in (0.25, 0.5, 1.0, 2.5)
        if 5 * factor * power >= largest
    )
    return [step * i for i in range(math.ceil(largest / step - 1e-9) + 1)]


def _bar(
    end: float | None,
    marks: Sequence[tuple[str, float]],
    lines: Sequence[float],
    words: str,
) -> Markup:
    parts = [
        element("rect", class_="tick", x=f"{x:.2f}", y=0, width="0.15", height=1)
        for x in lines
    ]
    if end is not None:
        parts.append(
            element(
                "rect",
                class_="work",
                x=0,
                y="0.15",
                width=f"{end:.2f}",
                height="0.7",
            )
        )
    parts += [
        element(
            "rect",
            class_=kind,
            x=f"{max(0.0, x - 0.4):.2f}",
            y=0,
            width="0.8",
            height=1,
        )
        for kind, x in marks
    ]
    return _svg(parts, words, "bar")


_LOST = {
    CauseKind.STRAGGLER,
    CauseKind.FAULT,
    CauseKind.CONTENTION,
    CauseKind.CREDIT,
    CauseKind.SLOTS,
    CauseKind.EXPOSED,
    CauseKind.HOST,
    CauseKind.BUBBLE,
    CauseKind.IDLE,
}
"""Causes of phases without useful work."""


def verdict_card(verdict: Verdict) -> Markup:
    """Return the card of a bottleneck verdict."""
    first, *details = verdict.lines()
    phases = {f"phase {phase.words()}" for phase in verdict.main_phases}
    content: list[Content] = [
        element("h2", "Bottleneck"),
        element("p", first, class_="headline"),
    ]
    if verdict.main_phases:
        content.append(_phases(verdict))
    content += [_cause_line(line) for line in details if line not in phases]
    return element("div", *content, class_="verdict")


def _cause_line(line: str) -> Markup:
    head, colon, text = line.partition(": ")
    return element("p", element("b", f"{head}{colon}"), text)


def _phases(verdict: Verdict) -> Markup:
    total = max(1, verdict.time_ps)
    parts = [
        (_look(phase), (phase.end_ps - phase.start_ps) / total)
        for phase in verdict.main_phases
    ]
    words = [phase.words() for phase in verdict.main_phases]
    rows = (
        element("li", element("i", class_=_look(phase)), text)
        for phase, text in zip(verdict.main_phases, words, strict=True)
    )
    return join_markup(
        [strip(parts, "; ".join(words)), element("ol", *rows, class_="phases")]
    )


def _look(phase: Phase) -> str:
    """Return the class that colours a phase."""
    if phase.kind in _LOST:
        return "stall"
    if phase.kind is CauseKind.COMPUTE:
        return "compute"
    return "work" if phase.name == "bandwidth" else "cost"


def strip(
    parts: Sequence[tuple[str, float]], words: str, kind: str = "bar"
) -> Markup:
    """Return fractions of 1 as one bar, coloured by class; `words` are the text equivalent."""
    pieces, start = [], 0.0
    for name, part in parts:
        piece = element(
            "rect",
            class_=name,
            x=f"{100 * start:.2f}",
            y=0,
            width=f"{100 * part:.2f}",
            height=1,
        )
        pieces.append(piece)
        start += part
    return _svg(pieces, words, kind)


def _svg(parts: Sequence[Markup], words: str, kind: str) -> Markup:
    return element(
        "svg",
        element("title", words),
        *parts,
        class_=kind,
        role="img",
        aria_label=words,
        viewBox="0 0 100 1",
        preserveAspectRatio="none",
    )
