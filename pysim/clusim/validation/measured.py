"""Common parts of the validation of collectives and of steps: tables, predictions, errors, reports.

**Tables** are CSV files with a header. A note of each row names its cells without effect.

**Errors** are of the time, in percent; + is predicted too long. Median and mean use the absolute errors, the bias is
the mean of the signed errors. Rows used in calibration are scored separately from held-out rows.
"""

from __future__ import annotations

import json
import re
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from datetime import date
from functools import cached_property
from hashlib import sha256
from html import escape
from pathlib import Path, PurePath
from statistics import fmean, median
from typing import Any, ClassVar, Generic, Self, TypeVar

from typing_extensions import TypedDict

from clusim.base.executors import Jobs, workers
from clusim.base.files import write_text
from clusim.base.json_schema import Round3
from clusim.base.tables import group_values
from clusim.base.version import commit, version
from clusim.lowering import QUICK
from clusim.simulation.laws import FOLLOWED


def unused_cells(
    cells: Mapping[str, str], columns: Collection[str]
) -> tuple[str, ...]:
    """Return a note on the cells of columns that have no effect; `columns` are the other columns."""
    names = [
        name[:40] for name, text in cells.items() if text and name not in columns
    ]
    return (f"columns without effect: {', '.join(names)}",) if names else ()


class Prediction(ABC):
    """A measured row and its prediction.

    Attributes
    ----------
    notes : tuple of str
        Assumptions on the row, and approximations of the simulation.
    """

    row: Any
    notes: tuple[str, ...]

    @property
    @abstractmethod
    def times(self) -> tuple[float, float]:
        """Measured and predicted time, in the same unit."""

    @property
    def error_pct(self) -> Round3:
        """Return the signed error of the prediction [%]; + is too long."""
        measured, predicted = self.times
        return 100 * (predicted / measured - 1)

    @property
    def off(self) -> float:
        """Return the order of errors: the largest is the worst."""
        return abs(self.error_pct)

    @cached_property
    def calibration_sets(self) -> tuple[str, ...]:
        """The sets of rows that calibrated parameters and contain this row."""
        return tuple(self.row.row_sets)


Predicted = TypeVar("Predicted", bound=Prediction)

CAMPAIGN_ROWS = 8
"""Rows that a campaign must have to show an error."""

UNKNOWN, UNUSABLE, FAILED = "of an unknown word", "cannot be used", "failed"
"""Why rows have no prediction: a word is unknown, they have no time or size, or they could not be simulated."""


@dataclass(frozen=True, slots=True)
class Unpredicted:
    """A row without a prediction, and the reason."""

    row: Any
    reason: str
    why: str = FAILED


class UnpredictedRowJson(TypedDict):
    """A row without a prediction, and why."""

    id: str
    where: str
    reason: str


Tell = Callable[[Predicted | Unpredicted, int, int], None]
"""Called with a row that is predicted, or cannot be, its number and the number of rows."""


def predict_rows(
    rows: Sequence[Any],
    predict: Callable[[Any], Predicted | Unpredicted],
    jobs: Jobs,
    tell: Tell[Predicted] | None,
) -> list[Predicted | Unpredicted]:
    """Return the predictions of rows in their order; `tell` is called as soon as a row and all before are known."""
    result: list[Predicted | Unpredicted] = []
    with workers(jobs, len(rows)) as spread:
        for point in (
            map(predict, rows) if spread is None else spread.map_items(predict, rows)
        ):
            result.append(point)
            if tell is not None:
                tell(point, len(result), len(rows))
    return result


def spread_rows(rows: Sequence[Any], limit: int) -> list[Any]:
    """Return `limit` rows, spread evenly; 0 is all."""
    if not limit or limit >= len(rows):
        return list(rows)
    return [rows[number * len(rows) // limit] for number in range(limit)]


def rows_by_source(rows: Iterable[Any], limit: int) -> list[Any]:
    """Return at most `limit` rows of each source, spread evenly; 0 is all."""
    parts = group_values((row.source, row) for row in rows)
    return [row for part in parts.values() for row in spread_rows(part, limit)]


def errors(points: Sequence[Prediction]) -> dict[str, Any]:
    """Return number, median, mean and bias of some rows' errors, as scores name them; None without rows."""
    signed = [point.error_pct for point in points]
    sizes = [abs(error) for error in signed]
    return {
        "n": len(points),
        "median_abs_pct": round(median(sizes), 2) if sizes else None,
        "mean_abs_pct": round(fmean(sizes), 2) if sizes else None,
        "bias_pct": round(fmean(signed), 2) if sizes else None,
    }


def by(
    points: Iterable[Predicted], key: Callable[[Predicted], str]
) -> dict[str, list[Predicted]]:
    """Return the points by key, sorted by its value."""
    return dict(
        sorted(group_values((key(point), point) for point in points).items())
    )


@dataclass(frozen=True)
class Report(ABC, Generic[Predicted]):
    """All points, and the rows without one.

    Attributes
    ----------
    skipped : int
        Rows omitted because fewer were requested.
    granularity : str
        Granularity of the simulation.
    class_form : type
        Errors of a campaign: its words, and some of `errors`.
    """

    class_form: ClassVar[type]
    points: list[Predicted]
    unpredicted: list[Unpredicted] = field(default_factory=list)
    skipped: int = 0
    granularity: str = QUICK

    @classmethod
    def of(cls, predictions: Sequence[Predicted | Unpredicted], *more: Any) -> Self:
        """Return a report of rows with and without a prediction; `more` are further fields."""
        points = [item for item in predictions if not isinstance(item, Unpredicted)]
        return cls(
            points,
            [item for item in predictions if isinstance(item, Unpredicted)],
            *more,
        )

    @property
    @abstractmethod
    def independent(self) -> list[Predicted]:
        """Return the points of sources that calibrated no parameter of their system."""

    @property
    def calibration(self) -> list[Predicted]:
        """Return the points of calibration rows."""
        return [point for point in self.points if point.calibration_sets]

    def worst(self, count: int = 10) -> list[Predicted]:
        """Return the points with the largest errors."""
        return sorted(self.points, key=lambda point: point.off, reverse=True)[:count]

    def remarks(self, *, paths: bool = True) -> list[str]:
        """Return remarks on the rows: approximations, assumptions, and rows without a prediction.

        Parameters
        ----------
        paths : bool
            Name files with their directories.
        """
        lines = [
            f"simulated with --granularity {self.granularity}",
            *self.further_lines(),
        ]
        if self.skipped:
            lines.append(f"{self.skipped} further rows were not predicted")
        notes = Counter(
            _alike(note) for point in self.points for note in point.notes
        )
        lines += [f"{count} rows: {note}" for note, count in sorted(notes.items())]
        return lines + self.left_out_lines(paths=paths)

    def further_lines(self) -> list[str]:
        """Return the remarks of this kind of rows."""
        return []

    def left_out_lines(self, *, paths: bool = True) -> list[str]:
        """Return the rows without a prediction, one line per reason; `paths` as in `remarks`."""
        lines = []
        for why in (UNKNOWN, UNUSABLE, FAILED):
            reasons = group_values(
                (item.reason, item.row)
                for item in self.unpredicted
                if item.why == why
            )
            lines += [
                f"{len(rows)} rows {why}: {reason} ({name_row(rows[0], paths)})"
                for reason, rows in reasons.items()
            ]
        return lines

    def unpredicted_json(self) -> list[UnpredictedRowJson]:
        """Return the rows without a prediction, and why."""
        return [
            {"id": item.row.id, "where": item.row.where, "reason": item.reason}
            for item in self.unpredicted
        ]

    @abstractmethod
    def to_json(self) -> dict[str, Any]:
        """Return scores, every point and the rows without one."""

    @abstractmethod
    def classes_of(self, point: Predicted) -> Iterable[tuple[str, ...]]:
        """Return the words of the campaigns of a row."""

    def facts(self) -> dict[str, Any]:
        """Return further facts on the rows for `write_data`."""
        return {}

    def campaigns(self) -> list[list[Any]]:
        """Return the errors of every campaign with at least `CAMPAIGN_ROWS`, as fields of `class_form`."""
        names = [item.name for item in fields(self.class_form)]
        rows = group_values(
            (key, point)
            for point in self.independent
            for key in self.classes_of(point)
        )
        return [
            [
                *key,
                *(figure for name, figure in errors(some).items() if name in names),
            ]
            for key, some in sorted(rows.items())
            if len(some) >= CAMPAIGN_ROWS
        ]

    def write_data(self, target: Path, measurements: Sequence[Path]) -> None:
        """Write the errors of campaigns and their origin, which `clusim.simulation.expected` reads.

        Parameters
        ----------
        measurements : sequence of Path
            The files with the predicted rows.
        """
        rows = ",\n".join(f"    {json.dumps(row)}" for row in self.campaigns())
        about = {
            "written_by": "clusim validate --errors",
            "version": version(),
            **made_at(),
            "granularity": self.granularity,
            "measurements": {
                path.name: sha256(path.read_bytes()).hexdigest()
                for path in measurements
            },
            "rows": len(self.points),
            "independent": len(self.independent),
            **self.facts(),
            "columns": [item.name for item in fields(self.class_form)],
        }
        text = json.dumps(about, indent=2)[:-2]
        write_text(target, f'{text},\n  "campaigns": [\n{rows}\n  ]\n}}\n')


def made_at() -> dict[str, str]:
    """Return date and commit of results."""
    return {"date": date.today().isoformat(), "commit": commit()}


def _alike(note: str) -> str:
    """Return a note without its size-dependent part."""
    if note.startswith("bursts of"):
        return "in bursts of packets"
    return note.partition(",")[0] if note.startswith(FOLLOWED) else note


def name_row(row: Any, paths: bool) -> str:
    """Return the name of a row: its identifier, or its file and line."""
    name: str = row.id or (row.where if paths else PurePath(row.where).name)
    return name


def plain(text: str) -> str:
    """Return text escaped for Markdown: names in external tables may contain markup."""
    return re.sub(
        r"([\\`\[\]|])", r"\\\1", escape(" ".join(text.split()), quote=False)
    )
