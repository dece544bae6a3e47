"""Point of a sweep: one run, its parameters, and its result as a row."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass

from clusim.analysis.limits import limit
from clusim.base.errors import ClusimError, one_line
from clusim.base.executors import model_digest
from clusim.base.executors.workers import file_digest
from clusim.base.files import noting
from clusim.base.resources import shipped_topologies, shipped_workloads
from clusim.simulation.api import result_of
from clusim.simulation.expected import expected_of
from clusim.simulation.request import Request
from clusim.training.composition.estimate import stepped
from clusim.training.request import TrainRequest

Cell = str | int | float | bool | None
"""Value of a column."""


@dataclass(frozen=True)
class SweepPoint:
    """One run of a sweep; can be sent to other processes.

    Attributes
    ----------
    kind : str
        ``run`` or ``train``.
    given : tuple of (str, Cell)
        Parameters from the grid, by column.
    """

    kind: str
    given: tuple[tuple[str, Cell], ...]
    request: Request | TrainRequest

    @property
    def name(self) -> str:
        """Return the identity of the point, equal in every sweep."""
        return json.dumps([self.kind, dict(sorted(self.given))], separators=(",", ":"))


def answered(point: SweepPoint) -> dict[str, Cell]:
    """Run a point and return its row; a failed run has the reason in ``error``."""
    began_s = time.perf_counter()
    row: dict[str, Cell] = {"point": point.name, "kind": point.kind, **dict(point.given)}
    with noting() as read:
        try:
            row |= _ran(point.request)
        except ClusimError as error:
            row["error"] = one_line(str(error))
    return row | {
        "simulated_in_s": round(time.perf_counter() - began_s, 3),
        "clusim": model_digest(),
        "files": json.dumps(_digests(read), separators=(",", ":")),
    }


def still_true(row: dict[str, Cell]) -> bool:
    """Return True if clusim and all files of a row are unchanged."""
    if row.get("clusim") != model_digest():
        return False
    files = json.loads(str(row["files"]))
    return all(file_digest(path) == digest for path, digest in files.items())


def _digests(read: list[str]) -> dict[str, str]:
    """Return the digests of input files that are not part of clusim."""
    own = {*map(str, shipped_topologies().values()), *map(str, shipped_workloads().values())}
    return {path: file_digest(path) for path in dict.fromkeys(read) if path not in own}


def _ran(request: Request | TrainRequest) -> dict[str, Cell]:
    return _trained(request) if isinstance(request, TrainRequest) else _collected(request)


def _collected(request: Request) -> dict[str, Cell]:
    """Return the row of a collective: times [us], bandwidths [GB/s], plan, wires, errors."""
    result = result_of(request)
    results = result.to_json()
    algorithm = result.call.algorithm if result.call else ""
    nearest = expected_of(request, algorithm).nearest
    busiest = limit(result)
    return {
        "time_us": results["time_ps"] / 1e6,
        "iteration_us": results.get("launched_us"),
        "algbw_GBps": results["algbw_GBps"],
        "busbw_GBps": results["busbw_GBps"],
        "nccl_model_us": results.get("model_time_us"),
        "ran_algorithm": algorithm,
        "ran_protocol": results["protocol"],
        "ran_channels": results["channels"],
        "gpus": results["ranks"],
        "busiest_wires": busiest.wire_class if busiest is not None else None,
        "busy": busiest.reached if busiest is not None else None,
        "error_bound": results["error_bound"],
        "expected_error_pct": nearest.median_abs_pct if nearest is not None else None,
        "fingerprint": results["fingerprint"],
    }


def _trained(request: TrainRequest) -> dict[str, Cell]:
    """Return the row of a training step: times [s], throughput, utilisation and memory [GiB]."""
    result = stepped(request)
    results = result.figures()
    names = (
        *("gpus", "microbatches", "step_time_s", "tflops_per_gpu", "mfu", "hfu", "compute_s"),
        *("exposed_comm_s", "communication_s", "host_wait_s", "bubble_s", "idle_s"),
    )
    memory, expected = results["memory_GiB"], result.expected
    return {
        **{name: results[name] for name in names},
        "per_s": result.samples_per_s,
        "unit": result.plan.model.unit,
        "memory_GiB": memory["total"],
        "fits": not memory["capacity"] or memory["total"] <= memory["capacity"],
        "expected_error_pct": expected.mean_abs_pct if expected is not None else None,
    }
