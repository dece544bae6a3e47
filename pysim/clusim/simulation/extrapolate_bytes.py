"""Time of a NCCL plan: simulated, or extrapolated from fewer nodes and smaller sizes.

**Pipelines.** In a broadcast or reduce the first ranks finish long before the last, and nccl-tests waits only after
all iterations: it measures the interval between iterations, not the duration of one. `ITERATIONS` consecutive
iterations are simulated.

**Fewer nodes.** Beyond `MOST_RANKS` ranks the time is extrapolated from fewer nodes
(`clusim.simulation.extrapolate_machines`).

**Smaller sizes.** Large sizes are long streams of equal chunks. Two smaller sizes are simulated with the same chunks,
and the time is extrapolated linearly in the size.

`clusim.simulation.approximate` decides when to extrapolate runs with granularity ``auto``; ``quick`` always does.

**Concurrent communicators** (`Setup.beside`) run the same operation at the same time, with the plan of the first; the
time is until all of them end.

**Cache.** Runs with images that are equal, byte for byte, are simulated once. Curves request the same run in several
forms: a size from which larger ones are extrapolated, two nodes from which both eight and sixteen are extrapolated,
an algorithm that is forced or chosen by NCCL. Their requests differ, their images do not. The laws of a run are
checked when it is simulated.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from clusim.lowering import QUICK, QUICK_HOPS
from clusim.nccl import NcclPlan, programs
from clusim.nccl.choice import way_of
from clusim.schedule import Schedule
from clusim.schedule.builder import ProgramBuilder, Site
from clusim.simulation.extrapolate_machines import anchor_nodes, followed, recut
from clusim.simulation.job import Job, RunOptions, job_of, run_job
from clusim.simulation.plan import OVERLAPPING, moved_of, nccl_program
from clusim.simulation.request import Request
from clusim.topology import Fabric

BRIEF = RunOptions(histories=False)
"""Options for runs that only return a time."""

Times = dict[tuple[bytes, str], int]
"""Digest of an image and name of the engine -> end of the run [ps]."""

_TIMES: Times = {}


def time_of(job: Job, options: RunOptions = BRIEF) -> int:
    """Return the end time of a job [ps], simulated unless this process has run an equal one.

    Raises
    ------
    TimeLimitReached
        The wall-clock limit of `options` was reached.
    """
    key = job.image.digest(), job.provenance.engine
    if key not in _TIMES:
        options.watch.begins(f"{job.provenance.fabric} is simulated for extrapolation")
        result = run_job(job, options)
        if result.unfinished is not None:
            raise result.unfinished.reached(f"the run on {job.provenance.fabric} for extrapolation")
        _TIMES[key] = result.time_ps
    return _TIMES[key]


def learn(times: Mapping[tuple[bytes, str], int]) -> None:
    """Add times that other processes found."""
    _TIMES.update(times)


def known_times() -> Times:
    """Return the cached times, in the order of their insertion."""
    return _TIMES


MOST_RANKS = 32
"""Ranks up to which a communicator is simulated in full."""

MOST_MESSAGING = 64
"""The same for sends and receives: CTAs limit them on fewer nodes, NICs on more."""

STREAM_HOPS = 8_000_000
"""Approximate burst-hops of the larger of the two sizes that are extrapolated to a longer stream: some five seconds.
"""

FOLLOWED = "from "
"""Prefix of notes on extrapolated times."""

ITERATIONS = 3
"""Consecutive iterations that are simulated for overlapping operations."""


@dataclass(frozen=True, slots=True)
class Budget:
    """Extent of extrapolation, and the observers of the runs.

    `always`: also extrapolate runs in bursts of a given size.
    """

    always: bool = False
    options: RunOptions = BRIEF


USUAL = Budget()


def grain_notes(note: str, bound: float | None) -> tuple[str, ...]:
    """Return the note on a kernel's granularity: empty if it was exact."""
    return () if bound == 0 else (note,)


def stand_ins(request: Request, plan: NcclPlan | None) -> tuple[int, int] | None:
    """Return the two node counts to extrapolate a request from; None if simulated in full."""
    setup, comm = request.setup, request.setup.comm
    # Given ranks and faults belong to certain nodes, which fewer nodes cannot represent.
    if isinstance(setup.topology, Fabric) or setup.nodes is None or setup.ranks is not None:
        return None
    most = MOST_MESSAGING if plan is None else MOST_RANKS
    if comm.group.num_ranks <= most or setup.broken.faults:
        return None
    nodes = anchor_nodes(comm, plan, most)
    return nodes if comm.group.num_nodes > nodes[1] else None


def on_fewer(
    request: Request, plan: NcclPlan | None, nodes: tuple[int, int], budget: Budget = USUAL
) -> tuple[int, str]:
    """Return the time [ps] extrapolated from runs on `nodes` nodes, and the method."""
    return followed(
        request, plan, nodes, lambda asked, part_plan: timed(asked, part_plan, budget)[0]
    )


_TIMED: dict[tuple[object, ...], tuple[int, tuple[str, ...]]] = {}
"""Cached runs of this process with ``quick``: curves share runs on fewer nodes."""


def timed(
    request: Request, plan: NcclPlan | None, budget: Budget = USUAL
) -> tuple[int, tuple[str, ...]]:
    """Return the time [ps], simulated or (long streams) extrapolated from two sizes; notes."""
    if request.granularity != QUICK:
        return _stream_time(request, plan, budget)
    shown = way_of(request.setup.comm, plan)
    key = (request, shown) if plan is None else (request, shown, plan.chunks, plan.parts)
    if key not in _TIMED:
        _TIMED[key] = _stream_time(request, plan, budget)
    return _TIMED[key]


def _stream_time(
    request: Request, plan: NcclPlan | None, budget: Budget
) -> tuple[int, tuple[str, ...]]:
    job = job_of(request.of(stream(request, plan, 1)), BRIEF)
    sizes = shorter(request, plan, job, budget)
    if sizes is None:
        notes = grain_notes(job.grain.describe(), job.grain.error_bound)
        return _per_iteration(request, plan, job, budget), notes
    small, large = sizes
    times = [_anchor(request, plan, size, budget) for size in sizes]
    rest = request.size_bytes - large
    time_ps = times[1] + (times[1] - times[0]) * rest // (large - small)
    return time_ps, (f"{FOLLOWED}two smaller sizes, linear in the size",)


def shorter(
    request: Request, plan: NcclPlan | None, job: Job, budget: Budget
) -> tuple[int, int] | None:
    """Return the two sizes [bytes] to extrapolate a long stream from, run as `job`.

    None if the stream is simulated in full.
    """
    setup, bursts = request.setup, job.grain.grant_hops
    quick = request.granularity == QUICK
    most = QUICK_HOPS if quick else STREAM_HOPS
    filling = programs.filling_bytes(setup.known, setup.comm, plan)
    small = max(request.size_bytes * most // (2 * bursts + 1), filling)
    # A power of two, so that many sizes share the same two runs.
    small = 1 << small.bit_length() - 1 if quick else small // 4096 * 4096
    if not (quick or budget.always) or bursts <= most or 4 * small > request.size_bytes:
        return None
    return small, 2 * small


def stream(request: Request, plan: NcclPlan | None, count: int = 1) -> Schedule:
    """Return the schedule of `count` consecutive iterations of a collective."""
    setup, operation, size_bytes = request.setup, request.operation, request.size_bytes
    if count == 1 and not setup.beside:
        return nccl_program(request, setup.comm, plan)
    builder = ProgramBuilder(setup.fabric.num_ranks, f"{count} x {operation} {size_bytes} B")
    emit_together(builder, request, plan, count)
    return builder.build()


def emit_together(
    builder: ProgramBuilder, request: Request, plan: NcclPlan | None, count: int = 1
) -> list[int]:
    """Append `count` iterations to every communicator of a request; return all their tasks."""
    tasks: list[int] = []
    for number, member in enumerate(request.setup.together):
        moved = moved_of(replace(request, setup=member))
        for _ in range(count):
            site = Site(builder, f"comm{number}")
            tasks += programs.emit(site, request.setup.known, member.comm, moved, plan)
    return tasks


def _per_iteration(request: Request, plan: NcclPlan | None, job: Job, budget: Budget) -> int:
    """Return the kernel time; for overlapping operations, the interval between iterations."""
    if request.operation not in OVERLAPPING:
        return time_of(job, budget.options)
    more = job_of(request.of(stream(request, plan, ITERATIONS)), BRIEF)
    if job.grain.exact and not more.grain.exact:
        # Equal granularity: the difference of the two runs is then one of time.
        request = replace(request, granularity=more.grain.burst_bytes[1])
        job = job_of(request.of(stream(request, plan, 1)), BRIEF)
    last_ps, first_ps = (time_of(each, budget.options) for each in (more, job))
    return max(1, (last_ps - first_ps) // (ITERATIONS - 1))


_ANCHORS: dict[tuple[object, ...], int] = {}
"""Cached times of runs at smaller sizes in this process: curves share them."""


def _anchor(request: Request, plan: NcclPlan | None, size_bytes: int, budget: Budget) -> int:
    anchor = replace(request, size_bytes=size_bytes)
    if plan is None:
        setup = request.setup
        each = 1 if request.operation == "sendrecv" else setup.num_ranks
        cut = programs.message_class(setup.comm, setup.known, request.size_bytes // each)
        anchor = replace(anchor, setup=setup.cut_for(cut))
    chunk = 0 if plan is None else plan.chunks.chunk_bytes
    shown = *way_of(request.setup.comm, plan), chunk
    if (anchor, shown) not in _ANCHORS:
        shorter = None if plan is None else recut(request.setup.comm, plan, size_bytes)
        job = job_of(anchor.of(stream(anchor, shorter, 1)), BRIEF)
        _ANCHORS[anchor, shown] = _per_iteration(anchor, shorter, job, budget)
    return _ANCHORS[anchor, shown]
