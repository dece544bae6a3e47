"""Times extrapolated from smaller runs (`clusim.simulation.anchors`), and the decision when to do so.

**When.** A collective with granularity ``auto``, NCCL's or a named algorithm, is simulated in full up to `MANY_HOPS`
burst-hops. Above that, it is extrapolated from fewer nodes, in bursts of one size: the burst size of ``auto`` for the
longest of these runs. Long streams, above `LONG_HOPS` packet-hops, are extrapolated from smaller sizes in the bursts of
the complete run. ``quick`` always extrapolates long streams, and above `MOST_RANKS` ranks from fewer nodes. Wire
statistics are then unknown and not shown. **Not extrapolated**, but simulated in full: runs with a trace, verification
or faults, algorithms without a known law, and NCCL's broadcast and reduce.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from clusim.engine.abi import WIRE_COUNTERS
from clusim.lowering import QUICK, Grain
from clusim.lowering.grain import COARSE, STEP, name_of
from clusim.nccl.choice import way_of
from clusim.results.bins import BinRecorder
from clusim.results.diagnosis import Verdict
from clusim.results.result import Result, Tasks, Wires
from clusim.results.resultjson import Call
from clusim.schedule.shapes import Shape
from clusim.simulation.anchors import cut_of, over_bytes, over_nodes, ranks_of
from clusim.simulation.expected import Expected, expected_of
from clusim.simulation.job import Job, RunOptions
from clusim.simulation.laws import Cut, Extrapolation, Steady
from clusim.simulation.nccl_choice import OVERLAPPING
from clusim.simulation.plan import Plan
from clusim.simulation.preparation import provenance_of
from clusim.simulation.request import Request
from clusim.simulation.samples import BRIEF, Sample, loop_of, phase, sample
from clusim.topology.check_flow import never_tapers

ERROR_LIMIT = 0.15
"""Error limit of an extrapolated time.

**Assumed**, above the largest errors found: 5.9% on 16 DGX H100, 9% on 32 p5en and 12.4% on 128 DGX H100
(``docs/accuracy-approximations.md``).
"""

MANY_HOPS = 32_000_000
"""Burst-hops from which a run is extrapolated: some seconds."""

LONG_HOPS = 1_000_000_000
"""Packet-hops from which a long stream is extrapolated: above, a complete run shows the same as a shorter one."""

LONG_BYTES = 1 << 35
"""Bytes of all ranks from which a stream may be long: `LONG_HOPS` or more on shipped systems."""

MANY = (QUICK, COARSE, STEP)
"""Granularities of many runs at once."""

_TIMED: dict[tuple[object, ...], Sample] = {}
"""Cached collectives of this process: curves share runs on fewer nodes and of smaller sizes."""


def timed(
    request: Request,
    plan: Cut,
    options: RunOptions = BRIEF,
    *,
    streams: bool | None = None,
) -> Sample:
    """Return the time of a collective on all its nodes.

    Parameters
    ----------
    streams : bool or None
        Whether long streams are extrapolated; None: with ``quick``.
    """
    if streams is None:
        streams = request.granularity == QUICK
    setup = request.setup
    cut: tuple[object, ...] = (plan,)
    if not isinstance(plan, Shape):
        chunks = () if plan is None else (plan.chunks, plan.parts)
        cut = way_of(setup.comm, plan), chunks
    # The fabric, because its file may have changed.
    key = request, setup.fabric, cut, streams
    if key not in _TIMED:
        job = phase(request, plan)
        shorter = (
            over_bytes(request, plan, job.grain.grant_hops) if streams else None
        )
        if shorter is None:
            _TIMED[key] = sample(request, plan, job, options)
        else:
            _TIMED[key] = _all_timed(shorter, options, streams=False)
    return _TIMED[key]


def _all_timed(
    found: Extrapolation, options: RunOptions, *, streams: bool | None
) -> Sample:
    """Return the time of the complete collective [ps], and the method; see `timed`."""
    if isinstance(found.law, Steady):
        ((part, plan),) = found.runs
        time_ps, note = found.of(
            loop_of(phase(part, plan), found.law.loop_bytes / found.law.at, options)
        )
        return Sample(time_ps, (note,))
    samples = [timed(*run, options, streams=streams) for run in found.runs]
    time_ps, note = found.of([one.time_ps for one in samples])
    return Sample(time_ps, (note,), _lags(found, [one.lags_ps for one in samples]))


def _lags(found: Extrapolation, lags_ps: Sequence[Sequence[int]]) -> tuple[int, ...]:
    """Return the extrapolated lags of ranks [ps]; of more nodes, at equal parts of the order of ranks."""
    count = max(map(len, lags_ps))
    if not count:
        return ()
    parts = np.linspace(0, 1, count)
    even = [
        np.interp(parts, np.linspace(0, 1, len(one)), one).tolist()
        for one in lags_ps
    ]
    return tuple(round(found.law.of(values)) for values in zip(*even, strict=True))


def kernel_time(request: Request, plan: Cut, options: RunOptions = BRIEF) -> Sample:
    """Return the time of a NCCL plan as nccl-tests measures it."""
    if request.granularity == "auto":
        time = extrapolated_time(
            request, plan, partial(phase, request, plan), options
        )
        if time is not None:
            result, _ = time
            return replace(result, notes=tuple(map(note_with_limit, result.notes)))
        return timed(request, plan, options)
    fewer = over_nodes(request, plan)
    if fewer is None:
        return timed(request, plan, options)
    return _all_timed(fewer, options, streams=None)


def extrapolated_time(
    request: Request,
    plan: Cut,
    whole: Callable[[], Job],
    options: RunOptions = BRIEF,
) -> tuple[Sample, Grain] | None:
    """Return the extrapolated time of a collective; None if it is simulated in full.

    Parameters
    ----------
    whole : callable
        Prepares the complete run; called only if it cannot be extrapolated from fewer nodes.

    Returns
    -------
    tuple of Sample and Grain
        The time with the method, and the granularity of the simulated runs.
    """
    setup = request.setup
    if request.granularity != "auto" or request.engine != "c" or setup.broken.faults:
        return None
    options.watch.begins("the work is estimated")
    how = replace(
        BRIEF,
        watch=options.watch,
        progress=options.progress,
        threads=options.threads,
    )
    nodes = over_nodes(request, plan)
    if nodes is not None:
        result = in_one_size(request, nodes)
        return (
            None
            if result is None
            else (_all_timed(result[0], how, streams=True), result[1])
        )
    grain = whole().grain
    if grain.packet_hops <= LONG_HOPS and grain.grant_hops <= MANY_HOPS:
        return None
    shorter = over_bytes(_cut_as(request, grain), plan, grain.grant_hops)
    return (
        None if shorter is None else (_all_timed(shorter, how, streams=False), grain)
    )


def note_with_limit(note: str) -> str:
    """Return a note on an extrapolation with its error limit."""
    return (
        f"{note}; error limit {ERROR_LIMIT:.0%}, against the complete run in bursts"
    )


def in_one_size(
    request: Request, nodes: Extrapolation
) -> tuple[Extrapolation, Grain] | None:
    """Return the extrapolation of a request in bursts of one size; None if it is simulated in full.

    ``auto`` is extrapolated above `MANY_HOPS`; the granularities `MANY`, for many runs at once and for composed steps,
    wherever the network does not taper with more nodes; ``packet`` and given burst sizes never.

    Parameters
    ----------
    nodes : Extrapolation
        As of `over_nodes`.

    Returns
    -------
    tuple of Extrapolation and Grain
        And the granularity of its runs: the requested one for the longest.
    """
    always = name_of(request.granularity) in MANY
    if request.granularity != "auto" and not (
        always and never_tapers(replace(request.setup, zones=None).fabric)
    ):
        return None
    part, plan = nodes.runs[-1]
    grain = phase(part, plan).grain
    # The traffic per rank is proportional to the size.
    ranks = ranks_of(part.setup, plan) / ranks_of(request.setup, plan)
    share = ranks * part.size_bytes / request.size_bytes
    if not always and grain.least_hops / share <= MANY_HOPS:
        return None
    runs = tuple((_cut_as(run, grain), run_plan) for run, run_plan in nodes.runs)
    return replace(nodes, runs=runs), grain


def in_shorter_streams(
    request: Request, plan: Cut
) -> tuple[Extrapolation, Grain] | None:
    """Return the extrapolation of a long stream from two sizes in its bursts; None if it is short.

    For runs beside kernels, in which loops cannot be seen.
    """
    if request.size_bytes * ranks_of(request.setup, plan) < LONG_BYTES:
        return None
    grain = phase(request, plan).grain
    bursts = grain.grant_hops
    shorter = over_bytes(_cut_as(request, grain), plan, bursts, linear=True)
    return None if shorter is None else (shorter, grain)


def _cut_as(request: Request, grain: Grain) -> Request:
    """Return a request in bursts of one size.

    Runs of equal granularity differ only in nodes and size.
    """
    return replace(
        request, granularity="packet" if grain.exact else grain.burst_bytes[1]
    )


def extrapolated_result(
    plan: Plan, options: RunOptions, whole: Callable[[], Job]
) -> Result | None:
    """Return the extrapolated result of a planned run; None if it is simulated in full.

    Parameters
    ----------
    whole : callable
        Prepares the complete run, as for `extrapolated_time`.
    """
    choice = plan.choice
    if options.trace_out is not None or plan.options.verify:
        return None
    if choice is not None and choice.request.operation in OVERLAPPING:
        return None
    run = cut_of(plan)
    if run is None:
        return None
    request, cut = run
    began_s = time.perf_counter()
    timed_result = extrapolated_time(request, cut, whole, options)
    if timed_result is None:
        return None
    (result, grain), call = timed_result, _call(request, cut)
    (note,) = result.notes
    provenance = provenance_of(
        request,
        grain,
        options,
        seed=request.seed,
        schedule_text="",
        notes=() if choice is None else (*choice.comm.notes, *choice.notes),
        around=None if choice is None else choice.around,
    )
    nothing = np.empty(0, np.int64)
    return Result(
        time_ps=result.time_ps,
        wall_s=time.perf_counter() - began_s,
        fingerprint=0,
        provenance=replace(
            provenance,
            granularity_note=note_with_limit(note),
            error_bound=ERROR_LIMIT,
        ),
        wires=Wires(
            [], [], np.empty(0), np.empty(0, bool), np.empty(0, WIRE_COUNTERS)
        ),
        tasks=Tasks([], nothing, nothing),
        bins=BinRecorder(0, 0, 2).bins(),
        call=call,
        followed=note,
        judge=partial(_verdict_of_time, expected_of(plan, call.algorithm)),
    )


def _verdict_of_time(expected: Expected, result: Result) -> Verdict:
    """Return the verdict on a run with a known time only."""
    why = "only the time was found"
    if "sizes" in result.followed:
        why += "; --granularity quick simulates in full"
    from clusim.analysis.judge import without_path

    return replace(without_path(result, why), expected=expected.text())


def _call(request: Request, cut: Cut) -> Call:
    if isinstance(cut, Shape):
        names, channels = (
            (request.algorithm, request.protocol),
            request.channels or 1,
        )
    else:
        names, channels = ("p2p", "simple"), way_of(request.setup.comm, cut).channels
        if cut is not None:
            names = cut.selection.algorithm.key, cut.selection.protocol.key
    return Call(
        request.operation,
        *names,
        request.dtype,
        request.size_bytes,
        ranks_of(request.setup, cut),
        channels,
        request.root or 0,
    )
