"""Validation of training steps as terminal lines, and as a section of the accuracy page."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path, PurePath

from clusim.base.files import write_text
from clusim.hardware.calibration import ROW_SETS
from clusim.validation.steps.predict import Unpredicted
from clusim.validation.steps.scores import StepPoint, StepScore, step_groups, step_score
from clusim.validation.steps.validate import StepReport

HEADING = "## Steps that others published"
"""First line of the section, which extends to the end of its page."""

MEANING = (
    "error of the time of a step in %: mean and median of the absolute error; bias: mean, + is predicted too long; tau:"
    " Kendall's, of the throughput of plans of one model on one number of GPUs; rows that calibrated a figure are apart"
)

_WIDTH = 46


def step_lines(report: StepReport, *, worst: int = 10) -> list[str]:
    """Return scores, groups, the worst rows, assumptions and omitted rows."""
    head = f"{'':{_WIDTH}}{'n':>6}{'mean':>8}{'median':>8}{'bias':>8}{'tau':>8}"
    lines = [head, _line("held-out rows", step_score(report.left_out))]
    lines.append(_line("calibration rows", step_score(report.calibration)))
    last = ""
    for by, name, own in step_groups(report.left_out):
        if by != last:
            lines += ["", by.replace("_", " ")]
        last = by
        lines.append(_line(f"  {name}", step_score(own)))
    lines += ["", "worst rows"]
    lines += [row_line(point) for point in report.worst(worst)]
    return [*lines, "", MEANING, *_remarks(report)]


def _line(name: str, found: StepScore) -> str:
    shown = name if len(name) < _WIDTH else f"{name[: _WIDTH - 4]}..."
    if not found.n:
        return f"{shown:{_WIDTH}}{0:>6}"
    tau = f"{found.kendall_tau:>8.2f}" if found.kendall_tau is not None else f"{'':>8}"
    return (
        f"{shown:{_WIDTH}}{found.n:>6}{found.mean_abs_pct:>8.1f}{found.median_abs_pct:>8.1f}"
        f"{found.bias_pct:>+8.1f}{tau}"
    )


def row_line(point: StepPoint | Unpredicted) -> str:
    """Return the line of a row; a star marks calibration rows."""
    name = point.row.id or PurePath(point.row.where).name
    if isinstance(point, Unpredicted):
        return f"  {name:{_WIDTH}.{_WIDTH}}  not predicted: {point.reason}"
    mark = "*" if point.calibrated else " "
    return (
        f" {mark}{name:{_WIDTH}.{_WIDTH}}  measured {point.measured_s:>9.4f} s"
        f"  predicted {point.predicted_s:>9.4f} s  {point.error_pct:>+7.1f}%"
    )


def _remarks(report: StepReport) -> list[str]:
    lines = [f"simulated with --granularity {report.granularity}"]
    if report.skipped:
        lines.append(f"{report.skipped} further rows were not predicted")
    notes: dict[str, int] = {}
    for point in report.points:
        for note in point.notes:
            notes[note] = notes.get(note, 0) + 1
    lines += [f"{count} rows: {note}" for note, count in sorted(notes.items())]
    return lines + left_out_steps(report)


def left_out_steps(report: StepReport) -> list[str]:
    """Return the rows without a prediction, one line per reason."""
    reasons: dict[str, list[str]] = {}
    for item in report.unpredicted:
        where = item.row.id or PurePath(item.row.where).name
        reasons.setdefault(item.reason, []).append(where)
    return [f"{len(own)} rows failed: {why} ({own[0]})" for why, own in sorted(reasons.items())]


def write_section(report: StepReport, page: Path, command: str) -> None:
    """Write the section into a page, in place of an existing section."""
    before = page.read_text(encoding="utf-8").partition(HEADING)[0] if page.exists() else ""
    start = (
        before.rstrip("\n") + "\n\n"
        if before.strip()
        else "# How far to trust simulated training steps\n\n"
    )
    write_text(page, start + section(report, command))


def section(report: StepReport, command: str) -> str:
    """Return the section."""
    parts = [
        HEADING,
        "",
        f"Written by `{command}`, from a table of steps that others measured, which is not part of clusim;",
        "[training.md](training.md#against-measurements) says what such a table holds. Errors are those of the time of",
        "a step, in percent; bias is the mean of the signed ones, + is predicted too long; tau is Kendall's, of the",
        "throughput of plans of one model on one number of GPUs. Rows behind a figure (calibration rows) are scored",
        "apart; every group has held-out rows only.",
        "",
        "| | rows | mean | median | bias | tau |",
        "|---|---|---|---|---|---|",
        _row("**held-out rows**", report.left_out),
        _row("calibration rows", report.calibration),
    ]
    for by, name, own in step_groups(report.left_out):
        parts.append(_row(f"{by.replace('_', ' ')}: {name}", own))
    names = sorted({name for point in report.calibration for name in point.calibrated})
    parts += ["", "Calibration rows:", ""]
    parts += [f"- *{name}*: {ROW_SETS[name].text}" for name in names]
    parts += ["", "What was assumed, and what has no prediction:", ""]
    parts += [f"- {_plain(line)}" for line in _remarks(report)]
    return "\n".join(parts) + "\n"


def _row(name: str, points: Sequence[StepPoint]) -> str:
    result = step_score(points)
    if not result.n:
        return f"| {_plain(name)} | 0 | | | | |"
    tau = "" if result.kendall_tau is None else f"{result.kendall_tau:.2f}"
    return (
        f"| {_plain(name)} | {result.n} | {result.mean_abs_pct:.1f} | {result.median_abs_pct:.1f} |"
        f" {result.bias_pct:+.1f} | {tau} |"
    )


def _plain(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;")
