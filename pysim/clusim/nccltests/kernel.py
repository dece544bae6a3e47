"""Kernel time of a NCCL collective, as nccl-tests measures it.

In bursts of ``auto`` the time is that of `clusim run`, which also decides what other runs stand for
(`clusim.simulation.approximate`), but for operations whose iterations overlap. Otherwise, for many runs at once, fewer
machines stand for all communicators of more than `clusim.simulation.extrapolate_bytes.MOST_RANKS` ranks.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from clusim.nccl import NcclPlan
from clusim.nccl.calls.choice import choose, way_of
from clusim.nccl.calls.launch import Host, host_of
from clusim.schedule.dtypes import element
from clusim.simulation.approximate import followed_time
from clusim.simulation.cache import BRIEF
from clusim.simulation.extrapolate_bytes import (
    FOLLOWED,
    MOST_RANKS,
    grain_notes,
    on_fewer,
    stand_ins,
    stream,
    timed,
)
from clusim.simulation.job import job_of
from clusim.simulation.plan import OVERLAPPING, SymmetricChoice, symmetric
from clusim.simulation.request import Request
from clusim.simulation.simulate import result_of

VERIFY_BYTES = 8 << 20
"""Bytes of all ranks together up to which data are verified on request."""


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
        """True if the time was followed along a line from other runs."""
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
    wrong, ranks = None, comm.group.num_ranks
    if request.verify and ranks <= MOST_RANKS and request.size_bytes * ranks <= VERIFY_BYTES:
        result = result_of(request.of(stream(request, plan)).verified(), BRIEF)
        time_ps, wrong = result.time_ps, int(result.verified is False)
        if request.operation in OVERLAPPING:
            time_ps = timed(request, plan)[0]
    else:
        time_ps, more = _time(request, plan)
        notes = (*notes, *more)
    return PerfKernel(time_ps, *way_of(comm, plan), notes, wrong, host_of(comm))


def _time(request: Request, plan: NcclPlan | None) -> tuple[int, tuple[str, ...]]:
    """Return the time of a plan of NCCL [ps], and what must be said of how it was found."""
    if request.granularity == "auto":
        whole = cache(lambda: job_of(request.of(stream(request, plan)), BRIEF))
        found = followed_time(request, plan, whole)
        return timed(request, plan) if found is None else (found.time_ps, (found.words,))
    nodes = stand_ins(request, plan)
    if nodes is None:
        return timed(request, plan)
    time_ps, note = on_fewer(request, plan, nodes)
    return time_ps, (note,)


def _in_place(request: Request, kernel: SymmetricChoice) -> PerfKernel:
    """Return the time of a kernel for symmetric memory."""
    own = request.of(kernel.schedule(request))
    small = request.size_bytes * request.setup.comm.group.num_ranks <= VERIFY_BYTES
    result = result_of(own.verified() if request.verify and small else own, BRIEF)
    wrong = int(result.verified is False) if request.verify and small else None
    notes = (
        kernel.note,
        *grain_notes(result.provenance.granularity_note, result.provenance.error_bound),
    )
    ran = kernel.algorithm, kernel.protocol, kernel.channels
    return PerfKernel(result.time_ps, *ran, notes, wrong, host_of(request.setup.comm))


def _named(request: Request) -> PerfKernel:
    """Return the time of a kernel that is not NCCL's."""
    result = result_of(request, BRIEF)
    call = result.call
    protocol = call.protocol if call is not None else ""
    notes = grain_notes(result.provenance.granularity_note, result.provenance.error_bound)
    return PerfKernel(result.time_ps, request.algorithm, protocol, 0, notes)
