"""A validation as text."""

from __future__ import annotations

import re
from html import escape
from pathlib import Path
from typing import Any
from urllib.parse import quote

from clusim.errors import InputError
from clusim.files import write_text
from clusim.nccltests.measurements import CurveGroup
from clusim.nccltests.validate import REGIMES, Point, Report, statistics
from clusim.units import format_size

__all__ = ["page_lines", "report_lines", "write_page"]

BEGIN, END = "<!-- figures: begin -->", "<!-- figures: end -->"
"""Marks of a page between which the figures are written."""

_TITLES = {"small": "< 1 MiB", "mid": "1 MiB to < 64 MiB", "large": ">= 64 MiB"}


def report_lines(report: Report, *, worst: int = 10) -> list[str]:
    """Return the errors of all groups, the overall ones and the worst rows."""
    head = "  ".join(f"{_TITLES[name]:>26}" for name in REGIMES)
    lines = [
        f"{'':58}{head}",
        f"{'group':54}{'n':>4}" + f"{'n':>5}{'median':>7}{'mean':>8}{'bias':>8}" * 3,
    ]
    for group, points in report.by_group().items():
        lines.append(f"{_title(group):54}{len(points):>4}{_figures(statistics(points))}")
    lines.append("")
    single = [point for point in report.points if point.row.group.n_nodes == 1]
    multi = [point for point in report.points if point.row.group.n_nodes > 1]
    for name, points in (
        ("one machine", single),
        ("several machines", multi),
        ("all", report.points),
    ):
        if points:
            lines.append(f"{name:54}{len(points):>4}{_figures(statistics(points))}")
    lines += ["", "worst rows"]
    for point in report.worst(worst):
        lines.append(_worst(point))
    return [*lines, *_remarks(report)]


def _remarks(report: Report) -> list[str]:
    lines = [""]
    lines.append(
        "error of the time in %, median and mean of the absolute error; bias: median, + is predicted too long"
    )
    if report.thinned:
        lines.append(f"{report.thinned} further rows not predicted (--per-group)")
    notes: dict[str, int] = {}
    for point in report.points:
        for note in point.notes:
            notes[note] = notes.get(note, 0) + 1
    lines += [f"{count} rows: {note}" for note, count in sorted(notes.items())]
    for title, rows in (("cannot be used", report.unusable), ("failed", report.failed)):
        reasons: dict[str, list[str]] = {}
        for row, reason in rows:
            reasons.setdefault(reason, []).append(row.where)
        for reason, where in reasons.items():
            lines.append(f"{len(where)} rows {title}: {reason} ({where[0]})")
    return lines


def _title(group: CurveGroup) -> str:
    return f"{group.system} {group.title}"[:53]


def _figures(found: dict[str, dict[str, Any]]) -> str:
    cells = []
    for name in REGIMES:
        own = found[name]
        if own["n"]:
            cells.append(
                f"{own['n']:>5}{own['median_abs_pct']:>7.1f}{own['mean_abs_pct']:>8.1f}{own['bias_pct']:>+8.1f}"
            )
        else:
            cells.append(f"{'-':>5}{'':>23}")
    return "".join(cells)


def _worst(point: Point) -> str:
    return (
        f"  {_title(point.row.group):53} {format_size(point.row.size_bytes):>9}"
        f"  measured {point.row.time_us:>11,.1f} us  predicted {point.predicted_us:>11,.1f} us"
        f"  {point.error_pct:>+8.1f}%  {point.algorithm} {point.protocol}"
    )


def page_lines(report: Report) -> list[str]:
    """Return the errors as tables of Markdown."""
    single = [point for point in report.points if point.row.group.n_nodes == 1]
    multi = [point for point in report.points if point.row.group.n_nodes > 1]
    head = ["| | rows | < 1 MiB | bias | 1 to 64 MiB | bias | >= 64 MiB | bias |", "|---" * 8 + "|"]
    lines = [*head]
    for name, points in (("one machine", single), ("several machines", multi)):
        if points:
            lines.append(_page_row(name, points))
    lines += ["", *head]
    systems = dict.fromkeys(point.row.group.system for point in report.points)
    for system in systems:
        own = [point for point in report.points if point.row.group.system == system]
        lines.append(_page_row(system, own))
    lines += ["", *head]
    for group, points in report.by_group().items():
        lines.append(_page_row(_title(group), points))
    return [*lines, *(f"{_plain(line)}  " if line else "" for line in _remarks(report))]


def _plain(text: str) -> str:
    """Return text that Markdown shows as it is: names come from tables that others wrote."""
    return re.sub(r"([\\`\[\]|])", r"\\\1", escape(" ".join(text.split()), quote=False))


def _page_row(name: str, points: list[Point]) -> str:
    cells = [_plain(name), str(len(points))]
    for own in statistics(points).values():
        if own["n"]:
            cells += [f"{own['median_abs_pct']:.1f}", f"{own['bias_pct']:+.1f}"]
        else:
            cells += ["", ""]
    return f"| {' | '.join(cells)} |"


def write_page(report: Report, page: Path, plot: Path | None = None) -> None:
    """Write the tables into a page, between its marks; a page without them gets them at its end."""
    try:
        text = page.read_text(encoding="utf-8") if page.is_file() else "# Accuracy\n"
    except UnicodeDecodeError:
        raise InputError(f"{page}: not UTF-8 text; give a page of Markdown") from None
    if BEGIN not in text or END not in text:
        text = f"{text.rstrip()}\n\n{BEGIN}\n{END}\n"
    before, _, rest = text.partition(BEGIN)
    after = rest.partition(END)[2]
    lines = page_lines(report)
    if plot is not None and plot.parent.resolve() == page.parent.resolve():
        lines += ["", f"![measured and predicted times]({quote(plot.name)})"]
    middle = "\n".join(lines)
    write_text(page, f"{before}{BEGIN}\n\n{middle}\n\n{END}{after}")
