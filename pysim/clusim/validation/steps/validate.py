"""Predictions and measurements of steps, and the rows without a prediction.

A validation is written as terminal lines, as JSON, as a section of the accuracy page, and as the file of expected step
errors.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields
from functools import partial
from hashlib import sha256
from pathlib import Path, PurePath
from typing import Annotated, Any

from typing_extensions import TypedDict

from clusim.base.errors import InputError
from clusim.base.executors import Jobs, workers
from clusim.base.files import write_text
from clusim.base.json_schema import FieldsOf
from clusim.base.version import version
from clusim.hardware.calibration import ROW_SETS
from clusim.lowering import QUICK
from clusim.training.expected import StepClass
from clusim.validation.steps.cases import framework_of
from clusim.validation.steps.predict import (
    StepPoint,
    StepScore,
    Unpredicted,
    predicted,
    step_groups,
    step_score,
)
from clusim.validation.steps.rows import StepRow

_Scored = Annotated[dict[str, Any], FieldsOf(StepScore)]


class StepGroupJson(TypedDict):
    """Common property of rows: its kind and its value."""

    by: str
    name: str


class StepPointRowJson(TypedDict):
    """A measured step and its prediction.

    Attributes
    ----------
    where : str
        File and line.
    error_pct : float
        Signed error of the prediction [%]; + is too long.
    host_wait_s : float
        Part of the prediction in which GPUs wait for the host [s].
    calibrated : list of str
        The sets of rows that calibrated parameters and contain this row.
    notes : list of str
        Assumptions, and approximations of the simulation.
    """

    id: str
    where: str
    source: str
    chip: str
    framework: str
    model: str
    n_gpus: int
    micro_batch: int | None
    measured_s: float
    predicted_s: float
    error_pct: float
    host_wait_s: float
    calibrated: list[str]
    notes: list[str]


class UnpredictedRowJson(TypedDict):
    """A row without a prediction, and why."""

    id: str
    where: str
    reason: str


class StepReportJson(TypedDict):
    """Errors of predicted steps.

    Attributes
    ----------
    overall, calibration : object
        Scores of held-out rows, and of calibration rows.
    groups : list
        Scores of held-out rows, by their common properties.
    skipped : int
        Rows omitted because fewer were requested.
    granularity : str
        Granularity of the simulated steps.
    """

    overall: _Scored
    calibration: _Scored
    groups: list[Annotated[dict[str, Any], FieldsOf(StepScore, StepGroupJson)]]
    points: list[StepPointRowJson]
    unpredicted: list[UnpredictedRowJson]
    skipped: int
    granularity: str


@dataclass(frozen=True, slots=True)
class StepReport:
    """All points, and the rows without one.

    Attributes
    ----------
    skipped : int
        Rows omitted because fewer were requested.
    granularity : str
        Granularity of the simulated steps.
    """

    points: list[StepPoint]
    unpredicted: list[Unpredicted] = field(default_factory=list)
    skipped: int = 0
    granularity: str = QUICK

    @property
    def left_out(self) -> list[StepPoint]:
        """Return the points of held-out rows."""
        return [point for point in self.points if not point.calibrated]

    @property
    def calibration(self) -> list[StepPoint]:
        """Return the points of calibration rows."""
        return [point for point in self.points if point.calibrated]

    def worst(self, count: int = 10) -> list[StepPoint]:
        """Return the points with the largest errors."""
        return sorted(self.points, key=lambda point: -abs(point.error_pct))[:count]

    def to_json(self) -> StepReportJson:
        """Return scores of held-out rows and of calibration rows, groups and every point."""
        return {
            "overall": step_score(self.left_out).to_json(),
            "calibration": step_score(self.calibration).to_json(),
            "groups": [
                {"by": by, "name": name, **step_score(own).to_json()}
                for by, name, own in step_groups(self.left_out)
            ],
            "points": [_point_json(point) for point in self.points],
            "unpredicted": [
                {"id": item.row.id, "where": item.row.where, "reason": item.reason}
                for item in self.unpredicted
            ],
            "skipped": self.skipped,
            "granularity": self.granularity,
        }


def _point_json(point: StepPoint) -> StepPointRowJson:
    row = point.row
    return {
        "id": row.id,
        "where": row.where,
        "source": row.source,
        "chip": point.chip,
        "framework": row.framework,
        "model": row.model,
        "n_gpus": row.n_gpus,
        "micro_batch": row.micro_batch or None,
        "measured_s": point.measured_s,
        "predicted_s": round(point.predicted_s, 9),
        "error_pct": round(point.error_pct, 3),
        "host_wait_s": round(point.host_s, 9),
        "calibrated": list(point.calibrated),
        "notes": list(point.notes),
    }


def validate_steps(
    rows: Sequence[StepRow],
    *,
    most: int = 0,
    jobs: Jobs = None,
    granularity: str | int = QUICK,
    tell: Callable[[StepPoint | Unpredicted, int, int], None] | None = None,
) -> StepReport:
    """Predict measured steps.

    Parameters
    ----------
    most : int
        Maximum number of rows, spread over the table; 0 is all.
    jobs : int or Executor or None
        Number of worker processes, or an executor; None is one per core, 1 works in this process.
    tell : callable or None
        Called with every row, its index and the number of rows, in their order, as soon as it and all earlier rows are
        known.
    """
    chosen = _spread(rows, most)
    work = partial(predicted, granularity=granularity)
    result: list[StepPoint | Unpredicted] = []

    def keep(made: StepPoint | Unpredicted) -> None:
        result.append(made)
        if tell is not None:
            tell(made, len(result), len(chosen))

    with workers(jobs, len(chosen)) as spread:
        for made in map(work, chosen) if spread is None else spread.each(work, chosen):
            keep(made)
    return StepReport(
        [item for item in result if isinstance(item, StepPoint)],
        [item for item in result if isinstance(item, Unpredicted)],
        len(rows) - len(chosen),
        str(granularity),
    )


def _spread(rows: Sequence[StepRow], most: int) -> list[StepRow]:
    if not most or most >= len(rows):
        return list(rows)
    return [rows[number * len(rows) // most] for number in range(most)]


LEAST = 4
"""Rows that a class must have."""


def write_step_data(report: StepReport, target: Path, measurements: Sequence[Path]) -> None:
    """Write the classes of a validation and their origin."""
    result: dict[tuple[str, str], list[StepPoint]] = {}
    for point in report.left_out:
        framework = framework_of(point.row)
        for key in ((point.chip, framework), (point.chip, ""), ("", framework)):
            result.setdefault(key, []).append(point)
    classes = []
    for key, own in sorted(result.items()):
        said = step_score(own)
        if said.n >= LEAST and said.mean_abs_pct is not None and said.bias_pct is not None:
            classes.append([*key, said.n, said.mean_abs_pct, said.bias_pct])
    if not classes:
        raise InputError("too few predicted rows for an expected error")
    about = {
        "written_by": "clusim validate --data",
        "version": version(),
        "granularity": report.granularity,
        "measurements": {path.name: sha256(path.read_bytes()).hexdigest() for path in measurements},
        "rows": len(report.points),
        "left_out": len(report.left_out),
        "columns": [item.name for item in fields(StepClass)],
    }
    rows = ",\n".join(f"    {json.dumps(row)}" for row in classes)
    text = json.dumps(about, indent=2)[:-2]
    write_text(target, f'{text},\n  "classes": [\n{rows}\n  ]\n}}\n')


HEADING = "## Steps that others published"
"""First line of the section, which extends to the end of its page."""

MEANING = (
    "error of the time of a step in %: mean and median of the absolute error; bias: mean, + is predicted too long; tau:"
    " Kendall's, of the throughput of layouts of one model on one number of GPUs; calibration rows are separate"
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
        f"Written by `{command}`, from a table of published steps, which is not part of clusim;",
        "[training.md](training.md#against-measurements) describes the columns of such a table. Errors are of the time",
        "of a step, in percent; bias is the mean of the signed errors, + is predicted too long; tau is Kendall's, of",
        "the throughput of layouts of one model on one number of GPUs. Calibration rows are scored separately; every",
        "group has held-out rows only.",
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
    parts += ["", "Assumptions, and rows without a prediction:", ""]
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
