"""Extrapolation of large collectives from fewer nodes and bytes, equal for all commands.

NCCL's plan is simulated in full up to `MANY_HOPS` burst-hops, or, if no number of nodes is requested, up to the
burst-hops at which the bursts of ``auto`` exceed their limits. Above that, its time is extrapolated
(`clusim.simulation.extrapolate_bytes`) from two numbers of nodes, and for long streams from two sizes, with the
algorithm, protocol, channels and chunks of the complete run, and in bursts of one size: the burst size of ``auto`` for
the longest of these runs. Wire statistics are then unknown and not shown. **Not extrapolated**, but simulated in full:
runs with a trace, verification or faults, with a requested burst size, algorithms other than NCCL's, and single runs
of operations in which the first ranks finish long before the last.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from clusim.analysis.judge import without_path
from clusim.base.version import version
from clusim.engine.abi import WIRE_COUNTERS
from clusim.lowering import MOST_HOPS, QUICK, Grain
from clusim.lowering.grain import COARSE, STEP
from clusim.nccl import NcclPlan
from clusim.nccl.choice import way_of
from clusim.results.bins import BinRecorder
from clusim.results.diagnosis import Verdict
from clusim.results.result import Provenance, Result, Tasks, Wires
from clusim.results.resultjson import Call
from clusim.simulation.expected import Expected, expected_of
from clusim.simulation.extrapolate_bytes import (
    BRIEF,
    Budget,
    on_fewer,
    shorter,
    stand_ins,
    stream,
    timed,
)
from clusim.simulation.extrapolate_machines import longest_run
from clusim.simulation.job import Job, RunOptions, job_of
from clusim.simulation.plan import OVERLAPPING, NcclChoice, Plan
from clusim.simulation.request import Request
from clusim.topology.check_flow import never_tapers

MANY_HOPS = 32_000_000
"""Burst-hops from which a run on several nodes is extrapolated: some ten seconds."""

MANY = (QUICK, COARSE, STEP)
"""Granularities of many runs at once."""

FOLLOWED_ERROR = 0.15
"""Error limit of an extrapolated time.

**Assumed**, above the largest errors found: 5.9% on 16 DGX H100, 9% on 32 p5en and 12.4% on 128 DGX H100
(``docs/granularity.md``).
"""


@dataclass(frozen=True, slots=True)
class Fewer:
    """Runs on two numbers of nodes from which one on more is extrapolated.

    Attributes
    ----------
    request : Request
        The extrapolated request, with the burst size of all runs.
    grain : Grain
        Granularity of all runs: the requested one for the longest run.
    """

    request: Request
    nodes: tuple[int, int]
    grain: Grain


@dataclass(frozen=True, slots=True)
class Followed:
    """Extrapolated time of a run [ps], the method, and the granularity of the simulated runs."""

    time_ps: int
    note: str
    grain: Grain

    @property
    def words(self) -> str:
        """Method of the extrapolation, and its error limit."""
        return f"{self.note}; error limit {FOLLOWED_ERROR:.0%}, against the complete run in bursts"


def followed_time(
    request: Request, plan: NcclPlan | None, whole: Callable[[], Job], options: RunOptions = BRIEF
) -> Followed | None:
    """Return the extrapolated time of a NCCL plan; None if it is simulated in full.

    Parameters
    ----------
    whole : callable
        Prepares the complete run; called only if it cannot be extrapolated from fewer nodes.
    """
    setup = request.setup
    if request.granularity != "auto" or request.engine != "c" or setup.broken.faults:
        return None
    options.watch.begins("the work is estimated")
    how = replace(BRIEF, watch=options.watch, progress=options.progress, threads=options.threads)
    budget = Budget(always=True, options=how)
    if stand_ins(request, plan) is not None:
        fewer = fewer_machines(request, plan)
        if fewer is None:
            return None
        return Followed(*on_fewer(fewer.request, plan, fewer.nodes, budget), fewer.grain)
    grain = whole().grain
    if grain.grant_hops <= (MOST_HOPS if setup.nodes is None else MANY_HOPS):
        return None
    request = _cut_as(request, grain)
    if shorter(request, plan, _job(request, plan), budget) is None:
        return None
    time_ps, (note,) = timed(request, plan, budget)
    return Followed(time_ps, note, grain)


def fewer_machines(request: Request, plan: NcclPlan | None) -> Fewer | None:
    """Return the runs on fewer nodes to extrapolate a request from; None if simulated in full.

    ``auto`` is extrapolated above `MANY_HOPS`; the granularities `MANY`, for many runs at once and for composed steps,
    wherever fewer nodes can represent all and the network does not taper with more nodes; ``packet`` and given
    burst sizes never.
    """
    nodes = stand_ins(request, plan)
    if nodes is None or request.granularity not in ("auto", *MANY):
        return None
    if request.granularity in MANY and not never_tapers(request.setup.fabric):
        return None
    part, part_plan = longest_run(request, plan, nodes[1])
    grain = _job(part, part_plan).grain
    # The traffic per rank is proportional to the size.
    share = part.setup.num_ranks * part.size_bytes / request.setup.num_ranks / request.size_bytes
    if request.granularity == "auto" and grain.least_hops / share <= MANY_HOPS:
        return None
    return Fewer(_cut_as(request, grain), nodes, grain)


def _cut_as(request: Request, grain: Grain) -> Request:
    """Return a request in bursts of one size.

    Runs of equal granularity differ only in nodes and size.
    """
    return replace(request, granularity="packet" if grain.exact else grain.burst_bytes[1])


def stood_for(plan: Plan, options: RunOptions, whole: Callable[[], Job]) -> Result | None:
    """Return the extrapolated result of a planned run; None if it is simulated in full.

    Parameters
    ----------
    whole : callable
        Prepares the complete run, as for `followed_time`.
    """
    choice = plan.choice
    if choice is None or options.trace_out is not None or plan.options.verify:
        return None
    if choice.request.operation in OVERLAPPING or choice.kernel is not None:
        return None
    began_s = time.perf_counter()
    result = followed_time(choice.request, choice.plan, whole, options)
    if result is None:
        return None
    call = _call(choice)
    return Result(
        time_ps=result.time_ps,
        wall_s=time.perf_counter() - began_s,
        fingerprint=0,
        provenance=_provenance(choice, options, result),
        wires=NO_WIRES,
        tasks=Tasks([], NOTHING, NOTHING),
        bins=BinRecorder(0, 0, 2).bins(),
        call=call,
        followed=result.note,
        judge=partial(_judged, expected_of(plan, call.algorithm)),
    )


NOTHING = np.empty(0, np.int64)
NO_WIRES = Wires([], [], np.empty(0), np.empty(0, bool), np.empty(0, WIRE_COUNTERS))


def _judged(expected: Expected, result: Result) -> Verdict:
    """Return the verdict on a run with a known time only."""
    return replace(without_path(result, "only the time was found"), expected=expected.text())


def _job(request: Request, plan: NcclPlan | None) -> Job:
    return job_of(request.of(stream(request, plan)), BRIEF)


def _call(choice: NcclChoice) -> Call:
    request, way = choice.request, way_of(choice.comm, choice.plan)
    root = 0 if request.root is None else request.root
    plan = choice.plan
    names = ("p2p", "simple") if plan is None else _own_names(plan)
    return Call(
        *(request.operation, *names, request.dtype, request.size_bytes),
        choice.comm.group.num_ranks,
        way.channels,
        root,
    )


def _own_names(plan: NcclPlan) -> tuple[str, str]:
    return plan.selection.algorithm.own, plan.selection.protocol.own


def _provenance(choice: NcclChoice, options: RunOptions, followed: Followed) -> Provenance:
    request, fabric = choice.request, choice.request.setup.fabric
    return Provenance(
        fabric=fabric.name,
        fabric_text=fabric.source_text,
        schedule_text="",
        read_files=fabric.source_files,
        engine=request.engine,
        granularity=str(request.granularity),
        granularity_note=followed.words,
        burst_packets=followed.grain.burst,
        seed=request.seed,
        version=version(),
        command=options.command,
        notes=(*choice.comm.notes, *choice.notes),
        error_bound=FOLLOWED_ERROR,
        around=choice.around,
    )
