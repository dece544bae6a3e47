"""Kernel times of NCCL collectives as nccl-tests measures them, predicted in parallel.

Each distinct case is simulated once. The time equals `clusim run`'s, including its extrapolation
(`clusim.simulation.extrapolate`), except for operations with overlapping iterations.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from clusim.base.errors import ClusimError, TimeLimitReached
from clusim.base.executors import Jobs, Workers, workers
from clusim.nccl.launch import Host, host_of
from clusim.results.result import Result
from clusim.simulation.anchors import MOST_RANKS
from clusim.simulation.api import result_of, whole_of
from clusim.simulation.extrapolate import kernel_time, timed
from clusim.simulation.job import RunOptions
from clusim.simulation.laws import FOLLOWED
from clusim.simulation.nccl_choice import OVERLAPPING, nccl_choice
from clusim.simulation.request import Request
from clusim.simulation.samples import BRIEF, grain_notes
from clusim.simulation.session import Watch
from clusim.simulation.setup import Setup

VERIFY_BYTES = 8 << 20
"""Maximum sum of all ranks' bytes for which data are verified on request."""


@dataclass(frozen=True, slots=True)
class PerfKernel:
    """A kernel's time and its plan.

    Attributes
    ----------
    algorithm, protocol : str
        By NCCL's names; ``P2P`` for sends and receives.
    notes : tuple of str
        Approximations of the simulation.
    wrong : int or None
        1 if data were wrong, None if they were not verified.
    host : Host or None
        Parameters of its launch.
    lags_ps : tuple of int
        If iterations overlap, the end of every rank in the first, after `time_ps` [ps].
    """

    time_ps: int
    algorithm: str
    protocol: str
    channels: int
    notes: tuple[str, ...] = ()
    wrong: int | None = None
    host: Host | None = None
    lags_ps: tuple[int, ...] = ()

    @property
    def followed(self) -> bool:
        """True if the time was extrapolated from other runs."""
        return any(note.startswith(FOLLOWED) for note in self.notes)


def kernel(request: Request, options: RunOptions = BRIEF) -> PerfKernel:
    """Return the kernel time of one collective, by NCCL's plan or a named algorithm.

    Raises
    ------
    TimeLimitReached
        The wall-clock limit of `options` was reached.
    """
    if request.algorithm not in ("", "nccl"):
        return _named_kernel(request)
    choice = nccl_choice(request)
    plan, notes, ranks, wrong = (
        choice.plan,
        choice.notes,
        choice.comm.group.num_ranks,
        None,
    )
    lags_ps: tuple[int, ...] = ()
    verify = request.verify and request.size_bytes * ranks <= VERIFY_BYTES
    if choice.kernel is not None or (verify and ranks <= MOST_RANKS):
        schedule_request = request.of(choice.schedule())
        schedule_request = (
            schedule_request.verified() if verify else schedule_request
        )
        result = whole_of(schedule_request, options, "a kernel")
        time_ps, wrong = (
            result.time_ps,
            int(result.verified is False) if verify else None,
        )
        if choice.kernel is not None:
            notes = (*notes, *_grain_notes(result))
        elif request.operation in OVERLAPPING:
            sample = timed(request, plan, options)
            time_ps, lags_ps = sample.time_ps, sample.lags_ps
    else:
        sample = kernel_time(request, plan, options)
        time_ps, lags_ps, notes = (
            sample.time_ps,
            sample.lags_ps,
            (*notes, *sample.notes),
        )
    return PerfKernel(
        time_ps, *choice.way, notes, wrong, host_of(choice.comm), lags_ps
    )


def _named_kernel(request: Request) -> PerfKernel:
    """Return the time of a kernel other than NCCL's."""
    result = result_of(request, BRIEF)
    protocol = result.call.protocol if result.call is not None else ""
    return PerfKernel(
        result.time_ps, request.algorithm, protocol, 0, _grain_notes(result)
    )


def _grain_notes(result: Result) -> tuple[str, ...]:
    return grain_notes(
        result.provenance.granularity_note, result.provenance.error_bound
    )


Progress = Callable[[int, int], None]
"""Called with the completed and total numbers; raising from it ends the work."""

SHARE = 4
"""Least number of batches per worker for many cases: cases of one system stay together within this limit."""


@dataclass(frozen=True, slots=True)
class Failure:
    """A case that could not be simulated, and the reason."""

    reason: str


def _time_case(case: Request, watch: Watch | None = None) -> PerfKernel | Failure:
    """Return the kernel of a case; `TimeLimitReached` of the watch is raised."""
    options = BRIEF if watch is None else replace(BRIEF, watch=watch)
    try:
        return kernel(case, options)
    except TimeLimitReached:
        raise
    except ClusimError as error:
        return Failure(str(error))


def _all_timed(cases: Sequence[Request]) -> list[PerfKernel | Failure]:
    return [_time_case(case) for case in cases]


def in_order(
    cases: Sequence[Request], *, jobs: Jobs = None
) -> Iterator[PerfKernel | Failure]:
    """Yield the kernels of cases in order, each as soon as all earlier ones are complete."""
    distinct = dict.fromkeys(cases)
    with workers(jobs, len(distinct)) as spread:
        if spread is None:
            yield from map(_time_case, cases)
            return
        futures = {case: spread.submit(_time_case, case) for case in distinct}
        for case in cases:
            yield spread.outcome(futures[case])


def kernels(
    cases: Iterable[Request], *, jobs: Jobs = None, progress: Progress | None = None
) -> dict[Request, PerfKernel | Failure]:
    """Return the kernel of every distinct case.

    Parameters
    ----------
    jobs : int or Executor or None
        Number of worker processes, or an executor; None is one per core, 1 works in this process.
    """
    distinct = list(dict.fromkeys(cases))
    result = {}
    for case, computed in each_kernel(distinct, jobs=jobs):
        result[case] = computed
        if progress is not None:
            progress(len(result), len(distinct))
    return result


def each_kernel(
    cases: Iterable[Request], *, jobs: Jobs = None
) -> Iterator[tuple[Request, PerfKernel | Failure]]:
    """Yield every distinct case and its kernel when computed; `jobs` as for `kernels`."""
    distinct = list(dict.fromkeys(cases))
    with workers(jobs, len(distinct)) as spread:
        if spread is None:
            yield from ((case, _time_case(case)) for case in distinct)
            return
        batches = batches_of(distinct, SHARE * spread.count)
        waiting = {spread.submit(_all_timed, batch): batch for batch in batches}
        while waiting:
            for future in spread.done(waiting):
                yield from zip(
                    waiting.pop(future), spread.outcome(future), strict=True
                )


def until(
    cases: Iterable[Request], spread: Workers | None, watch: Watch
) -> Iterator[tuple[Request, PerfKernel | Failure]]:
    """Yield distinct cases with their kernels until a limit, started in the given order.

    Parameters
    ----------
    spread : Workers or None
        None runs the cases in this process.

    Raises
    ------
    TimeLimitReached
        The limit was reached; tasks of the workers may still run.
    """
    distinct = list(dict.fromkeys(cases))
    if spread is None:
        for case in distinct:
            watch.begins("the next hypothesis was simulated")
            yield case, _time_case(case, watch)
        return
    # Other computers have other monotonic clocks.
    theirs = None if spread.remote else watch
    waiting = {spread.submit(_time_case, case, theirs): case for case in distinct}
    while waiting:
        for future in spread.done(waiting):
            yield waiting.pop(future), spread.outcome(future)
        watch.interrupt()


def batches_of(cases: Sequence[Request], count: int) -> list[list[Request]]:
    """Return the cases in batches of one system each, the largest first; large systems have several.

    A worker keeps the topology and searches of its system, and the runs that others are extrapolated from: sizes and
    numbers of nodes of one setup stay together. No batch has more than 1/`count` of all cases.
    """
    systems: dict[Hashable, dict[Setup, list[Request]]] = {}
    for case in cases:
        setup = replace(case.setup, nodes=None)
        systems.setdefault(setup.topology, {}).setdefault(setup, []).append(case)
    largest_batch = max(1, len(cases) // count)
    batches = []
    for setups in systems.values():
        ordered = [
            case
            for alike in setups.values()
            for case in sorted(alike, key=lambda case: -case.size_bytes)
        ]
        batches += [
            ordered[at : at + largest_batch]
            for at in range(0, len(ordered), largest_batch)
        ]
    return sorted(batches, key=len, reverse=True)
