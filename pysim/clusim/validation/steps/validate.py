"""Predictions and measurements of steps, and the rows without a prediction.

JSON form of predictions of measured steps (`clusim.validation.steps.validate`).

Writer of the file of expected step errors, from a validation.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Annotated, Any

from typing_extensions import TypedDict

from clusim.base.errors import InputError
from clusim.base.executors import Jobs, workers
from clusim.base.files import write_text
from clusim.base.json_schema import FieldsOf
from clusim.base.version import version
from clusim.lowering import QUICK
from clusim.training.expected import StepClass
from clusim.validation.steps.cases import framework_of
from clusim.validation.steps.predict import Unpredicted, predicted
from clusim.validation.steps.rows import StepRow
from clusim.validation.steps.scores import StepPoint, StepScore, step_groups, step_score

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
        raise InputError("too few rows were predicted to say what error to expect")
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
