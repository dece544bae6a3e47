"""Grids of runs in YAML: every list is an axis, and all combinations are run.

``run:`` contains options of `clusim run`, ``train:``, ``serve:`` and ``jobs:`` options of their commands and, below
``change``, keys of the file by their path (``parallel.tensor``). Each may be a list of such blocks; `keys` defines the
options. A point of a sweep is one run with its parameters and its result as a row.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

from clusim.analysis.limits import limit
from clusim.base.errors import ClusimError, InputError, one_line
from clusim.base.files import noting
from clusim.base.kept import file_digest, model_digest
from clusim.base.limits import read_text
from clusim.base.resources import (
    find_topology,
    find_workload,
    shipped_jobs,
    shipped_serving,
    shipped_topologies,
    shipped_workloads,
)
from clusim.multijob.api import JobsRequest, compare_jobs
from clusim.serving.api import ServeRequest, serve_request
from clusim.serving.report import ServedLoad
from clusim.simulation.api import result_of
from clusim.simulation.expected import expected_of
from clusim.simulation.plan import plan
from clusim.simulation.request import Request, requested
from clusim.studies.sweep.keys import BLOCKS, Cell
from clusim.topology.keys import did_you_mean
from clusim.topology.validate import Problems
from clusim.topology.yamltext import Document, parse
from clusim.training.api import train_request
from clusim.training.estimate import stepped
from clusim.training.request import TrainRequest
from clusim.workload import load_workload

AnyRequest = Request | TrainRequest | ServeRequest | JobsRequest


@dataclass(frozen=True)
class SweepPoint:
    """One run of a sweep; can be sent to other processes.

    Attributes
    ----------
    kind : str
        ``run``, ``train``, ``serve`` or ``jobs``.
    given : tuple of (str, Cell)
        Parameters from the grid, by column.
    """

    kind: str
    given: tuple[tuple[str, Cell], ...]
    request: AnyRequest

    @property
    def name(self) -> str:
        """Return the identity of the point, equal in every sweep."""
        return json.dumps(
            [self.kind, dict(sorted(self.given))], separators=(",", ":")
        )


def answer_point(point: SweepPoint) -> dict[str, Cell]:
    """Run a point and return its row; a failed run has the reason in ``error``."""
    began_s = time.perf_counter()
    row: dict[str, Cell] = {
        "point": point.name,
        "kind": point.kind,
        **dict(point.given),
    }
    with noting() as read:
        try:
            row |= _run_request(point.request)
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
    shipped_paths = {
        *map(str, shipped_topologies().values()),
        *map(str, shipped_workloads().values()),
        *map(str, shipped_serving().values()),
        *map(str, shipped_jobs().values()),
    }
    return {
        path: file_digest(path)
        for path in dict.fromkeys(read)
        if path not in shipped_paths
    }


def _run_request(request: AnyRequest) -> dict[str, Cell]:
    if isinstance(request, ServeRequest):
        return _serving_row(request)
    if isinstance(request, JobsRequest):
        return _jobs_row(request)
    return (
        _training_row(request)
        if isinstance(request, TrainRequest)
        else _collective_row(request)
    )


def _collective_row(request: Request) -> dict[str, Cell]:
    """Return the row of a collective: times [us], bandwidths [GB/s], plan, wires, errors."""
    planned = plan(request)
    result = result_of(planned)
    results = result.to_json()
    algorithm = result.call.algorithm if result.call else ""
    nearest = expected_of(planned, algorithm).nearest
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
        "expected_error_pct": round(nearest.median_abs_pct, 3)
        if nearest is not None
        else None,
        "fingerprint": results["fingerprint"],
    }


def _training_row(request: TrainRequest) -> dict[str, Cell]:
    """Return the row of a training step: times [s], throughput, utilisation and memory [GiB]."""
    result = stepped(request)
    results = result.to_json()
    names = (
        "gpus",
        "microbatches",
        "step_time_s",
        "tflops_per_gpu",
        "mfu",
        "hfu",
        "compute_s",
        "exposed_comm_s",
        "communication_s",
        "host_wait_s",
        "bubble_s",
        "idle_s",
    )
    memory, expected = results["memory_GiB"], result.expected
    return {
        **{name: results[name] for name in names},
        "per_s": result.samples_per_s,
        "unit": result.plan.model.unit,
        "memory_GiB": memory["total"],
        "fits": not memory["capacity"] or memory["total"] <= memory["capacity"],
        "expected_error_pct": round(expected.mean_abs_pct, 3)
        if expected is not None
        else None,
    }


def _serving_row(request: ServeRequest) -> dict[str, Cell]:
    """Return the row of a serving run: mean latencies [ms], throughput, and the cache."""
    result = request.run()
    row = ServedLoad.of(0, result).to_json()
    return {
        "gpus": result.gpus,
        **{key: row[key] for key in row if key != "concurrency"},
    }


def _jobs_row(request: JobsRequest) -> dict[str, Cell]:
    """Return the row of several jobs: time [us], fairness, the slowest job, and the slowdown of each."""
    result = compare_jobs(request.runner(), pairs=False)
    slowest = max(result.jobs, key=lambda job: job.slowdown)
    return {
        "time_us": result.time_ps / 1e6,
        "fairness": round(result.fairness, 4),
        "slowest": slowest.name,
        "slowdown": round(slowest.slowdown, 4),
        "slowdowns": ", ".join(
            f"{job.name} {job.slowdown:.3f}" for job in result.jobs
        ),
    }


FIELDS = {
    "collective": "operation",
    "size": "size_bytes",
    "fault": "faults",
    "nccl_version": "version",
}
"""Options that differ from the field of the request."""


def _split(
    choice: Mapping[str, Any],
) -> tuple[tuple[tuple[str, Cell], ...], dict[str, Any], Path]:
    """Return the displayed values, their meanings, and the folder of the grid."""
    axes = {name: value for name, value in choice.items() if name != "home"}
    cells = tuple((name, value[0]) for name, value in axes.items())
    return (
        cells,
        {FIELDS.get(name, name): value[1] for name, value in axes.items()},
        choice["home"],
    )


def _resolve_file(
    name: str, home: Path, shipped: Callable[[str], Path | None]
) -> str:
    """Return a name, or its path if it is a file in the folder of the grid."""
    path = home / name
    return str(path) if shipped(name) is None and path.is_file() else name


def run_point(choice: Mapping[str, Any]) -> SweepPoint:
    """Return the point of a collective; `choice` has a value of every option, and ``home``."""
    cells, meant, home = _split(choice)
    topology = _resolve_file(meant.pop("topology"), home, find_topology)
    return SweepPoint(
        "run", cells, requested(topology, **{"operation": "allreduce", **meant})
    )


def train_point(choice: Mapping[str, Any]) -> SweepPoint:
    """Return the point of training steps; names after ``change.`` are keys of the workload."""
    cells, meant, home = _split(choice)
    changes, machine = _pop_changes(meant), _pop_machine(meant, home)
    workload = load_workload(
        _resolve_file(meant.pop("workload"), home, find_workload), changes
    )
    return SweepPoint("train", cells, train_request(workload, machine, **meant))


def serve_point(choice: Mapping[str, Any]) -> SweepPoint:
    """Return the point of a serving run; names after ``change.`` are keys of the file."""
    cells, meant, home = _split(choice)
    changes, machine = _pop_changes(meant), _pop_machine(meant, home)
    name = _resolve_file(meant.pop("serving"), home, shipped_serving().get)
    return SweepPoint(
        "serve", cells, serve_request(name, machine, changes=changes, **meant)
    )


def jobs_point(choice: Mapping[str, Any]) -> SweepPoint:
    """Return the point of several jobs; names after ``change.`` are keys of the file."""
    cells, meant, home = _split(choice)
    changes, machine = _pop_changes(meant), _pop_machine(meant, home)
    name = _resolve_file(meant.pop("jobs"), home, shipped_jobs().get)
    nodes = meant.pop("nodes", None)
    return SweepPoint(
        "jobs", cells, JobsRequest(name, machine, nodes, changes, meant)
    )


def _pop_changes(meant: dict[str, Any]) -> dict[str, Any]:
    """Return the keys of the file that change."""
    prefix = "change."
    return {
        name.removeprefix(prefix): meant.pop(name)
        for name in list(meant)
        if name.startswith(prefix)
    }


def _pop_machine(meant: dict[str, Any], home: Path) -> str | None:
    topology = meant.pop("topology", None)
    return None if topology is None else _resolve_file(topology, home, find_topology)


MOST_BYTES = 4 << 20
"""Largest grid file [bytes]."""

MOST_POINTS = 100_000
"""Maximum number of runs of a sweep."""

Make = Callable[[Mapping[str, Any]], SweepPoint]
_MAKE: dict[str, Make] = {
    "run": run_point,
    "train": train_point,
    "serve": serve_point,
    "jobs": jobs_point,
}


@dataclass(frozen=True)
class SweepGrid:
    """All points of a sweep, in the order of the file: the last axis changes fastest.

    Attributes
    ----------
    axes : tuple of str
        Columns with more than one value.
    """

    name: str
    points: tuple[SweepPoint, ...]
    axes: tuple[str, ...]


def read_grid(path: str | os.PathLike[str]) -> SweepGrid:
    """Read a grid.

    Raises
    ------
    InputError, TopologyError
        The grid is invalid; the message has a line per problem, with its place.
    """
    where = os.fspath(path)
    document = parse(read_text(where, MOST_BYTES), where)
    problems = Problems(where, document, list(document.problems))
    if not isinstance(document.data, dict):
        raise InputError(
            f"{where}: must be a mapping with 'run', 'train', 'serve' or 'jobs'"
        )
    for key in document.data.keys() - _MAKE.keys():
        problems.add((key,), f"unknown key{did_you_mean(key, _MAKE)}", key=True)
    points: dict[str, SweepPoint] = {}
    home = Path(where).resolve().parent
    for kind, at, block in _blocks(document, problems):
        if (axes := _axes(kind, at, block, problems)) is None:
            continue
        for choice in _combine_axes(axes, where):
            try:
                point = _MAKE[kind]({"home": home, **choice})
            except ClusimError as error:
                problems.add(at, str(error))
                break
            points.setdefault(point.name, point)
    problems.raise_if_any()
    if not points:
        raise InputError(
            f"{where}: no runs defined; write run: {{topology: ..., size: [...]}}"
        )
    result = tuple(points.values())
    return SweepGrid(where, result, _varying_columns(result))


def _blocks(
    document: Document, problems: Problems
) -> Iterator[tuple[str, tuple[str | int, ...], dict[str, Any]]]:
    """Yield kind, place and content of every block."""
    for kind in _MAKE:
        blocks = document.data.get(kind, [])
        several = blocks if isinstance(blocks, list) else [blocks]
        for index, block in enumerate(several):
            at = (kind, index) if isinstance(blocks, list) else (kind,)
            if isinstance(block, dict):
                yield kind, at, block
            else:
                problems.add(
                    at,
                    "must be a mapping of names and values, or of lists of values",
                )


def _axes(
    kind: str, at: tuple[str | int, ...], block: dict[str, Any], problems: Problems
) -> dict[str, list[Any]] | None:
    """Return the values of every option of a block; None if one is invalid."""
    keys, before = BLOCKS[kind], len(problems.found)
    axes: dict[str, list[Any]] = {}
    for name, value in block.items():
        if name == "change" and kind != "run":
            axes |= _changes((*at, name), value, problems)
        elif name not in keys.words:
            words = [*keys.words, *(["change"] if kind != "run" else [])]
            problems.add(
                (*at, name), f"unknown key{did_you_mean(name, words)}", key=True
            )
        else:
            axes[name] = value if isinstance(value, list) else [value]
            if not axes[name]:
                problems.add((*at, name), "an empty list; add at least one value")
            for index, item in enumerate(axes[name]):
                try:
                    axes[name][index] = keys.words[name](item)
                except (ClusimError, ValueError) as error:
                    place = (
                        (*at, name, index)
                        if isinstance(value, list)
                        else (*at, name)
                    )
                    problems.add(place, str(error))
    for name in keys.needed - block.keys():
        problems.add(at, f"{name!r} is missing")
    return axes if len(problems.found) == before else None


def _changes(
    at: tuple[str | int, ...], changes: Any, problems: Problems
) -> dict[str, list[tuple[Cell, Any]]]:
    """Return the axes of changes of a workload, each value with its displayed form."""
    if not isinstance(changes, dict):
        problems.add(
            at, "must be a mapping of keys of the file, such as parallel.tensor"
        )
        return {}
    result = {}
    for name, value in changes.items():
        values = value if isinstance(value, list) else [value]
        if not values:
            problems.add((*at, name), "an empty list; add at least one value")
        result[f"change.{name}"] = [(_format_cell(item), item) for item in values]
    return result


def _format_cell(value: Any) -> Cell:
    """Return the displayed form of a value: YAML on one line for mappings and lists."""
    return value if isinstance(value, Cell) else json.dumps(value).replace('"', "")


def _combine_axes(
    axes: dict[str, list[Any]], where: str
) -> Iterator[dict[str, Any]]:
    count = 1
    for values in axes.values():
        count *= len(values)
    if count > MOST_POINTS:
        raise InputError(
            f"{where}: {count:,} runs; at most {MOST_POINTS:,} in one grid"
        )
    for choice in product(*axes.values()):
        yield dict(zip(axes, choice, strict=True))


def _varying_columns(points: tuple[SweepPoint, ...]) -> tuple[str, ...]:
    """Return the columns in which points of one kind differ."""
    found_values: dict[tuple[str, str], set[Cell]] = {}
    for kind in _MAKE:
        of_kind = [dict(point.given) for point in points if point.kind == kind]
        for name in dict.fromkeys(name for columns in of_kind for name in columns):
            found_values[kind, name] = {columns.get(name) for columns in of_kind}
    return tuple(
        dict.fromkeys(
            name for (_, name), values in found_values.items() if len(values) > 1
        )
    )
