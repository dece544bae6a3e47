"""Scaling of a workload over data-parallel replicas, and figures of a training step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from clusim.base.errors import InputError
from clusim.base.json_schema import IfKnown, JsonObject
from clusim.report.charts import stacked_bars
from clusim.report.plots import plot_result
from clusim.training.breakdown import PARTS
from clusim.training.request import TrainRequest
from clusim.training.result import StepResult, TrainingResult
from clusim.training.run import trained
from clusim.workload.spec import Workload

if TYPE_CHECKING:
    from matplotlib.figure import Figure


MOST_RANKS = 32
"""Maximum bars; among more ranks, the ranks with most exposed communication are drawn."""


def plot_step(result: TrainingResult, figure: str = "", **look: Any) -> Figure:
    """Draw ``ranks`` (breakdown of every rank), or the wires: ``heatmap``, ``topology``."""
    if figure in ("heatmap", "topology"):
        return plot_result(result.result, figure, **look)
    if figure not in ("", "ranks"):
        raise InputError(
            f"figure {figure!r}: unknown; there are ranks, heatmap, topology"
        )
    rows = sorted(result.ranks, key=lambda row: -row.exposed_ps)[:MOST_RANKS]
    rows.sort(key=lambda row: row.rank)
    totals = np.array([max(1, row.total_ps) for row in rows])
    parts = {
        words: np.array([getattr(row, f"{part}_ps") for row in rows]) / totals
        for part, words in PARTS.items()
    }
    title = result.summary().title
    return stacked_bars([f"rank {row.rank}" for row in rows], parts, title, **look)


def scaled(
    workload: Workload,
    replicas: int,
    kind: Literal["strong", "weak"],
    micro_total: int,
) -> Workload:
    """Return a workload on a number of replicas.

    The global batch is constant (strong) or grows with the replicas (weak).
    """
    batch = workload.batch.all if kind == "strong" else micro_total * replicas
    mesh = workload.parallel
    size = mesh.tensor * mesh.context * mesh.pipeline * replicas
    ranks = list(range(size)) if mesh.ranks is None else mesh.ranks[:size]
    parallel = mesh.model_copy(update={"data": replicas, "ranks": ranks})
    return workload.model_copy(
        update={
            "parallel": parallel,
            "batch": workload.batch.model_copy(update={"all": batch}),
        }
    )


@dataclass(frozen=True, slots=True)
class ScaledStep(JsonObject):
    """A training step on some replicas.

    Attributes
    ----------
    samples_per_s, tokens_per_s : float
        Throughput, in the unit of the model.
    mfu : float
        Model FLOP/s over the peak FLOP/s of all ranks.
    efficiency : float
        Throughput per GPU relative to the first row.
    """

    KEYS = (
        "replicas",
        "gpus=step.plan.mesh.size",
        "step_time_s",
        "samples_per_s",
        "tokens_per_s",
        "mfu=step.mfu",
        "exposed_comm_s",
        "efficiency",
        "convergence=step.convergence",
        "expected_error=step.expected",
        "expected_error_text=step.expected_text",
        "faults=step.faults",
        "notes=step.notes",
    )

    replicas: int
    step: StepResult
    efficiency: float

    @property
    def step_time_s(self) -> float:
        """Time of the step [s]."""
        return self.step.step_time_s

    @property
    def samples_per_s(self) -> IfKnown[float]:
        """Samples per second; 0 for tokens."""
        return self._per_s("samples")

    @property
    def tokens_per_s(self) -> IfKnown[float]:
        """Tokens per second; 0 for samples."""
        return self._per_s("tokens")

    def _per_s(self, unit: str) -> float:
        return self.step.samples_per_s if self.step.plan.model.unit == unit else 0.0

    @property
    def exposed_comm_s(self) -> float:
        """Exposed communication [s]."""
        return self.step.mean("exposed")


def scaling(
    request: TrainRequest,
    replicas: Sequence[int],
    kind: Literal["strong", "weak"] = "weak",
    run: Callable[[TrainRequest], StepResult] = trained,
) -> list[ScaledStep]:
    """Return the steps on every number of replicas.

    Efficiency is throughput per GPU relative to the first entry. In weak scaling every replica has as many
    samples as in the workload. `run` simulates or estimates a request.
    """
    if kind not in ("strong", "weak"):
        raise InputError(f"scaling {kind!r}: use strong or weak")
    workload = request.workload
    base = workload.parallel.data or max(
        1,
        request.setup.fabric.num_ranks
        // (
            workload.parallel.tensor
            * workload.parallel.context
            * workload.parallel.pipeline
        ),
    )
    if workload.batch.all % base:
        raise InputError(
            f"batch {workload.batch.all}: not divisible by the {base} replicas it is for"
        )
    results: list[ScaledStep] = []
    for count in replicas:
        part = scaled(workload, count, kind, workload.batch.all // base)
        result = run(replace(request, workload=part))
        first = results[0].step if results else result
        per_gpu = result.samples_per_s / result.plan.mesh.size
        efficiency = per_gpu / (first.samples_per_s / first.plan.mesh.size)
        results.append(ScaledStep(count, result, efficiency))
    return results
