"""Predicted step of a measured row, from the fewest nodes that determine it.

**Model** Steps of up to two nodes are simulated unchanged. Beyond, replicas do the same work concurrently: with plain
data parallelism or sharded optimisers the step time grows with ``1 - 1/d`` for `d` replicas, the share of a ring that
other ranks hold; it is extrapolated in this term from one and two replicas. Where one node holds several replicas, and
with sharded weights, whose gathers load the links between any two nodes equally, two nodes represent all. Each further
microbatch, and in sharded models each further layer, adds the same time once there are a few: steps with many are
extrapolated linearly. **Not modelled** Contention of many nodes in the network between them.

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
from clusim.simulation.anchors import Linear
from clusim.training.request import TrainRequest
from clusim.training.run import trained
from clusim.validation.measured import Prediction, Unpredicted, by, errors
from clusim.validation.steps.cases import StepCase, case_of
from clusim.validation.steps.rows import StepRow
from clusim.workload import Workload, make_plan
from clusim.workload.kernels import Chip
from clusim.workload.memory import ZERO
from clusim.workload.parallel.plan import ParallelPlan, model_of


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
        *("id=row.id", "where=row.where", "source=row.source", "chip", "framework=row.framework"),
        *("model=row.model", "n_gpus=row.n_gpus", "micro_batch=row.micro_batch?", "measured_s"),
        *("predicted_s", "error_pct", "host_wait_s", "calibrated=calibration_sets", "notes"),
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
            *(row.source, row.hardware, row.n_gpus, row.model, row.layers, row.hidden, row.seq),
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
    for group_points in group_values((point.plans_of, point) for point in points).values():
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


def step_groups(points: Sequence[StepPoint]) -> list[tuple[str, str, list[StepPoint]]]:
    """Return the points by every word of `GROUPS`: (by, name, points)."""
    return [
        (word, name, group_points)
        for word, key in GROUPS.items()
        for name, group_points in by(points, key).items()
    ]


def counted_flops(row: StepRow, workload: Workload, useful: float) -> tuple[float, str]:
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
    if not counts_full or getattr(model, "experts", True):  # only transformers have the field
        raise InputError(
            f"{row.framework} of {row.model}: unknown count of operations; set the step's time"
        )
    size, layers, seq = model.hidden, model.layers, row.seq
    attention_flops = row.global_batch * seq * layers * size**2
    if "2021" in framework or "including recompute" in row.notes:
        counted = 96 * attention_flops * (1 + seq / (6 * size) + model.vocab / (16 * layers * size))
        return counted, "with full recomputation and complete attention"
    wide = model.intermediate / size * (1.5 if model.gated else 1.0)
    attention = 1 + model.kv_heads / model.heads + seq / size
    counted = 12 * attention_flops * (attention + wide + model.vocab / (2 * layers * size))
    return counted, "without recomputation, with complete attention"


MOST_GPUS = 128
"""Maximum number of simulated GPUs."""

FEW = 2
"""Microbatches per stage from which, with twice this number, longer steps are extrapolated."""

DEPTH = (1, 2)
"""Numbers of layers from which models gathered layer by layer are extrapolated."""

DIRECT = 2
"""Nodes up to which a step is simulated unchanged."""


@dataclass(frozen=True, slots=True)
class _Run:
    """Time of a step and of waiting for the host [s], and the chip.

    Attributes
    ----------
    full_flops : float
        Operations of the complete model in the measured step per GPU.
    """

    step_s: float
    host_wait_s: float
    chip: Chip
    full_flops: float


def predict_row(row: StepRow, granularity: str | int) -> StepPoint | Unpredicted:
    """Return measurement and prediction of a row."""
    try:
        case = _fitting(case_of(row))
        run, notes = _step(case, granularity)
        measured_s = row.measured_s
        if not measured_s:
            flops, how = counted_flops(row, case.workload, run.full_flops * row.n_gpus)
            measured_s = flops / (row.tflops_per_gpu * 1e12 * row.n_gpus)
            notes = (*notes, f"measured: from TFLOP/s per GPU, {how}")
    except ClusimError as error:
        return Unpredicted(row, str(error))
    share = run.full_flops / measured_s / run.chip.peak_flops
    if share > 1:
        return Unpredicted(
            row, f"{share:.0%} of the peak: the row states more work than was computed"
        )
    return StepPoint(
        row, measured_s, run.step_s, run.host_wait_s, run.chip.name, (*case.notes, *notes)
    )


def _fitting(case: StepCase) -> StepCase:
    """Return a case with the least recomputation that fits into memory, if not given."""
    if not any(note.startswith("recomputation not given") for note in case.notes):
        return case
    fabric = case.machines.setup(case.nodes).known
    for kind in ("none", "selective", "full"):
        case = replace(case, workload=case.workload.model_copy(update={"recompute": kind}))
        plan = make_plan(case.workload, fabric)
        if not any(plan.memory(stage).missing for stage in range(plan.mesh.pipeline)):
            break
    return case


def _step(case: StepCase, granularity: str | int) -> tuple[_Run, tuple[str, ...]]:
    """Return the step of a case, and notes on a reduced simulation."""
    sizes = case.workload.parallel
    data = sizes.data or 1
    if case.nodes <= DIRECT:
        return _run(case, data, granularity), ()
    replica = sizes.tensor * sizes.pipeline * sizes.context
    sharded = ZERO.get(case.workload.data.kind) == 3
    min_data = max(1, -(-sizes.expert // sizes.context))
    gpus_per_node = case.machines.each
    simulated = (
        max(min_data, -(-gpus_per_node * DIRECT // replica))
        if sharded or replica < gpus_per_node
        else min_data
    )
    simulated = _divisor(data, simulated)
    if simulated * replica > MOST_GPUS:
        raise InputError(
            f"{simulated * replica} GPUs at least would have to be simulated; at most {MOST_GPUS} are"
        )
    one = _run(case, simulated, granularity)
    if simulated == data:
        return one, ()
    if (
        sharded
        or replica < gpus_per_node
        or data % (2 * simulated)
        or 2 * simulated * replica > MOST_GPUS
    ):
        return one, (f"{simulated} of {data} replicas simulated",)
    two = _run(case, 2 * simulated, granularity)
    law = Linear((1 - 1 / simulated, 1 - 1 / (2 * simulated)), 1 - 1 / data)
    step_s = law.of((one.step_s, two.step_s))
    return replace(two, step_s=step_s), (
        f"{simulated} and {2 * simulated} of {data} replicas simulated",
    )


def _divisor(count: int, low: int) -> int:
    """Return the smallest divisor of `count` that is at least `low`, or `count`."""
    return next((n for n in range(min(low, count), count) if count % n == 0), count)


def _run(case: StepCase, data: int, granularity: str | int) -> _Run:
    """Simulate a step with `data` replicas, each with the same work as in the row."""
    work = case.workload
    replica = work.parallel.tensor * work.parallel.pipeline * work.parallel.context
    gpus = replica * data
    parallel = work.parallel.model_copy(update={"data": data})
    nodes, parallel.ranks = case.machines.place_gpus(gpus)
    setup = case.machines.setup(nodes)
    depth = _depth(work)
    samples = work.batch.micro * data
    count = work.batch.all // (work.batch.micro * (work.parallel.data or 1))

    def simulate(microbatches: int) -> tuple[float, float, ParallelPlan]:
        """Return the time of a step and the wait for the host [s]."""
        batch = work.batch.model_copy(update={"all": microbatches * samples})
        workload = work.model_copy(update={"batch": batch, "parallel": parallel, "depth": depth})
        request = TrainRequest(setup, workload, steps=1, fold="all", granularity=granularity)
        result = trained(request)
        return result.step_time_s, result.mean("host"), result.plan

    limit = FEW * work.parallel.pipeline
    if depth:
        # Gathers and scatters are equal for every microbatch; the optimiser steps once.
        limit = 1
        step_s, host_wait_s, plan = simulate(1)
        step_s += (count - 1) * (step_s - _fixed_s(plan))
        host_wait_s *= count
    elif count <= 2 * limit:
        limit = count
        step_s, host_wait_s, plan = simulate(count)
    else:
        (one_s, one_host_wait_s, plan), (two_s, two_host_wait_s, _) = (
            simulate(limit),
            simulate(2 * limit),
        )
        law = Linear((limit, 2 * limit), count)
        step_s, host_wait_s = law.of((one_s, two_s)), law.of((one_host_wait_s, two_host_wait_s))
    flops = plan.model_flops * count / limit / plan.mesh.size
    return _Run(step_s, host_wait_s, plan.chip, flops)


def _fixed_s(plan: ParallelPlan) -> float:
    """Return the time that is independent of the number of microbatches: optimiser and host [s]."""
    host, kernel = plan.host(), plan.optimizer.kernel(plan.optimizer_parameters(0))
    return (plan.chip.time_ps(kernel) + (host.step_ps if host is not None else 0)) / 1e12


def _depth(workload: Workload) -> list[int] | None:
    """Return the numbers of layers to simulate, for models gathered layer by layer."""
    if ZERO.get(workload.data.kind) != 3 or workload.parallel.pipeline > 1:
        return None
    model = model_of(workload.model)
    layers = getattr(model, "layers", 0)
    plain = not getattr(model, "dense_layers", 0)
    return [DEPTH[0], DEPTH[1]] if layers > DEPTH[1] and plain else None
