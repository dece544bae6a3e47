"""A validation as text."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import PurePath

from clusim.base.terms.regimes import REGIME_TITLES, REGIMES
from clusim.base.units import format_size
from clusim.simulation.extrapolate_bytes import FOLLOWED
from clusim.validation.collectives.breakdown import ClassLine, ClassTable, class_tables
from clusim.validation.collectives.measurements import CurveGroup, Row
from clusim.validation.collectives.scores import Point, Score, score, statistics
from clusim.validation.collectives.validate import Report

MEANING = (
    "error of the time in %: median and mean of the absolute error; bias: mean, + is predicted too long; spread: mean"
    " in which errors within the spread of repetitions are 0 and rows weigh 100 / (100 + spread); followed: rows whose"
    " time was followed along a line from other runs"
)
"""Meaning of the columns."""

WIDTH = 60


def report_lines(report: Report, *, worst: int = 10) -> list[str]:
    """Return the errors by classes of rows, of all groups, and the worst rows."""
    lines: list[str] = []
    for table in class_tables(report.points):
        lines += [*_table(table), ""]
    groups = [ClassLine(group_title(group), own) for group, own in report.by_group().items()]
    lines += _table(ClassTable("Groups", "All rows; * has calibration rows.", groups))
    lines += ["", "worst rows"]
    lines += [_worst(point) for point in report.worst(worst)]
    return [*lines, "", MEANING, *remarks(report)]


def _table(table: ClassTable) -> list[str]:
    regimes = "".join(f"{REGIME_TITLES[name]:>34}" for name in REGIMES)
    columns = f"{'n':>6}{'median':>7}{'mean':>7}{'bias':>7}{'spread':>7}"
    head = [
        f"{table.title + (': ' + table.text if table.text else '')}",
        f"{'':{WIDTH + 6}}{regimes}",
        f"{'':{WIDTH}}{'n':>6}{columns * len(REGIMES)}{'followed':>10}",
    ]
    return [*head, *map(_line, table.lines)]


def _line(line: ClassLine) -> str:
    scores = "".join(_figures(found) for found in statistics(line.points).values())
    whole = score(line.points)
    name = line.name if len(line.name) < WIDTH else f"{line.name[: WIDTH - 4]}..."
    share = f"{whole.followed / whole.n:>10.0%}" if whole.n else ""
    remark = f"  {line.remark}" if line.remark else ""
    return f"{name:{WIDTH}}{whole.n:>6}{scores}{share}{remark}"


def _figures(found: Score) -> str:
    if not found.n:
        return f"{'-':>6}{'':>28}"
    return (
        f"{found.n:>6}{found.median_abs_pct:>7.1f}{found.mean_abs_pct:>7.1f}{found.bias_pct:>+7.1f}"
        f"{found.by_spread_pct:>7.1f}"
    )


def group_title(group: CurveGroup) -> str:
    """Return a short name of a group."""
    return f"{group.system} {group.title}"


def _worst(point: Point) -> str:
    mark = "*" if point.row_sets else " "
    return (
        f" {mark}{group_title(point.row.group):{WIDTH}} {format_size(point.row.size_bytes):>9}"
        f"  measured {point.row.time_us:>11,.1f} us  predicted {point.predicted_us:>11,.1f} us"
        f"  {point.error_pct:>+8.1f}%  {point.way}"
    )


def remarks(report: Report, *, paths: bool = True) -> list[str]:
    """Return what must be said of the rows: how they were simulated, what was assumed, what could not be predicted.

    Parameters
    ----------
    paths : bool
        Name files with their directories.
    """
    lines = [f"simulated with --granularity {report.granularity}"]
    known = [point for point in report.points if point.row.spread_pct > 0]
    if known:
        met = sum(point.met for point in known)
        lines.append(f"{met} of {len(known)} rows with a known spread are within it")
    if report.thinned:
        lines.append(f"{report.thinned} further rows were not predicted")
    notes: dict[str, int] = {}
    for point in report.points:
        for note in point.notes:
            text = _alike(note)
            notes[text] = notes.get(text, 0) + 1
    lines += [f"{count} rows: {note}" for note, count in sorted(notes.items())]
    return lines + left_out_lines(report, paths=paths)


def left_out_lines(report: Report, *, paths: bool = True) -> list[str]:
    """Return why rows could not be predicted, a line for each reason; `paths` as in `remarks`."""
    lines: list[str] = []
    for title, rows in (
        ("of an unknown word", report.unknown),
        ("cannot be used", report.unusable),
        ("failed", report.failed),
    ):
        lines += _reasons(title, [(_where(row, paths), reason) for row, reason in rows])
    return lines


def _alike(note: str) -> str:
    """Return a note without what differs from size to size."""
    if note.startswith("bursts of"):
        return "in bursts of packets"
    return note.partition(",")[0] if note.startswith(FOLLOWED) else note


def _where(row: Row, paths: bool) -> str:
    return row.where if paths else PurePath(row.where).name


def _reasons(title: str, rows: Sequence[tuple[str, str]]) -> list[str]:
    reasons: dict[str, list[str]] = {}
    for where, reason in rows:
        reasons.setdefault(reason, []).append(where)
    return [f"{len(at)} rows {title}: {reason} ({at[0]})" for reason, at in reasons.items()]
