"""Numbers of several things on one axis: a bar each, and a mark for what was measured or what else it might be."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from clusim.report.markup import Content, Markup, element, joined


@dataclass(frozen=True, slots=True)
class AxisRow:
    """A thing on the axis.

    Attributes
    ----------
    name, remark : str
        What it is, and smaller what else is to say.
    value : float or None
        Its number, of the unit of the axis; None where there is none.
    words : str
        What stands at the end of the row.
    marks : tuple of (str, float)
        Further numbers: a kind of `measured` or `held`, and the number.
    """

    name: str
    remark: str
    value: float | None
    words: str
    marks: tuple[tuple[str, float], ...] = ()


def axis(rows: Sequence[AxisRow], said: Callable[[float], str], *, log: bool = False) -> Markup:
    """Return rows of bars on an axis from 0, or of a logarithmic one from the power of ten below them.

    `said` writes a number of the axis.
    """
    known = [value for row in rows for value in _values(row)]
    if not known:
        return joined(())
    ticks = _decades(known) if log else _steps(max(known))
    low, high = (math.log10(ticks[0]), math.log10(ticks[-1])) if log else (0.0, ticks[-1])

    def place(value: float) -> float:
        own = math.log10(max(value, ticks[0])) if log else value
        return 100 * (own - low) / (high - low)

    lines = [place(tick) for tick in ticks[1:-1]]
    cells: list[Content] = []
    for row in rows:
        spots = [(kind, place(value)) for kind, value in row.marks]
        end = None if row.value is None else place(row.value)
        words = f"{row.name}: {row.words}"
        cells += [
            element("span", row.name, element("small", row.remark), class_="what", title=words),
            _bar(end, spots, lines, words),
            element("span", row.words),
        ]
    scale = element("span", *(element("i", said(tick)) for tick in ticks), class_="ticks")
    return element("div", *cells, element("span"), scale, element("span"), class_="overlap axis")


def _values(row: AxisRow) -> list[float]:
    own = [] if row.value is None else [row.value]
    return [value for value in (*own, *(value for _, value in row.marks)) if value > 0]


def _decades(values: Sequence[float]) -> list[float]:
    low, high = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)))
    return [10.0**power for power in range(low, max(high, low + 1) + 1)]


def _steps(most: float) -> list[float]:
    """Return four or five steps from 0 to a round number that is not below `most`."""
    power = 10.0 ** math.floor(math.log10(most))
    step = next(own * power for own in (0.25, 0.5, 1.0, 2.5) if 5 * own * power >= most)
    return [step * i for i in range(math.ceil(most / step - 1e-9) + 1)]


def _bar(
    end: float | None, marks: Sequence[tuple[str, float]], lines: Sequence[float], words: str
) -> Markup:
    parts = [
        element("rect", class_="tick", x=f"{x:.2f}", y=0, width="0.15", height=1) for x in lines
    ]
    if end is not None:
        parts.append(
            element("rect", class_="work", x=0, y="0.15", width=f"{end:.2f}", height="0.7")
        )
    parts += [
        element("rect", class_=kind, x=f"{max(0.0, x - 0.4):.2f}", y=0, width="0.8", height=1)
        for kind, x in marks
    ]
    return element(
        "svg",
        element("title", words),
        joined(parts),
        class_="bar",
        role="img",
        aria_label=words,
        viewBox="0 0 100 1",
        preserveAspectRatio="none",
    )
