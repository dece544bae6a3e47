"""Collectives on so many machines that runs on fewer, and of fewer bytes, stand for them.

What NCCL runs is simulated whole as long as that takes no more than `MOST_HOPS` hops of bursts. Beyond, its time is
found as nccl-tests finds it (`clusim.run.streams`): from two numbers of machines, and for long streams from two sizes,
with the algorithm, protocol, channels and chunks of the whole. What wires do is then not known of the whole, and not
shown. **Not followed**, but simulated whole: what is traced or verified, what faults break, bursts of a size that was
asked for, algorithms that are not NCCL's, and operations whose first ranks are done long before the last.
"""

from __future__ import annotations

import time
from dataclasses import replace
from functools import partial

import numpy as np

from clusim.analysis.judge import without_path
from clusim.bins import BinRecorder
from clusim.fabric import Fabric
from clusim.lowering import LARGE, LARGE_HOPS, Grain
from clusim.nccl import NcclPlan
from clusim.nccl.calls.choice import way_of
from clusim.outcome import WIRE_COUNTERS
from clusim.result import Call, Provenance, Result, Tasks, Wires
from clusim.run.expected import Expected, expected_of
from clusim.run.job import Job, RunOptions, job_of
from clusim.run.known import BRIEF
from clusim.run.plan import OVERLAPPING, NcclChoice, nccl_choice
from clusim.run.request import Request
from clusim.run.scaling import longest_run
from clusim.run.streams import Budget, on_fewer, program, shorter, stand_ins, timed
from clusim.verdict import Verdict
from clusim.version import version

__all__ = ["MOST_HOPS", "stood_for"]

MOST_HOPS = 32_000_000
"""Hops of bursts beyond which a run is followed from others: some ten seconds."""

FOLLOWED_ERROR = 0.12
"""Bound on the error of a time that other runs stand for.

**Assumed**, from 4.6% at most on 16 DGX H100 and 9% on 32 p5en (``docs/granularity.md``); more were not run whole.
"""


def stood_for(request: Request, options: RunOptions) -> Result | None:
    """Return the result of a request that other runs stand for; None where it is simulated whole."""
    choice = _eligible(request, options)
    if choice is None:
        return None
    own = replace(choice.request, size_bytes=choice.size_bytes, operation=choice.operation)
    nodes = stand_ins(own, choice.plan)
    options.watch.begins("the work is estimated")
    part = (own, choice.plan) if nodes is None else longest_run(own, choice.plan, nodes[1])
    if _whole_hops(own, *part) <= MOST_HOPS:
        return None
    began_s = time.perf_counter()
    grain = _job(replace(part[0], granularity=LARGE), part[1]).grain
    # All runs are cut alike, so that their differences are those of machines and sizes.
    own = replace(own, granularity="packet" if grain.exact else grain.burst_bytes[1])
    how = replace(BRIEF, watch=options.watch, progress=options.progress, threads=options.threads)
    budget = Budget(LARGE_HOPS, always=True, options=how)
    if nodes is not None:
        time_ps, note = on_fewer(own, choice.plan, nodes, budget)
    elif shorter(own, choice.plan, _job(own, choice.plan), budget) is None:
        return None
    else:
        time_ps, (note,) = timed(own, choice.plan, budget)
    told = replace(_provenance(request, options, choice, grain), granularity_note=_words(note))
    call = _call(choice)
    return Result(
        time_ps=time_ps,
        wall_s=time.perf_counter() - began_s,
        fingerprint=0,
        provenance=told,
        wires=NO_WIRES,
        tasks=Tasks([], NOTHING, NOTHING),
        bins=BinRecorder(0, 0, 2).bins(),
        call=call,
        followed=note,
        judge=partial(_judged, expected_of(request, call.algorithm)),
    )


NOTHING = np.empty(0, np.int64)
NO_WIRES = Wires([], [], np.empty(0), np.empty(0, bool), np.empty(0, WIRE_COUNTERS))


def _judged(expected: Expected, result: Result) -> Verdict:
    """Return the verdict on a run of which nothing but the time is known."""
    return replace(without_path(result, "only the time was found"), expected=expected.text())


def _words(note: str) -> str:
    return f"{note}; within {FOLLOWED_ERROR:.0%} of the whole in bursts"


def _eligible(request: Request, options: RunOptions) -> NcclChoice | None:
    """Return what NCCL runs for a request of which other runs can stand for the whole."""
    setup = request.setup
    watched = options.trace_out is not None or request.verify or request.engine != "c"
    if watched or request.granularity != "auto" or setup.broken.faults:
        return None
    if isinstance(setup.topology, Fabric) or setup.nodes is None or setup.ranks is not None:
        return None
    choice = nccl_choice(request)
    if choice is None or choice.operation in OVERLAPPING:
        return None
    in_place = choice.in_place is not None and choice.in_place.algorithm
    return None if in_place else choice


def _job(request: Request, plan: NcclPlan | None) -> Job:
    return job_of(request.of(program(request, plan)), BRIEF)


def _whole_hops(whole: Request, part: Request, plan: NcclPlan | None) -> float:
    """Return the hops of bursts of the whole, from those of a part: every rank moves as much for every byte."""
    share = part.setup.num_ranks * part.size_bytes / (whole.setup.num_ranks * whole.size_bytes)
    return _job(part, plan).grain.least_hops / share


def _call(choice: NcclChoice) -> Call:
    request, way = choice.request, way_of(choice.comm, choice.plan)
    root = 0 if request.root is None else request.root
    plan = choice.plan
    names = ("p2p", "simple") if plan is None else _own_names(plan)
    return Call(
        *(choice.operation, *names, request.dtype, choice.size_bytes),
        choice.comm.group.num_ranks,
        way.channels,
        root,
    )


def _own_names(plan: NcclPlan) -> tuple[str, str]:
    return plan.selection.algorithm.own, plan.selection.protocol.own


def _provenance(
    request: Request, options: RunOptions, choice: NcclChoice, grain: Grain
) -> Provenance:
    fabric = request.setup.fabric
    return Provenance(
        fabric=fabric.name,
        fabric_text=fabric.source_text,
        schedule_text="",
        read_files=fabric.source_files,
        engine=request.engine,
        granularity=str(request.granularity),
        granularity_note="",
        burst_packets=grain.burst,
        seed=request.seed,
        version=version(),
        command=options.command,
        notes=choice.notes,
        error_bound=FOLLOWED_ERROR,
        around=choice.around,
    )
