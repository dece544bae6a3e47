"""Predictions and measurements of steps: every row, and the rows without a prediction."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

from clusim.base.executors import Jobs, workers
from clusim.lowering import QUICK
from clusim.validation.steps.predict import Unpredicted, predicted
from clusim.validation.steps.rows import StepRow
from clusim.validation.steps.scores import StepPoint, step_groups, step_score
from clusim.validation.steps.stepscorejson import StepPointRowJson, StepReportJson


@dataclass(frozen=True, slots=True)
class StepReport:
    """All points, and what has none.

    Attributes
    ----------
    skipped : int
        Rows that were not looked at, because fewer were asked for.
    granularity : str
        How finely the steps were simulated.
    """

    points: list[StepPoint]
    unpredicted: list[Unpredicted] = field(default_factory=list)
    skipped: int = 0
    granularity: str = QUICK

    @property
    def left_out(self) -> list[StepPoint]:
        """Return the points of rows that calibrated no figure."""
        return [point for point in self.points if not point.calibrated]

    @property
    def calibration(self) -> list[StepPoint]:
        """Return the points of rows that did."""
        return [point for point in self.points if point.calibrated]

    def worst(self, count: int = 10) -> list[StepPoint]:
        """Return the points that are farthest off."""
        return sorted(self.points, key=lambda point: -abs(point.error_pct))[:count]

    def to_json(self) -> StepReportJson:
        """Return scores of the rows that were left out and of those that calibrated, groups and every point."""
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
        Predict so many rows, spread over the table; 0 is all.
    jobs : int or Executor or None
        Worker processes, or whoever takes work; None is one per core, 1 works in this process.
    tell : callable or None
        Called with every row, in their order, as soon as it and those before it are known; which it is, and of how
        many.
    """
    chosen = _spread(rows, most)
    work = partial(predicted, granularity=granularity)
    found: list[StepPoint | Unpredicted] = []

    def keep(made: StepPoint | Unpredicted) -> None:
        found.append(made)
        if tell is not None:
            tell(made, len(found), len(chosen))

    with workers(jobs, len(chosen)) as spread:
        for made in map(work, chosen) if spread is None else spread.each(work, chosen):
            keep(made)
    return StepReport(
        [item for item in found if isinstance(item, StepPoint)],
        [item for item in found if isinstance(item, Unpredicted)],
        len(rows) - len(chosen),
        str(granularity),
    )


def _spread(rows: Sequence[StepRow], most: int) -> list[StepRow]:
    if not most or most >= len(rows):
        return list(rows)
    return [rows[number * len(rows) // most] for number in range(most)]
