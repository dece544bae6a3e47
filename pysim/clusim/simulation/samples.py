"""Samples: simulated runs of a communication phase, each simulated once; and the cache of simulated results.

**Cache.** Runs with images that are equal, byte for byte, are simulated once. Curves request the same run in several
forms: a size from which others are extrapolated, two nodes from which both eight and sixteen are extrapolated,
an algorithm that is forced or chosen by NCCL. Their requests differ, their images do not. The laws of a run are
checked when it is simulated.

**Pipelines.** In a broadcast or reduce the first ranks finish long before the last, and nccl-tests waits only after
all iterations: it measures the interval between iterations, and once the remaining time of each rank in its last
one. `ITERATIONS` consecutive iterations are simulated for the interval, and one for the ends of the ranks.

**Concurrent communicators** (`Setup.beside`) run the same operation at the same time, with the plan of the first; the
time is until all of them end.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from clusim.base.kept import SampleCache
from clusim.base.records import dataclass
from clusim.nccl import programs
from clusim.nccl.communicator import NcclPlan
from clusim.results.result import Result
from clusim.schedule import Schedule
from clusim.schedule.builder import ProgramBuilder, Site
from clusim.schedule.shapes import Shape
from clusim.simulation.job import Job, RunOptions, run_job
from clusim.simulation.nccl_choice import OVERLAPPING, moved_of, nccl_program
from clusim.simulation.plan import named_schedule
from clusim.simulation.preparation import job_of
from clusim.simulation.request import Request

TIMES = SampleCache(None)
"""End times of the runs of this process [ps], by the digest of the image and the engine."""

BRIEF = RunOptions(histories=False)
"""Options for runs that only return a time."""

LOOP_BINS = 128
"""Time bins of a run whose loops are timed."""

STEADY, ENDING = 0.5, 0.1
"""Parts of the bytes of a long stream before its loops need equal times, and in which ranks end.

8 GiB by NVLS on 8 GPUs are then 0.1% (DGX H100) and 0.2% (HGX B200) longer than in full. Extrapolated from two sizes
they were 0.5% shorter and 4.4% longer.
"""

ITERATIONS = 3
"""Consecutive iterations that are simulated for overlapping operations."""


@dataclass(frozen=True, slots=True)
class Sample:
    """Time of a collective.

    Attributes
    ----------
    time_ps : int
        Its time, or the interval between overlapping iterations [ps].
    notes : tuple of str
        Notes on granularity or extrapolation; empty if exact.
    lags_ps : tuple of int
        If iterations overlap, the end of every rank in the first, after this interval [ps].
    """

    time_ps: int
    notes: tuple[str, ...] = ()
    lags_ps: tuple[int, ...] = ()

    @classmethod
    def overlapping(
        cls, ends_ps: Sequence[int], all_ps: int, notes: tuple[str, ...] = ()
    ) -> Sample:
        """Return the sample of the ends of the ranks in one iteration and the time of `ITERATIONS` [ps]."""
        each_ps = max(1, (all_ps - max(ends_ps)) // (ITERATIONS - 1))
        return cls(each_ps, notes, tuple(end_ps - each_ps for end_ps in ends_ps))


def time_of(job: Job, options: RunOptions = BRIEF) -> int:
    """Return the end time of a job [ps], simulated unless this process has run an equal one.

    Raises
    ------
    TimeLimitReached
        The wall-clock limit of `options` was reached.
    """
    question = job.image.digest(), job.provenance.engine
    time_ps: int | None = TIMES.get(question)
    if time_ps is None:
        time_ps = _run_again(job, options).time_ps
        TIMES.put(question, time_ps)
    return time_ps


def ends_of(job: Job, options: RunOptions = BRIEF) -> list[int]:
    """Return the end times of a job's tasks [ps], as `time_of`."""
    question = job.image.digest(), job.provenance.engine, "tasks"
    ends_ps: list[int] | None = TIMES.get(question)
    if ends_ps is None:
        ends_ps = _run_again(job, options).tasks.end_ps.tolist()
        TIMES.put(question, ends_ps)
    return ends_ps


def loop_of(
    job: Job, share: float, options: RunOptions = BRIEF
) -> tuple[int, float]:
    """Return the end time of a long stream, and the time of one of its loops [ps].

    Complete loops are timed, from the middle of the bytes on wires on, before the first ranks end.

    Parameters
    ----------
    share : float
        Share of a loop in the stream, at most 1 - `STEADY` - `ENDING`.
    """
    question = job.image.digest(), job.provenance.engine, "loop", share
    answer: list[float] | None = TIMES.get(question)
    if answer is None:
        result = _run_again(job, replace(options, histories=True, bins=LOOP_BINS))
        moved = np.cumsum(result.bins.wires["bytes"].sum(axis=0), dtype=np.float64)
        loops = max(1, int((1 - STEADY - ENDING) / share + 1e-9))
        parts = np.array((STEADY, STEADY + loops * share)) * moved[-1]
        low, high = np.interp(parts, [0, *moved], result.bins.edge_ps)
        answer = [result.time_ps, float(high - low) / loops]
        TIMES.put(question, answer)
    return int(answer[0]), answer[1]


def _run_again(job: Job, options: RunOptions) -> Result:
    options.watch.begins(f"{job.provenance.fabric} is simulated for extrapolation")
    result = run_job(job, options)
    if result.unfinished is not None:
        raise result.unfinished.limit_error(
            f"the run on {job.provenance.fabric} for extrapolation"
        )
    return result


def sample(
    request: Request,
    plan: NcclPlan | Shape | None,
    job: Job,
    options: RunOptions = BRIEF,
) -> Sample:
    """Return the kernel time of a plan, run as `job`; if iterations of NCCL's overlap, their interval."""
    notes = grain_notes(job.grain.describe(), job.grain.error_bound)
    if request.operation not in OVERLAPPING or isinstance(plan, Shape):
        return Sample(time_of(job, options), notes)
    more = phase(request, plan, ITERATIONS)
    if job.grain.exact and not more.grain.exact:
        # Equal granularity: the difference of the two runs is then one of time.
        request = replace(request, granularity=more.grain.burst_bytes[1])
        job = phase(request, plan)
    return Sample.overlapping(ends_of(job, options), time_of(more, options), notes)


def grain_notes(note: str, bound: float | None) -> tuple[str, ...]:
    """Return the note on a kernel's granularity: empty if it was exact."""
    return () if bound == 0 else (note,)


def phase(request: Request, plan: NcclPlan | Shape | None, count: int = 1) -> Job:
    """Return the run of `count` consecutive iterations of a collective, only for its time."""
    return job_of(request.of(stream(request, plan, count)), BRIEF)


def stream(
    request: Request, plan: NcclPlan | Shape | None, count: int = 1
) -> Schedule:
    """Return the schedule of `count` consecutive iterations of a collective, of a named algorithm one."""
    if isinstance(plan, Shape):
        return named_schedule(request, request.setup.known, plan)
    setup, operation, size_bytes = (
        request.setup,
        request.operation,
        request.size_bytes,
    )
    if count == 1 and not setup.beside:
        return nccl_program(request, setup.comm, plan)
    builder = ProgramBuilder(
        setup.fabric.num_ranks, f"{count} x {operation} {size_bytes} B"
    )
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
            tasks += programs.emit(
                site, request.setup.known, member.comm, moved, plan
            )
    return tasks
