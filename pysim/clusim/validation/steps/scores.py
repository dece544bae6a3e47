"""Errors of predicted steps in percent, and rank correlation of layouts of one model."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations
from statistics import fmean, median
from typing import Any

from clusim.validation.steps.rows import StepRow


@dataclass(frozen=True)
class StepPoint:
    """A measured step and its prediction.

    Attributes
    ----------
    measured_s, predicted_s : float
        Time of a step [s].
    host_s : float
        Part of the prediction in which GPUs wait for the host, mean over ranks [s].
    chip : str
        The simulated GPU.
    notes : tuple of str
        Assumptions on the row, and approximations of the simulation.
    """

    row: StepRow
    measured_s: float
    predicted_s: float
    host_s: float = 0.0
    chip: str = ""
    notes: tuple[str, ...] = ()

    @property
    def error_pct(self) -> float:
        """Return the signed error of the prediction [%]; + is too long."""
        return 100 * (self.predicted_s / self.measured_s - 1)

    @property
    def calibrated(self) -> tuple[str, ...]:
        """The sets of rows that calibrated parameters and contain this row."""
        return self.row.row_sets

    @property
    def plans_of(self) -> tuple[object, ...]:
        """Key of rows with alternative layouts: system, model, sequence and number of GPUs."""
        row = self.row
        return (
            *(row.source, row.hardware, row.n_gpus, row.model, row.layers, row.hidden, row.seq),
            row.precision,
        )

    @property
    def samples(self) -> int:
        """Samples of a step."""
        return self.row.global_batch


@dataclass(frozen=True, slots=True)
class StepScore:
    """Errors of predictions in percent; None without rows.

    Attributes
    ----------
    n : int
        Rows.
    mean_abs_pct, median_abs_pct, bias_pct : float or None
        Mean and median of the absolute errors, and mean of the signed errors; + is predicted too long.
    kendall_tau : float or None
        For the throughput of layouts of one model on one number of GPUs: pairs in the right order minus pairs in the
        wrong order, over all pairs.
    """

    n: int
    mean_abs_pct: float | None
    median_abs_pct: float | None
    bias_pct: float | None
    kendall_tau: float | None

    def to_json(self) -> dict[str, Any]:
        """Return the scores by attribute name."""
        return {name: getattr(self, name) for name in self.__slots__}


def kendall_tau(points: Sequence[StepPoint]) -> float | None:
    """Return the rank correlation of measured and predicted throughput; None without pairs.

    Only rows with equal `plans_of` are compared.

    Pairs with equal measurements do not count; pairs with equal predictions contribute 0.
    """
    alike: dict[tuple[object, ...], list[StepPoint]] = {}
    for point in points:
        alike.setdefault(point.plans_of, []).append(point)
    right = pairs = 0
    for own in alike.values():
        for one, two in combinations(own, 2):
            was = one.samples / one.measured_s - two.samples / two.measured_s
            now = one.samples / one.predicted_s - two.samples / two.predicted_s
            if was:
                pairs += 1
                right += (was * now > 0) - (was * now < 0)
    return round(right / pairs, 4) if pairs else None


def step_score(points: Sequence[StepPoint]) -> StepScore:
    """Return the errors of some rows' predictions."""
    errors = [point.error_pct for point in points]
    sizes = [abs(error) for error in errors]
    return StepScore(
        len(points),
        round(fmean(sizes), 2) if sizes else None,
        round(median(sizes), 2) if sizes else None,
        round(fmean(errors), 2) if sizes else None,
        kendall_tau(points),
    )


def _place(point: StepPoint) -> str:
    row = point.row
    if row.n_nodes <= 1 and row.n_gpus <= 8:
        return "one node"
    return "to 64 GPUs" if row.n_gpus < 64 else "64 to 512 GPUs" if row.n_gpus <= 512 else "more"


def _parallelism(point: StepPoint) -> str:
    row = point.row
    sizes = {"tensor": row.tensor, "pipeline": row.pipeline, "context": row.context}
    sizes |= {"expert": row.expert, "data": row.data}
    return " + ".join(name for name, size in sizes.items() if size > 1) or "one GPU"


def _family(word: str) -> str:
    """Return the name of a framework without its version."""
    return word.partition("(")[0].partition(",")[0].strip() or "not given"


GROUPS: dict[str, Callable[[StepPoint], str]] = {
    "place": _place,
    "chip": lambda point: point.chip,
    "framework": lambda point: _family(point.row.framework),
    "micro_batch": lambda point: str(point.row.micro_batch or "not given"),
    "parallelism": _parallelism,
    "source": lambda point: point.row.source,
}
"""Groups of rows -> a row's value in each."""


def step_groups(points: Iterable[StepPoint]) -> list[tuple[str, str, list[StepPoint]]]:
    """Return the points by every word of `GROUPS`: (by, name, points)."""
    own = list(points)
    result: list[tuple[str, str, list[StepPoint]]] = []
    for by, key in GROUPS.items():
        names: dict[str, list[StepPoint]] = {}
        for point in own:
            names.setdefault(key(point), []).append(point)
        result += [(by, name, names[name]) for name in sorted(names)]
    return result
