"""Simulation of several jobs on one fabric: functions for scripts."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from itertools import combinations
from pathlib import Path
from typing import Any, TypedDict, Unpack

from clusim.base.errors import InputError
from clusim.multijob.compare import Comparison
from clusim.multijob.result import MOST_WIRES, JobsResult, TogetherRun
from clusim.multijob.run import JobsRunner
from clusim.multijob.spec import JobsSpec, load_jobs
from clusim.results.bins import MAX_BINS
from clusim.simulation.api import as_policy
from clusim.simulation.job import RunOptions
from clusim.simulation.setup import Setup
from clusim.topology import Fabric

BY_LOAD = ("adaptive", "credit", "flowlet", "ugal", "minimal")
"""Routings that move a job to other wires if these are busy."""


@dataclass(frozen=True)
class JobsRequest:
    """Jobs of a file on a system; can be changed.

    Attributes
    ----------
    path : str
        YAML file, or name of a shipped one.
    topology, nodes
        System and number of nodes; None is the file's.
    changes : mapping
        Values of keys of the file by their paths.
    options : mapping
        Further options of `run_jobs`.
    """

    path: str
    topology: str | Path | Fabric | None = None
    nodes: int | None = None
    changes: Mapping[str, Any] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)

    def runner(self) -> JobsRunner:
        """Return the runner of its jobs."""
        return runner_of(
            self.path,
            self.topology,
            self.nodes,
            changes=self.changes,
            **self.options,
        )


def runner_of(
    jobs: str | os.PathLike[str] | JobsSpec,
    fabric: str | Path | Fabric | None = None,
    nodes: int | None = None,
    **options: Any,
) -> JobsRunner:
    """Return the runner of a file's jobs; parameters as of `run_jobs`."""
    spec = (
        jobs
        if isinstance(jobs, JobsSpec)
        else load_jobs(jobs, options.pop("changes", None))
    )
    topology = spec.topology if fabric is None else fabric
    if not topology:
        raise InputError("topology missing in the jobs file; set topology")
    count = nodes if nodes is not None or fabric is not None else spec.nodes
    setup = Setup(
        topology,
        count,
        policy=as_policy(options.pop("policy", "") or spec.policy),
        routing=_other_than_auto(options.pop("routing", "auto")) or spec.routing,
    )
    trains = any(job.train is not None for job in spec.jobs.values())
    granularity = options.pop("granularity", None) or ("step" if trains else "quick")
    run = RunOptions(histories=False, bins=2, confirm=False, **options)
    return JobsRunner(spec, setup, granularity, run)


def _other_than_auto(routing: str) -> str:
    return "" if routing == "auto" else routing


class JobsOptions(TypedDict, total=False):
    """Options of `run_jobs`.

    Attributes
    ----------
    pairs : bool
        Whether to run every two jobs that share a wire or a rank.
    trace_out : str or Path or None
        Trace of the run of all jobs.
    changes : mapping
        Values of keys of the file by their paths, such as ``jobs.storage.class``.
    granularity : str or int
        As in `clusim.simulate`; by default ``step`` with training, else ``quick``.
    policy, routing
        As in `clusim.simulate`; by default the file's.
    threads : int or None
        Threads of the engine.
    """

    pairs: bool
    trace_out: str | Path | None
    changes: Mapping[str, Any]
    granularity: str | int
    policy: str
    routing: str
    threads: int | None


def run_jobs(
    jobs: str | os.PathLike[str] | JobsSpec,
    fabric: str | Path | Fabric | None = None,
    nodes: int | None = None,
    notify: Callable[[str], None] = lambda text: None,
    **options: Unpack[JobsOptions],
) -> JobsResult:
    """Run several jobs on one fabric: all at once, each in isolation, and in pairs.

    Parameters
    ----------
    jobs : str, path or JobsSpec
        A YAML file, or the name of a shipped one.
    fabric : str, Path, Fabric or None
        None is the system of the file, with its number of nodes.
    notify : callable
        Called with a text before each run.
    **options
        `JobsOptions`.

    Raises
    ------
    InputError
        The file, a node or a job is invalid.
    """
    pairs, trace_out = options.pop("pairs", True), options.pop("trace_out", None)
    runner = runner_of(jobs, fabric, nodes, **options)
    return compare_jobs(runner, notify, pairs=pairs, trace_out=trace_out)


def compare_jobs(
    runner: JobsRunner,
    notify: Callable[[str], None] = lambda text: None,
    *,
    pairs: bool = True,
    trace_out: str | Path | None = None,
) -> JobsResult:
    """Run the jobs of a runner: all at once, each in isolation, and in pairs; parameters as of `run_jobs`."""
    runner.prepare(lambda name: notify(f"{name} in isolation"))
    names = list(runner.spec.jobs)
    notify("all jobs")
    joint = runner.alone[names[0]]
    if len(names) > 1 or trace_out is not None:
        options = runner.options
        if trace_out is not None:
            options = replace(
                options, trace_out=trace_out, histories=True, bins=MAX_BINS
            )
        joint = runner.run(names, options)
    compared = Comparison(runner, joint)
    if pairs and len(names) > 1:
        compared.pairs = _run_pairs(compared, notify)
    shared = compared.all_shared()[:MOST_WIRES]
    origin = joint.result.provenance
    return JobsResult(
        name=runner.spec.name,
        system=runner.setup.fabric.name,
        time_ps=joint.result.time_ps,
        granularity=origin.granularity_note,
        error_bound=origin.error_bound,
        jobs=compared.outcomes,
        matrix=compared.matrix,
        shared_wires=len(compared.all_shared()),
        shared=[compared.describe_wire(int(wire)) for wire in shared],
        fairness=compared.fairness,
        verdict=compared.verdict(),
        notes=list(dict.fromkeys((*runner.notes(), *origin.notes))),
        runs=runner.runs,
        joint=joint,
        alone=runner.alone,
    )


def _run_pairs(
    compared: Comparison, notify: Callable[[str], None]
) -> dict[tuple[str, str], TogetherRun]:
    """Run every two jobs that share a wire or a rank."""
    runner = compared.runner
    shared = [
        pair for pair in combinations(compared.names, 2) if _share(compared, *pair)
    ]
    result = {}
    for one, other in shared:
        lonely = [pair for pair in shared if {one, other} & {*pair}] == [
            (one, other)
        ]
        if lonely:  # no third job changes the run of all
            jobs = {name: compared.joint.jobs[name] for name in (one, other)}
            result[one, other] = TogetherRun(compared.joint.result, jobs)
        else:
            notify(f"{one} and {other}")
            result[one, other] = runner.run([one, other])
    return result


def _share(compared: Comparison, one: str, other: str) -> bool:
    """Return True if two jobs have a rank or a wire in common, or may have one, or reduction units of switches."""
    runner, names = compared.runner, compared.names
    if runner.setup.fabric.forwarding.choice in BY_LOAD:
        return True
    if set(runner.ranks_of(one)) & set(runner.ranks_of(other)):
        return True
    if all(runner.works[name].aggregates for name in (one, other)):
        return True
    wires = compared.wire_bytes[[names.index(one), names.index(other)]]
    return bool((wires > 0).all(axis=0).any())
