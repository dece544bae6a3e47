"""Many predictions, spread over workers; each distinct one is made once."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from itertools import islice

from clusim.base.errors import ClusimError
from clusim.base.executors import Jobs, Workers, workers
from clusim.nccltests.kernel import PerfKernel, kernel
from clusim.simulation.cache import Times, known_times, learn
from clusim.simulation.request import Request
from clusim.simulation.setup import Setup

Progress = Callable[[int, int], None]
"""Called with how many of how many are done; raising from it ends the work."""

MOST_MACHINES = 4
"""Machines that are simulated, about, in place of more."""

SHARE = 8
"""Batches per worker that many cases make at least: what shares a setup stays together as far as that allows."""


@dataclass(frozen=True, slots=True)
class Failure:
    """A case that could not be simulated, and why."""

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
    """Yield the kernels of cases in their order, each as soon as it and those before it are known."""
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
        Worker processes, or whoever takes work; None is one per core, 1 works in this process.
    """
    wanted = list(dict.fromkeys(cases))
    tell = progress or (lambda done, total: None)
    with workers(jobs, len(wanted)) as spread:
        return _here(wanted, tell) if spread is None else _spread(wanted, spread, tell)


def _spread(
    wanted: list[Request], spread: Workers, tell: Progress
) -> dict[Request, PerfKernel | Failure]:
    found: dict[Request, PerfKernel | Failure] = {}
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
            return found
        for future in spread.done(waiting):
            batch, outcome = waiting.pop(future), spread.outcome(future)
            found.update(zip(batch.cases, outcome.kernels, strict=True))
            agenda.times[batch.machine].update(outcome.new)
            free.append(batch.machine)
        tell(len(found), len(wanted))


def _here(wanted: list[Request], tell: Progress) -> dict[Request, PerfKernel | Failure]:
    found: dict[Request, PerfKernel | Failure] = {}
    for case in wanted:
        found[case] = _timed(case)
        tell(len(found), len(wanted))
    return found


@dataclass(frozen=True, slots=True)
class _Batch:
    """Cases for one worker, all on one kind of machine; `work` is about how much there is to simulate."""

    machine: Hashable
    cases: list[Request]
    work: int


class _Agenda:
    """Remaining work. A worker stays with one system, whose topology and searches it keeps; then it helps with another.

    Attributes
    ----------
    times : dict
        Per machine, the times of runs that are known: no equal run is on another.
    """

    def __init__(self, wanted: list[Request], count: int) -> None:
        self.times: dict[Hashable, Times] = {}
        self._left: dict[Hashable, list[_Batch]] = {}
        for batch in _batches(wanted, count):
            self._left.setdefault(batch.machine, []).append(batch)

    def next(self, machine: Hashable) -> _Batch | None:
        """Return a batch of this machine; if there is none, of that of which most is left, alone if possible."""
        if machine not in self._left:
            if not self._left:
                return None
            untouched = [name for name in self._left if name not in self.times]
            machine = max(untouched or self._left, key=self._work)
        own = self._left[machine]
        batch = own.pop(0)
        if not own:
            del self._left[machine]
        return batch

    def _work(self, machine: Hashable) -> int:
        return sum(batch.work for batch in self._left[machine])


def _batches(wanted: list[Request], count: int) -> list[_Batch]:
    """Return the cases in batches that share a setup; the largest sizes first, so that no long one comes last.

    Runs on other numbers of the same machines stay together: larger ones are followed from smaller ones.
    """
    by_setup: dict[Setup, list[Request]] = {}
    for case in wanted:
        by_setup.setdefault(replace(case.setup, nodes=None), []).append(case)
    size = max(1, len(wanted) // (SHARE * count))
    found = []
    for setup, cases in by_setup.items():
        ordered = sorted(cases, key=lambda case: -case.size_bytes)
        for at in range(0, len(ordered), size):
            own = ordered[at : at + size]
            found.append(_Batch(setup.topology, own, sum(map(_simulated, own))))
    return sorted(found, key=lambda batch: -batch.work)


def _simulated(case: Request) -> int:
    """Return about how many GPUs are simulated for a case, whose work grows with them."""
    setup = replace(case.setup, nodes=None)
    try:
        each = setup.per_node or setup.fabric.num_ranks
    except ClusimError:  # said where the case is simulated
        return 1
    return each * min(case.setup.nodes or 1, MOST_MACHINES)
