"""Predictions and measurements of steps, and the rows without a prediction.

A validation is written as terminal lines, as JSON, as a section of the accuracy page, and as the file of expected step
errors.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from typing_extensions import TypedDict

from clusim.base.executors import Jobs
from clusim.base.files import write_text
from clusim.base.json_schema import JsonObject
from clusim.base.tables import text_table
from clusim.hardware import FRAMEWORKS, GPUS
from clusim.hardware.calibration import ROW_SETS
from clusim.lowering.grain import STEP
from clusim.training.expected import StepCampaign
from clusim.validation.measured import (
    Report,
    Tell,
    Unpredicted,
    UnpredictedRowJson,
    made_at,
    name_row,
    plain,
    predict_rows,
    spread_rows,
)
from clusim.validation.steps.cases import framework_of
from clusim.validation.steps.predict import (
    StepPoint,
    StepScore,
    predict_row,
    step_groups,
    step_score,
)
from clusim.validation.steps.row_machines import AS_SAID
from clusim.validation.steps.rows import StepRow


@dataclass(frozen=True)
class StepGroup(JsonObject):
    """Errors of predictions in percent; None without rows.

    The rows have a common property: its kind and its value.
    """

    KEYS = ("by", "name", "*score")

    by: str
    name: str
    score: StepScore


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
        Granularity of the estimates.
    """

    overall: StepScore
    calibration: StepScore
    groups: list[StepGroup]
    points: list[StepPoint]
    unpredicted: list[UnpredictedRowJson]
    skipped: int
    granularity: str


@dataclass(frozen=True)
class StepReport(Report[StepPoint]):
    """All points, and the rows without one; granularity is of the estimates."""

    class_form = StepCampaign

    @property
    def held_out(self) -> list[StepPoint]:
        """Return the points of held-out rows."""
        return [point for point in self.points if not point.calibration_sets]

    @property
    def independent(self) -> list[StepPoint]:
        """Return the points of sources that calibrated no parameter of their GPU and framework."""
        return [point for point in self.held_out if not _source_calibrated(point)]

    def to_json(self) -> dict[str, Any]:
        """Return scores of held-out rows and of calibration rows, groups and every point."""
        return {
            "overall": step_score(self.held_out).to_json(),
            "calibration": step_score(self.calibration).to_json(),
            "groups": [
                StepGroup(word, name, step_score(group_points)).to_json()
                for word, name, group_points in step_groups(self.held_out)
            ],
            "points": [point.to_json() for point in self.points],
            "unpredicted": self.unpredicted_json(),
            "skipped": self.skipped,
            "granularity": self.granularity,
        }

    def left_out_lines(self, *, paths: bool = False) -> list[str]:
        """Return the rows without a prediction by reason, in alphabetical order, without directories."""
        lines = super().left_out_lines(paths=False)
        return sorted(lines, key=lambda line: line.partition(": ")[2])

    def classes_of(self, point: StepPoint) -> list[tuple[str, ...]]:
        """Return the words of the campaign of a row: its GPU, framework and source."""
        return [(_chip(point), framework_of(point.row), point.row.source)]


def _chip(point: StepPoint) -> str:
    """Return the GPU of a row, also for a variant with a figure from the row."""
    return point.chip.removesuffix(AS_SAID)


def _source_calibrated(point: StepPoint) -> bool:
    """Return True if a parameter of the row's GPU or framework was calibrated on its source."""
    gpu, framework = GPUS.get(_chip(point)), FRAMEWORKS.get(framework_of(point.row))
    figures = [*gpu.all_figures(), *gpu.architecture.all_figures()] if gpu else []
    figures += framework.all_figures() if framework else []
    sets = {name for figure in figures for name in figure.rows}
    return any(ROW_SETS[name].has_source(point.row.columns) for name in sets)


def validate_steps(
    rows: Sequence[StepRow],
    *,
    limit: int = 0,
    jobs: Jobs = None,
    granularity: str | int = STEP,
    tell: Tell[StepPoint] | None = None,
) -> StepReport:
    """Predict measured steps.

    Parameters
    ----------
    limit : int
        Maximum number of rows, spread over the table; 0 is all.
    jobs : int or Executor or None
        Number of worker processes, or an executor; None is one per core, 1 works in this process.
    tell : callable or None
        Called with every row in their order, as soon as it and all earlier rows are known.
    """
    chosen = spread_rows(rows, limit)
    work = partial(predict_row, granularity=granularity)
    result = predict_rows(chosen, work, jobs, tell)
    return StepReport.of(result, len(rows) - len(chosen), str(granularity))


HEADING = "## Steps that others published"
"""First line of the section, which extends to the end of its page."""

MEANING = (
    "error of the time of a step in %: mean and median of the absolute error; bias: mean, + is predicted too long; tau:"
    " Kendall's, of the throughput of layouts of one model on one number of GPUs; calibration rows are separate"
)

_WIDTH = 46

_LINE = "{:<46}{:>6}{:>8.1f}{:>8.1f}{:>+8.1f}{:>8.2f}"

_ROW = "| {} | {} | {:.1f} | {:.1f} | {:+.1f} | {:.2f} |{}"


def step_lines(report: StepReport) -> list[str]:
    """Return scores, groups, the worst rows, assumptions and omitted rows."""
    lines = text_table(_LINE, [("", "n", "mean", "median", "bias", "tau")])
    lines.append(_line("held-out rows", report.held_out))
    lines.append(_line("calibration rows", report.calibration))
    last = ""
    for word, name, group_points in step_groups(report.held_out):
        if word != last:
            lines += ["", word.replace("_", " ")]
        last = word
        lines.append(_line(f"  {name}", group_points))
    lines += ["", "worst rows"]
    lines += [row_line(point) for point in report.worst(10)]
    return [*lines, "", MEANING, *report.remarks()]


def _line(name: str, points: Sequence[StepPoint]) -> str:
    excerpt = name if len(name) < _WIDTH else f"{name[: _WIDTH - 4]}..."
    return text_table(_LINE, [_cells(excerpt, points)], strip=not points)[0]


def _cells(name: str, points: Sequence[StepPoint]) -> list[Any]:
    """Return the name and the score of rows; unknown errors are empty."""
    score = astuple(step_score(points))
    return [name, *("" if value is None else value for value in score)]


def row_line(point: StepPoint | Unpredicted) -> str:
    """Return the line of a row; a star marks calibration rows."""
    name = name_row(point.row, paths=False)
    if isinstance(point, Unpredicted):
        return f"  {name:{_WIDTH}.{_WIDTH}}  not predicted: {point.reason}"
    mark = "*" if point.calibration_sets else " "
    return (
        f" {mark}{name:{_WIDTH}.{_WIDTH}}  measured {point.measured_s:>9.4f} s"
        f"  predicted {point.predicted_s:>9.4f} s  {point.error_pct:>+7.1f}%"
    )


def write_section(report: StepReport, page: Path, command: str) -> None:
    """Write the section into a page, in place of an existing section."""
    before = (
        page.read_text(encoding="utf-8").partition(HEADING)[0]
        if page.exists()
        else ""
    )
    start = (
        before.rstrip("\n") + "\n\n"
        if before.strip()
        else "# How far to trust simulated training steps\n\n"
    )
    write_text(page, start + section(report, command))


def section(report: StepReport, command: str) -> str:
    """Return the section."""
    date = made_at()
    parts = [
        HEADING,
        "",
        f"Last written on {date['date']}, at commit {date['commit']}, by `{command}`,",
        "from a table of published steps, which is not part of clusim;",
        "[training.md](training.md#against-measurements) describes the columns of such a table. Errors are of the time",
        "of a step, in percent; bias is the mean of the signed errors, + is predicted too long; tau is Kendall's, of",
        "the throughput of layouts of one model on one number of GPUs. Calibration rows are scored separately; every",
        "group has held-out rows only.",
        "",
        "| | rows | mean | median | bias | tau |",
        "|---|---|---|---|---|---|",
    ]
    groups = [
        ("**held-out rows**", report.held_out),
        ("calibration rows", report.calibration),
    ]
    for word, name, group_points in step_groups(report.held_out):
        groups.append((f"{word.replace('_', ' ')}: {name}", group_points))
    parts += text_table(
        _ROW,
        [[*_cells(plain(name), group_points), ""] for name, group_points in groups],
    )
    names = sorted(
        {name for point in report.calibration for name in point.calibration_sets}
    )
    parts += ["", "Calibration rows:", ""]
    parts += [f"- *{name}*: {ROW_SETS[name].text}" for name in names]
    parts += ["", "Assumptions, and rows without a prediction:", ""]
    parts += [f"- {plain(line)}" for line in report.remarks()]
    return "\n".join(parts) + "\n"
