"""How long NCCL's kernel takes for a collective: simulated, where it must be on fewer machines.

**Pipelines.** In a broadcast or reduce the first ranks are done long before the last, and nccl-tests waits only after
all iterations, so it sees how far apart iterations are and not how long one takes. Some are simulated in a row.

**Fewer machines.** Beyond `MOST_RANKS` ranks runs on fewer machines stand for it (`clusim.nccltests.scaling`).

**Smaller sizes.** Large sizes are long streams of equal chunks. Where a run would take more than `MOST_BURSTS`,
two smaller sizes are simulated with the same chunks, and the line through them is followed in the size.

**Communicators beside each other** (`Setup.beside`) do the same at the same time, with the plan of the first; the
time is that of all of them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from clusim.errors import InputError
from clusim.lowering import EXACT_HOPS, QUICK, QUICK_HOPS
from clusim.nccl import NcclPlan, programs
from clusim.nccl.calls.choice import choose, way_of
from clusim.nccl.calls.launch import Host, host_of
from clusim.nccltests.known import BRIEF, time_of
from clusim.nccltests.scaling import anchor_nodes, followed, recut
from clusim.run.job import Job, job_of
from clusim.run.plan import OVERLAPPING, InPlace, moved_of, nccl_program, symmetric
from clusim.run.request import Request
from clusim.run.setup import Setup
from clusim.run.simulate import result_of
from clusim.schedule import Schedule
from clusim.schedule.builder import ProgramBuilder, Site
from clusim.schedule.dtypes import element

__all__ = ["FOLLOWED", "PerfKernel", "kernel", "program"]

MOST_RANKS = 32
"""Ranks up to which a communicator is simulated whole."""

MOST_MESSAGING = 64
"""The same of sends and receives: on fewer machines their CTAs bound them, on more their adapters."""

MOST_BURSTS = EXACT_HOPS
"""Hops of bursts beyond which long streams are simulated shorter: what takes no more is as `clusim run` has it."""

VERIFY_BYTES = 8 << 20
"""Bytes of all ranks together up to which data are verified on request."""


FOLLOWED = "from "
"""How notes begin that say from which runs a time was followed."""

ITERATIONS = 3
"""Iterations of these that are simulated one behind the other."""


@dataclass(frozen=True, slots=True)
class PerfKernel:
    """A kernel's time and what ran.

    Attributes
    ----------
    algorithm, protocol : str
        As NCCL names them; ``P2P`` for sends and receives.
    notes : tuple of str
        What was done instead of simulating what NCCL would run.
    wrong : int or None
        1 if data came out wrong, None if they were not verified.
    host : Host or None
        What launching it depends on.
    """

    time_ps: int
    algorithm: str
    protocol: str
    channels: int
    notes: tuple[str, ...] = ()
    wrong: int | None = None
    host: Host | None = None

    @property
    def followed(self) -> bool:
        """Whether the time was followed along a line from other runs."""
        return any(note.startswith(FOLLOWED) for note in self.notes)


def kernel(request: Request) -> PerfKernel:
    """Return the time of the kernel of one collective, as NCCL runs it or by an algorithm that is named."""
    if request.algorithm not in ("", "nccl"):
        return _named(request)
    setup, operation = request.setup, request.operation
    comm = setup.comm
    in_place = symmetric(request, comm, operation, request.size_bytes)
    if in_place is not None and in_place.algorithm:
        return _in_place(request, in_place)
    choice = choose(
        *(comm, operation, request.size_bytes),
        element_bytes=element(request.dtype).size_bytes,
        wanted=request.wanted,
    )
    told = "" if in_place is None else in_place.note
    plan, notes = choice.plan, tuple(note for note in (choice.note, told) if note)
    wrong = None
    # Faults are on certain machines, so that fewer machines do not stand for all.
    most = MOST_MESSAGING if plan is None else MOST_RANKS
    large = comm.group.num_ranks > most and not setup.broken.faults
    nodes = anchor_nodes(comm, plan, most)
    if large and comm.group.num_nodes > nodes[1]:
        time_ps, note = followed(request, plan, nodes, lambda *run: _timed(*run)[0])
        notes = (*notes, note)
    elif request.verify and request.size_bytes * comm.group.num_ranks <= VERIFY_BYTES:
        result = result_of(request.of(program(request, plan)).verified(), BRIEF)
        time_ps, wrong = result.time_ps, int(result.verified is False)
        if request.operation in OVERLAPPING:
            time_ps = _timed(request, plan)[0]
    else:
        time_ps, more = _timed(request, plan)
        notes = (*notes, *more)
    return PerfKernel(time_ps, *way_of(comm, plan), notes, wrong, host_of(comm))


def _in_place(request: Request, kernel: InPlace) -> PerfKernel:
    """Return the time of a kernel for symmetric memory."""
    own = request.of(kernel.schedule(request))
    small = request.size_bytes * request.setup.comm.group.num_ranks <= VERIFY_BYTES
    result = result_of(own.verified() if request.verify and small else own, BRIEF)
    wrong = int(result.verified is False) if request.verify and small else None
    notes = (
        kernel.note,
        *_grain_notes(result.provenance.granularity_note, result.provenance.error_bound),
    )
    ran = kernel.algorithm, kernel.protocol, kernel.channels
    return PerfKernel(result.time_ps, *ran, notes, wrong, host_of(request.setup.comm))


def _named(request: Request) -> PerfKernel:
    """Return the time of a kernel that is not NCCL's."""
    result = result_of(request, BRIEF)
    call = result.call
    protocol = call.protocol if call is not None else ""
    notes = _grain_notes(result.provenance.granularity_note, result.provenance.error_bound)
    return PerfKernel(result.time_ps, request.algorithm, protocol, 0, notes)


def _grain_notes(note: str, bound: float | None) -> tuple[str, ...]:
    """Return what must be said of how finely a kernel was simulated: nothing if it was exact."""
    return () if bound == 0 else (note,)


def program(request: Request, plan: NcclPlan | None) -> Schedule:
    """Return the program of one collective."""
    setup = request.setup
    if request.operation == "hypercube":
        return _hypercube(setup, request.size_bytes)
    return nccl_program(request, setup.comm, request.operation, request.size_bytes, plan)


def _hypercube(setup: Setup, size_bytes: int) -> Schedule:
    """Return the grouped exchanges of nccl-tests' hypercube: in each, a rank swaps all it has with one further away."""
    comm = setup.comm
    count = comm.group.num_ranks
    if count & (count - 1):
        raise InputError(f"hypercube: {count} ranks; their number must be a power of two")
    builder = ProgramBuilder(setup.fabric.num_ranks, f"hypercube {size_bytes} B on {count} ranks")
    block = max(1, size_bytes // count)
    after: list[tuple[int, ...]] | None = None
    mask = 1
    while mask < count:
        swaps = [(rank, rank ^ mask, block * mask) for rank in range(count)]
        tasks = programs.emit_messages(Site(builder, after=after), setup.known, comm, swaps)
        after = [(task,) for task in tasks]
        mask *= 2
    return builder.build()


_TIMED: dict[tuple[object, ...], tuple[int, tuple[str, ...]]] = {}
"""What this process has simulated of many runs at once: curves share runs on fewer machines."""


def _timed(request: Request, plan: NcclPlan | None) -> tuple[int, tuple[str, ...]]:
    """Return the time [ps], simulated or, of a long stream, followed from shorter ones; and what was done."""
    if request.granularity != QUICK:
        return _stream_time(request, plan)
    shown = way_of(request.setup.comm, plan)
    key = (request, shown) if plan is None else (request, shown, plan.chunks, plan.parts)
    if key not in _TIMED:
        _TIMED[key] = _stream_time(request, plan)
    return _TIMED[key]


def _stream_time(request: Request, plan: NcclPlan | None) -> tuple[int, tuple[str, ...]]:
    setup, size_bytes = request.setup, request.size_bytes
    job = job_of(request.of(_stream(request, plan, 1)), BRIEF)
    bursts = job.grain.grant_hops
    notes = _grain_notes(job.grain.describe(), job.grain.error_bound)
    quick = request.granularity == QUICK
    most = QUICK_HOPS if quick else MOST_BURSTS
    filling = programs.filling_bytes(setup.known, setup.comm, plan)
    small = max(size_bytes * most // (2 * bursts + 1), filling)
    # A power of two, so that many sizes follow the same two.
    small = 1 << small.bit_length() - 1 if quick else small // 4096 * 4096
    large = 2 * small
    followed = quick or request.granularity == "auto"
    if not followed or bursts <= most or 2 * large > size_bytes:
        return _per_iteration(request, plan, job), notes
    times = [_anchor(request, plan, size) for size in (small, large)]
    time_ps = times[1] + (times[1] - times[0]) * (size_bytes - large) // (large - small)
    return time_ps, (f"{FOLLOWED}two smaller sizes, linear in the size",)


def _stream(request: Request, plan: NcclPlan | None, count: int) -> Schedule:
    """Return the program of so many iterations of a collective, one behind the other."""
    setup, operation, size_bytes = request.setup, request.operation, request.size_bytes
    if count == 1 and not setup.beside:
        return program(request, plan)
    builder = ProgramBuilder(setup.fabric.num_ranks, f"{count} x {operation} {size_bytes} B")
    for number, own in enumerate(setup.together):
        moved = moved_of(replace(request, setup=own), operation, size_bytes)
        for _ in range(count):
            programs.emit(Site(builder, f"comm{number}"), setup.known, own.comm, moved, plan)
    return builder.build()


def _per_iteration(request: Request, plan: NcclPlan | None, job: Job) -> int:
    """Return the time of a kernel; of operations whose ranks go on when they are done, of every further iteration."""
    if request.operation not in OVERLAPPING:
        return time_of(job)
    more = job_of(request.of(_stream(request, plan, ITERATIONS)), BRIEF)
    if job.grain.exact and not more.grain.exact:
        # Both are cut alike, so that their difference is one of time.
        request = replace(request, granularity=more.grain.burst_bytes[1])
        job = job_of(request.of(_stream(request, plan, 1)), BRIEF)
    return max(1, (time_of(more) - time_of(job)) // (ITERATIONS - 1))


_ANCHORS: dict[tuple[object, ...], int] = {}
"""Times of anchors this process has simulated already: curves share them."""


def _anchor(request: Request, plan: NcclPlan | None, size_bytes: int) -> int:
    own = replace(request, size_bytes=size_bytes)
    if plan is None:
        setup = request.setup
        each = 1 if request.operation == "sendrecv" else setup.num_ranks
        cut = programs.message_class(setup.comm, setup.known, request.size_bytes // each)
        own = replace(own, setup=setup.cut_for(cut))
    chunk = 0 if plan is None else plan.chunks.chunk_bytes
    shown = *way_of(request.setup.comm, plan), chunk
    if (own, shown) not in _ANCHORS:
        shorter = None if plan is None else recut(request.setup.comm, plan, size_bytes)
        job = job_of(own.of(_stream(own, shorter, 1)), BRIEF)
        _ANCHORS[own, shown] = _per_iteration(own, shorter, job)
    return _ANCHORS[own, shown]
