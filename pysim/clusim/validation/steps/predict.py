"""Predicted step of a measured row.

**Model** The estimate of the complete step, as of ``clusim train --estimate``.

A time given as TFLOP/s per GPU requires the operations of a step as the source of the row counts them. Sources differ
in their counting (formulas and code read at these releases):

- Megatron-LM of 2021 counts full recomputation and unmasked attention: ``96 B s l h^2 (1 + s / 6h + V / 16 l h)``
  (arXiv 2104.04473, section 5.1).
- Megatron-Core until 2025 (core_v0.8.0, ``num_floating_point_operations``) ignores recomputation and the mask:
  ``12 B s l h^2 (1 + g / n + s / h + gated f / h + V / 2 l h)``.
- NeMo (``nemo/utils/flops_formulas.py``, causal) and Megatron-Bridge (``flop_utils.py``) count no recomputation and
  half of the attention with a causal mask, as clusim's useful operations.

Rates of other frameworks are rejected.

Scores are errors in percent, and the rank correlation of layouts of one model.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any

from clusim.base.errors import ClusimError, InputError
from clusim.base.json_schema import JsonObject, Round9
from clusim.base.tables import group_values
from clusim.lowering.grain import STEP
from clusim.training.estimate import estimated
from clusim.training.request import TrainRequest
from clusim.validation.measured import Prediction, Unpredicted, by, errors
from clusim.validation.steps.cases import StepCase, case_of
from clusim.validation.steps.rows import StepRow
from clusim.workload import Workload, make_plan
from clusim.workload.parallel.plan import model_of


@dataclass(frozen=True)
class StepPoint(Prediction, JsonObject):
    """A measured step and its prediction.

    Attributes
    ----------
    where : str
        File and line.
    chip : str
        The simulated GPU.
    measured_s, predicted_s : float
        Time of a step [s].
    error_pct : float
        Signed error of the prediction [%]; + is too long.
    host_wait_s : float
        Part of the prediction in which GPUs wait for the host, mean over ranks [s].
    calibrated : list of str
        The sets of rows that calibrated parameters and contain this row.
    notes : tuple of str
        Assumptions on the row, and approximations of the simulation.
    """

    KEYS = (
        "id=row.id",
        "where=row.where",
        "source=row.source",
        "chip",
        "framework=row.framework",
        "model=row.model",
        "n_gpus=row.n_gpus",
        "micro_batch=row.micro_batch?",
        "measured_s",
        "predicted_s",
        "error_pct",
        "host_wait_s",
        "calibrated=calibration_sets",
        "notes",
    )

    row: StepRow
    measured_s: float
    predicted_s: Round9
    host_wait_s: Round9 = 0.0
    chip: str = ""
    notes: tuple[str, ...] = ()

    @property
    def times(self) -> tuple[float, float]:
        """Measured and predicted time [s]."""
        return self.measured_s, self.predicted_s

    @property
    def plans_of(self) -> tuple[object, ...]:
        """Key of rows with alternative layouts: system, model, sequence and number of GPUs."""
        row = self.row
        return (
            row.source,
            row.hardware,
            row.n_gpus,
            row.model,
            row.layers,
            row.hidden,
            row.seq,
            row.precision,
        )


@dataclass(frozen=True, slots=True)
class StepScore(JsonObject):
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


def kendall_tau(points: Sequence[StepPoint]) -> float | None:
    """Return the rank correlation of measured and predicted throughput; None without pairs.

    Only rows with equal `plans_of` are compared.

    Pairs with equal measurements do not count; pairs with equal predictions contribute 0.
    """
    right = pairs = 0
    for group_points in group_values(
        (point.plans_of, point) for point in points
    ).values():
        for one, two in combinations(group_points, 2):
            # Throughput in samples of a step over its time.
            batch, other = one.row.global_batch, two.row.global_batch
            was = batch / one.measured_s - other / two.measured_s
            now = batch / one.predicted_s - other / two.predicted_s
            if was:
                pairs += 1
                right += (was * now > 0) - (was * now < 0)
    return round(right / pairs, 4) if pairs else None


def step_score(points: Sequence[StepPoint]) -> StepScore:
    """Return the errors of some rows' predictions."""
    return StepScore(**errors(points), kendall_tau=kendall_tau(points))


def _place(point: StepPoint) -> str:
    row = point.row
    if row.n_nodes <= 1 and row.n_gpus <= 8:
        return "one node"
    return (
        "to 64 GPUs"
        if row.n_gpus < 64
        else "64 to 512 GPUs"
        if row.n_gpus <= 512
        else "more"
    )


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


def step_groups(
    points: Sequence[StepPoint],
) -> list[tuple[str, str, list[StepPoint]]]:
    """Return the points by every word of `GROUPS`: (by, name, points)."""
    return [
        (word, name, group_points)
        for word, key in GROUPS.items()
        for name, group_points in by(points, key).items()
    ]


def counted_flops(
    row: StepRow, workload: Workload, useful: float
) -> tuple[float, str]:
    """Return the operations of a step of all GPUs [FLOP] as the row's source counts, and how.

    Parameters
    ----------
    useful : float
        Operations of the step without recomputation and without masked attention [FLOP].
    """
    framework = row.framework.lower()
    if "nemo" in framework or "megatron-bridge" in framework:
        return useful, "without recomputation, half of causal attention"
    model: Any = model_of(workload.model)
    counts_full = "megatron" in framework and "deepspeed" not in framework
    if not counts_full or getattr(
        model, "experts", True
    ):  # only transformers have the field
        raise InputError(
            f"{row.framework} of {row.model}: unknown count of operations; set the step's time"
        )
    size, layers, seq = model.hidden, model.layers, row.seq
    attention_flops = row.global_batch * seq * layers * size**2
    if "2021" in framework or "including recompute" in row.notes:
        counted = (
            96
            * attention_flops
            * (1 + seq / (6 * size) + model.vocab / (16 * layers * size))
        )
        return counted, "with full recomputation and complete attention"
    wide = model.intermediate / size * (1.5 if model.gated else 1.0)
    attention = 1 + model.kv_heads / model.heads + seq / size
    counted = (
        12 * attention_flops * (attention + wide + model.vocab / (2 * layers * size))
    )
    return counted, "without recomputation, with complete attention"


def predict_row(
    row: StepRow, granularity: str | int = STEP
) -> StepPoint | Unpredicted:
    """Return measurement and prediction of a row."""
    try:
        case = _with_least_recomputation(case_of(row))
        setup = case.machines.setup(case.nodes)
        request = TrainRequest(
            setup, case.workload, steps=1, granularity=granularity, estimate=True
        )
        step = estimated(request, confirm=False)
        notes = tuple(step.notes)
        useful, measured_s = step.plan.model_flops, row.measured_s
        if not measured_s:
            flops, how = counted_flops(row, case.workload, useful)
            measured_s = flops / (row.tflops_per_gpu * 1e12 * row.n_gpus)
            notes = (*notes, f"measured: from TFLOP/s per GPU, {how}")
    except ClusimError as error:
        return Unpredicted(row, str(error))
    chip = step.plan.chip
    share = useful / row.n_gpus / measured_s / chip.peak_flops
    if share > 1:
        return Unpredicted(
            row, f"{share:.0%} of the peak: the stated work exceeds the computed"
        )
    return StepPoint(
        row,
        measured_s,
        step.step_time_s,
        step.mean("host"),
        chip.name,
        (*case.notes, *notes),
    )


def _with_least_recomputation(case: StepCase) -> StepCase:
    """Return a case with the least recomputation that fits into memory, if not given."""
    if not any(note.startswith("recomputation not given") for note in case.notes):
        return case
    fabric = case.machines.setup(case.nodes).known
    for kind in ("none", "selective", "full"):
        case = replace(
            case, workload=case.workload.model_copy(update={"recompute": kind})
        )
        plan = make_plan(case.workload, fabric)
        if not any(
            plan.memory(stage).missing for stage in range(plan.mesh.pipeline)
        ):
            break
    return case
