"""Kernel times of NCCL collectives as nccl-tests measures them, predicted in parallel.

Each distinct case is simulated once. In bursts of ``auto`` the time equals `clusim run`'s, including its
extrapolation (`clusim.simulation.approximate`), except for operations with overlapping iterations. Otherwise, for
many runs at once, communicators of more than `clusim.simulation.extrapolate_bytes.MOST_RANKS` ranks are extrapolated
from fewer nodes.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from functools import cache
from itertools import islice

from clusim.base.errors import ClusimError
from clusim.base.executors import Jobs, Workers, workers
from clusim.nccl import NcclPlan
from clusim.nccl.launch import Host, host_of
from clusim.simulation.api import result_of
from clusim.simulation.approximate import followed_time
from clusim.simulation.extrapolate_bytes import (
    BRIEF,
    FOLLOWED,
    MOST_RANKS,
    Times,
    grain_notes,
    known_times,
    learn,
    on_fewer,
    stand_ins,
    stream,
    timed,
)
from clusim.simulation.job import job_of
from clusim.simulation.plan import OVERLAPPING, NcclChoice, nccl_choice
from clusim.simulation.request import Request
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
        """True if the time was extrapolated from other runs."""
        return any(note.startswith(FOLLOWED) for note in self.notes)


def kernel(request: Request) -> PerfKernel:
    """Return the kernel time of one collective, by NCCL's plan or a named algorithm."""
    if request.algorithm not in ("", "nccl"):
        return _named(request)
    choice = nccl_choice(request)
    if choice.kernel is not None:
        return _in_place(choice)
    plan, notes, wrong, ranks = choice.plan, choice.notes, None, choice.comm.group.num_ranks
    if request.verify and ranks <= MOST_RANKS and request.size_bytes * ranks <= VERIFY_BYTES:
        result = result_of(request.of(stream(request, plan)).verified(), BRIEF)
        time_ps, wrong = result.time_ps, int(result.verified is False)
        if request.operation in OVERLAPPING:
            time_ps = timed(request, plan)[0]
    else:
        time_ps, more = _time(request, plan)
        notes = (*notes, *more)
    return PerfKernel(time_ps, *choice.way, notes, wrong, host_of(choice.comm))


def _time(request: Request, plan: NcclPlan | None) -> tuple[int, tuple[str, ...]]:
    """Return the time of a NCCL plan [ps], and notes on the method."""
    if request.granularity == "auto":
        whole = cache(lambda: job_of(request.of(stream(request, plan)), BRIEF))
        result = followed_time(request, plan, whole)
        return timed(request, plan) if result is None else (result.time_ps, (result.words,))
    nodes = stand_ins(request, plan)
    if nodes is None:
        return timed(request, plan)
    time_ps, note = on_fewer(request, plan, nodes)
    return time_ps, (note,)


def _in_place(choice: NcclChoice) -> PerfKernel:
    """Return the time of a kernel for symmetric memory."""
    request = choice.request
    asked = request.of(choice.schedule())
    small = request.size_bytes * choice.comm.group.num_ranks <= VERIFY_BYTES
    result = result_of(asked.verified() if request.verify and small else asked, BRIEF)
    wrong = int(result.verified is False) if request.verify and small else None
    notes = (
        *choice.notes,
        *grain_notes(result.provenance.granularity_note, result.provenance.error_bound),
    )
    return PerfKernel(result.time_ps, *choice.way, notes, wrong, host_of(choice.comm))


def _named(request: Request) -> PerfKernel:
    """Return the time of a kernel other than NCCL's."""
    result = result_of(request, BRIEF)
    call = result.call
    protocol = call.protocol if call is not None else ""
    notes = grain_notes(result.provenance.granularity_note, result.provenance.error_bound)
    return PerfKernel(result.time_ps, request.algorithm, protocol, 0, notes)


Progress = Callable[[int, int], None]
"""Called with the completed and total numbers; raising from it ends the work."""

MOST_MACHINES = 4
"""Approximate number of nodes that are simulated in place of more."""

SHARE = 8
"""Least number of batches per worker for many cases: cases that share a setup stay together within this limit."""


@dataclass(frozen=True, slots=True)
class Failure:
    """A case that could not be simulated, and the reason."""

    reason: str


def _timed(case: Request) -> PerfKernel | Failure:
    try:
        return kernel(case)
    except ClusimError as error:
        return Failure(str(error))


@dataclass(frozen=True, slots=True)
class _Done:
    """Results of a worker: the kernels of its cases, and the times of further runs."""

    kernels: list[PerfKernel | Failure]
    new: Times


def _batch(cases: list[Request], known: Times) -> _Done:
    learn(known)
    before = len(known_times())
    kernels = [_timed(case) for case in cases]
    return _Done(kernels, dict(islice(known_times().items(), before, None)))


def in_order(cases: Sequence[Request], *, jobs: Jobs = None) -> Iterator[PerfKernel | Failure]:
    """Yield the kernels of cases in order, each as soon as all earlier ones are complete."""
    distinct = dict.fromkeys(cases)
    with workers(jobs, len(distinct)) as spread:
        if spread is None:
            yield from map(_timed, cases)
            return
        futures = {case: spread.submit(_timed, case) for case in distinct}
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
    wanted = list(dict.fromkeys(cases))
    result = {}
    for case, computed in each_kernel(wanted, jobs=jobs):
        result[case] = computed
        if progress is not None:
            progress(len(result), len(wanted))
    return result


def each_kernel(
    cases: Iterable[Request], *, jobs: Jobs = None
) -> Iterator[tuple[Request, PerfKernel | Failure]]:
    """Yield every distinct case and its kernel when computed; `jobs` as for `kernels`."""
    wanted = list(dict.fromkeys(cases))
    with workers(jobs, len(wanted)) as spread:
        if spread is None:
            yield from ((case, _timed(case)) for case in wanted)
        else:
            yield from _spread(wanted, spread)


def _spread(
    wanted: list[Request], spread: Workers
) -> Iterator[tuple[Request, PerfKernel | Failure]]:
    agenda = _Agenda(wanted, spread.count)
    waiting: dict[Future[_Done], _Batch] = {}
    free: list[Hashable] = [None] * spread.count
    while True:
        while free and (batch := agenda.next(free[0])) is not None:
            # A copy, because another thread writes it out while answers are added.
            known = dict(agenda.times.setdefault(batch.machine, {}))
            waiting[spread.submit(_batch, batch.cases, known)] = batch
            del free[0]
        if not waiting:
            return
        for future in spread.done(waiting):
            batch, outcome = waiting.pop(future), spread.outcome(future)
            agenda.times[batch.machine].update(outcome.new)
            free.append(batch.machine)
            yield from zip(batch.cases, outcome.kernels, strict=True)


@dataclass(frozen=True, slots=True)
class _Batch:
    """Cases for one worker, all on one system; `work` estimates their cost."""

    machine: Hashable
    cases: list[Request]
    work: int


class _Agenda:
    """Remaining work, assigned by system.

    A worker stays with one system, whose topology and searches it keeps; then it helps with another.

    Attributes
    ----------
    times : dict
        Per system, the known times of runs: no two systems share a run.
    """

    def __init__(self, wanted: list[Request], count: int) -> None:
        self.times: dict[Hashable, Times] = {}
        self._left: dict[Hashable, list[_Batch]] = {}
        for batch in _batches(wanted, count):
            self._left.setdefault(batch.machine, []).append(batch)

    def next(self, machine: Hashable) -> _Batch | None:
        """Return a batch of this system, otherwise of the system with most work left.

        Systems without other workers are preferred.
        """
        if machine not in self._left:
            if not self._left:
                return None
            untouched = [name for name in self._left if name not in self.times]
            machine = max(untouched or self._left, key=self._work)
        queue = self._left[machine]
        batch = queue.pop(0)
        if not queue:
            del self._left[machine]
        return batch

    def _work(self, machine: Hashable) -> int:
        return sum(batch.work for batch in self._left[machine])


def _batches(wanted: list[Request], count: int) -> list[_Batch]:
    """Return the cases in batches that share a setup; the largest first.

    The order avoids a long batch at the end. Runs on other numbers of the same nodes stay together: large numbers are
    extrapolated from small numbers.
    """
    by_setup: dict[Setup, list[Request]] = {}
    for case in wanted:
        by_setup.setdefault(replace(case.setup, nodes=None), []).append(case)
    size = max(1, len(wanted) // (SHARE * count))
    result = []
    for setup, cases in by_setup.items():
        ordered = sorted(cases, key=lambda case: -case.size_bytes)
        for at in range(0, len(ordered), size):
            cases_of_batch = ordered[at : at + size]
            result.append(
                _Batch(setup.topology, cases_of_batch, sum(map(_simulated, cases_of_batch)))
            )
    return sorted(result, key=lambda batch: -batch.work)


def _simulated(case: Request) -> int:
    """Return the approximate number of GPUs simulated for a case, a measure of its work."""
    setup = replace(case.setup, nodes=None)
    try:
        each = setup.per_node or setup.fabric.num_ranks
    except ClusimError:  # reported when the case is simulated
        return 1
    return each * min(case.setup.nodes or 1, MOST_MACHINES)
