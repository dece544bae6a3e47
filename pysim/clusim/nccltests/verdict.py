"""Verdict on the kernel of one row of nccl-tests, simulated in full for it."""

from __future__ import annotations

from clusim.nccl.calls.choice import choose
from clusim.results.diagnosis import Verdict
from clusim.schedule.dtypes import element
from clusim.simulation.api import result_of
from clusim.simulation.extrapolate_bytes import program
from clusim.simulation.plan import symmetric
from clusim.simulation.request import Request, ScheduleRequest

MOST_RANKS = 64
"""Maximum ranks of a run that is simulated in full for a verdict."""


def row_verdict(case: Request) -> Verdict:
    """Return the verdict on a row's kernel, simulated in full, without its expected error."""
    if case.setup.num_ranks > MOST_RANKS:
        return Verdict(0, (), basis=f"more than {MOST_RANKS} ranks, which are not taken apart")
    return result_of(whole(case)).verdict


def whole(case: Request) -> ScheduleRequest:
    """Return the complete run of a kernel, without extrapolation."""
    comm = case.setup.comm
    in_place = symmetric(case, comm, case.operation, case.size_bytes)
    if in_place is not None and in_place.algorithm:
        return case.of(in_place.schedule(case))
    choice = choose(
        *(comm, case.operation, case.size_bytes),
        element_bytes=element(case.dtype).size_bytes,
        wanted=case.wanted,
    )
    return case.of(program(case, choice.plan))
