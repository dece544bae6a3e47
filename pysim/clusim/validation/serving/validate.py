"""Predictions and measurements of serving runs, and the rows without a prediction."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from typing_extensions import TypedDict

from clusim.base.errors import ClusimError
from clusim.base.executors import Jobs
from clusim.base.json_schema import JsonObject, Round3
from clusim.base.tables import group_values, text_table
from clusim.serving.api import load_model
from clusim.serving.expected import ServingCampaign
from clusim.validation.measured import (
    Prediction,
    Report,
    Tell,
    Unpredicted,
    UnpredictedRowJson,
    errors,
    name_row,
    predict_rows,
    spread_rows,
)
from clusim.validation.serving.rows import ServingRow

LEAST_ROWS = 3
"""Rows of a group that is shown."""

BY = ("engine", "hardware", "model", "precision", "tensor")
"""Properties of rows by which errors are grouped."""


@dataclass(frozen=True)
class ServingPoint(Prediction, JsonObject):
    """A measured run and its prediction.

    Attributes
    ----------
    id, where : str
        Name of the row; file and line.
    tpot_ms, predicted_tpot_ms, ttft_ms, predicted_ttft_ms : float
        Mean times per output token and to the first token, measured and predicted [ms].
    error_pct : float
        Signed error of the time per output token [%].
    """

    KEYS = (
        *(
            "id=row.id",
            "where=row.where",
            "tpot_ms=row.tpot_ms",
            "predicted_tpot_ms",
        ),
        *("ttft_ms=row.ttft_ms", "predicted_ttft_ms", "error_pct", "notes"),
    )

    row: ServingRow
    predicted_tpot_ms: Round3
    predicted_ttft_ms: Round3
    notes: tuple[str, ...] = ()
    chip: str = ""

    @property
    def times(self) -> tuple[float, float]:
        """Measured and predicted time per output token [ms]."""
        return self.row.tpot_ms, self.predicted_tpot_ms

    @property
    def ttft_error_pct(self) -> float | None:
        """Signed error of the time to the first token [%]; None if it was not measured."""
        if not self.row.ttft_ms:
            return None
        return 100 * (self.predicted_ttft_ms / self.row.ttft_ms - 1)

    @property
    def calibration_sets(self) -> tuple[str, ...]:
        """No row calibrated a figure."""
        return ()


class ServingScore(TypedDict):
    """Errors of rows with a common property; None without rows.

    Attributes
    ----------
    by, name : str
        The property and its value.
    n, median_abs_pct, mean_abs_pct, bias_pct : number
        Rows, and errors of the time per output token [%].
    ttft_median_abs_pct : float
        Median error of the time to the first token [%].
    """

    by: str
    name: str
    n: int
    median_abs_pct: float | None
    mean_abs_pct: float | None
    bias_pct: float | None
    ttft_median_abs_pct: float | None


class ServingReportJson(TypedDict):
    """Errors of predicted serving runs.

    Attributes
    ----------
    scores : list
        Errors of all rows, then of groups.
    skipped : int
        Rows omitted because fewer were requested.
    """

    scores: list[ServingScore]
    points: list[ServingPoint]
    unpredicted: list[UnpredictedRowJson]
    skipped: int


@dataclass(frozen=True)
class ServingReport(Report[ServingPoint]):
    """All points, and the rows without one."""

    class_form = ServingCampaign

    @property
    def independent(self) -> list[ServingPoint]:
        """Return all points: no row calibrated a figure."""
        return self.points

    def classes_of(self, point: ServingPoint) -> list[tuple[str, ...]]:
        """Return engine and chip of a row."""
        return [(point.row.engine, point.chip)]

    def to_json(self) -> dict[str, Any]:
        """Return scores, every point and the rows without one."""
        return {
            "scores": [*self.scores()],
            "points": [point.to_json() for point in self.points],
            "unpredicted": self.unpredicted_json(),
            "skipped": self.skipped,
        }

    def scores(self) -> Iterator[ServingScore]:
        """Yield the errors of all rows, then of groups by property."""
        yield serving_score("all", "rows", self.points)
        for word in BY:
            groups = group_values(
                (str(getattr(point.row, word)), point) for point in self.points
            )
            for name, points in sorted(groups.items()):
                if len(points) >= LEAST_ROWS and len(groups) > 1:
                    yield serving_score(word, name, points)


def serving_score(
    by: str, name: str, points: Sequence[ServingPoint]
) -> ServingScore:
    """Return the errors of some rows."""
    first = sorted(
        abs(error) for point in points if (error := point.ttft_error_pct) is not None
    )
    result: ServingScore = {
        "by": by,
        "name": name,
        **errors(points),  # type: ignore[typeddict-item]
        "ttft_median_abs_pct": round(first[len(first) // 2], 2) if first else None,
    }
    return result


def predict_row(row: ServingRow) -> ServingPoint | Unpredicted:
    """Return measurement and prediction of a row."""
    if not row.tpot_ms:
        return Unpredicted(row, "no time per output token", "cannot be used")
    try:
        model = load_model(row.spec())
        result = model.run()
    except ClusimError as error:
        return Unpredicted(row, str(error))
    notes = (*row.assumptions(), *result.notes)
    times_ms = result.tpot.mean * 1e3, result.ttft.mean * 1e3
    return ServingPoint(row, *times_ms, notes, model.endpoint.chip)


def validate_serving(
    rows: Sequence[ServingRow],
    *,
    limit: int = 0,
    jobs: Jobs = None,
    tell: Tell[ServingPoint] | None = None,
    granularity: str = "quick",
) -> ServingReport:
    """Predict measured serving runs.

    Parameters
    ----------
    limit : int
        Maximum number of rows, spread over the table; 0 is all.
    jobs : int or Executor or None
        Number of worker processes, or an executor; None is one per core, 1 works in this process.
    tell : callable or None
        Called with every row in their order, as soon as it and all earlier rows are known.
    granularity : str
        Granularity of collectives; only ``quick``.
    """
    chosen = spread_rows(rows, limit)
    result = predict_rows(chosen, predict_row, jobs, tell)
    return ServingReport.of(result, len(rows) - len(chosen), granularity)


def serving_line(point: ServingPoint | Unpredicted) -> str:
    """Return the line of a row."""
    name = name_row(point.row, paths=False)[-44:]
    if isinstance(point, Unpredicted):
        return f"  {name:44}  not predicted: {point.reason}"
    return (
        f"  {name:44}  TPOT {point.row.tpot_ms:>7.2f} ms, predicted {point.predicted_tpot_ms:>7.2f}"
        f" ({point.error_pct:>+.1f}%), TTFT {point.row.ttft_ms:.1f} and {point.predicted_ttft_ms:.1f} ms"
    )


def serving_lines(report: ServingReport) -> list[str]:
    """Return scores, groups, and the rows without a prediction."""
    rows: list[Sequence[Any]] = [("", "n", "median", "mean", "bias", "TTFT median")]
    for score in report.scores():
        ttft = score["ttft_median_abs_pct"]
        rows.append(
            (
                f"{score['by']} {score['name']}",
                str(score["n"]),
                f"{score['median_abs_pct']:.1f}",
                f"{score['mean_abs_pct']:.1f}",
                f"{score['bias_pct']:+.1f}",
                "" if ttft is None else f"{ttft:.1f}",
            )
        )
    lines = text_table("{:<..}  {:>..}  {:>..}  {:>..}  {:>..}  {:>..}", rows)
    meaning = "error of the time per output token, and to the first token, in %; bias: + is predicted too long"
    return [*lines, "", meaning, *report.remarks()]
