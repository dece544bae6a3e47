"""Scaling of a workload over data-parallel replicas."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Literal

from clusim.base.errors import InputError
from clusim.training.request import TrainRequest
from clusim.training.result import StepResult
from clusim.training.run import trained
from clusim.workload.spec import Workload


def scaled(
    workload: Workload, replicas: int, kind: Literal["strong", "weak"], micro_total: int
) -> Workload:
    """Return a workload on a number of replicas.

    The global batch is constant (strong) or grows with the replicas (weak).
    """
    batch = workload.batch.all if kind == "strong" else micro_total * replicas
    own = workload.parallel
    size = own.tensor * own.context * own.pipeline * replicas
    ranks = list(range(size)) if own.ranks is None else own.ranks[:size]
    parallel = own.model_copy(update={"data": replicas, "ranks": ranks})
    return workload.model_copy(
        update={"parallel": parallel, "batch": workload.batch.model_copy(update={"all": batch})}
    )


def scaling(
    request: TrainRequest,
    replicas: Sequence[int],
    kind: Literal["strong", "weak"] = "weak",
    run: Callable[[TrainRequest], StepResult] = trained,
) -> list[tuple[int, StepResult, float]]:
    """Return (replicas, result, efficiency) for every number of replicas.

    Efficiency is throughput per GPU relative to the first entry. In weak scaling every replica has as many
    samples as in the workload. `run` simulates or estimates a request.
    """
    if kind not in ("strong", "weak"):
        raise InputError(f"scaling {kind!r}: use strong or weak")
    workload = request.workload
    base = workload.parallel.data or max(
        1,
        request.setup.fabric.num_ranks
        // (workload.parallel.tensor * workload.parallel.context * workload.parallel.pipeline),
    )
    if workload.batch.all % base:
        raise InputError(
            f"batch {workload.batch.all}: not divisible by the {base} replicas it is for"
        )
    results: list[tuple[int, StepResult, float]] = []
    for count in replicas:
        part = scaled(workload, count, kind, workload.batch.all // base)
        result = run(replace(request, workload=part))
        first = results[0] if results else (count, result, 1.0)
        per_gpu = result.samples_per_s / result.plan.mesh.size
        efficiency = per_gpu / (first[1].samples_per_s / first[1].plan.mesh.size)
        results.append((count, result, efficiency))
    return results
