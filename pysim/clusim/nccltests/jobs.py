"""Many predictions, spread over worker processes; each distinct one is made once."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass, replace

from clusim.errors import ClusimError
from clusim.nccltests.kernel import PerfKernel, kernel
from clusim.run.request import Request
from clusim.run.setup import Setup

__all__ = ["Failure", "in_order", "kernels", "workers"]

Progress = Callable[[int, int], None]
"""Called with how many of how many are done; raising from it ends the work."""

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


def _batch(cases: list[Request]) -> list[PerfKernel | Failure]:
    return [_timed(case) for case in cases]


def _quiet() -> None:
    """End at once when told to: a worker has nothing to clean up."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)


@contextmanager
def workers(jobs: int) -> Iterator[ProcessPoolExecutor]:
    """Give a pool of processes that ends at once when the block is left by an exception."""
    pool = ProcessPoolExecutor(jobs, initializer=_quiet)
    try:
        yield pool
    except BaseException:
        for process in list(pool._processes.values()):
            process.terminate()
        pool.shutdown(wait=True, cancel_futures=True)
        raise
    pool.shutdown()


def in_order(
    cases: Sequence[Request], *, jobs: int | None = None
) -> Iterator[PerfKernel | Failure]:
    """Yield the kernels of cases in their order, each as soon as it and those before it are known."""
    count = min(jobs or len(os.sched_getaffinity(0)), max(1, len(set(cases))))
    if count == 1:
        for case in cases:
            yield _timed(case)
        return
    with workers(count) as pool:
        futures = {case: pool.submit(_timed, case) for case in dict.fromkeys(cases)}
        for case in cases:
            yield futures[case].result()


def kernels(
    cases: Iterable[Request], *, jobs: int | None = None, progress: Progress | None = None
) -> dict[Request, PerfKernel | Failure]:
    """Return the kernel of every distinct case.

    Parameters
    ----------
    jobs : int or None
        Worker processes; None is one per core, 1 works in this process.
    """
    wanted = list(dict.fromkeys(cases))
    count = min(jobs or len(os.sched_getaffinity(0)), max(1, len(wanted)))
    tell = progress or (lambda done, total: None)
    if count == 1:
        return _here(wanted, tell)
    found: dict[Request, PerfKernel | Failure] = {}
    with workers(count) as pool:
        waiting: dict[Future[list[PerfKernel | Failure]], list[Request]] = {
            pool.submit(_batch, batch): batch for batch in _batches(wanted, count)
        }
        while waiting:
            done, _ = wait(waiting, timeout=0.2, return_when=FIRST_COMPLETED)
            for future in done:
                batch = waiting.pop(future)
                found.update(zip(batch, future.result(), strict=True))
            tell(len(found), len(wanted))
    return found


def _here(wanted: list[Request], tell: Progress) -> dict[Request, PerfKernel | Failure]:
    found: dict[Request, PerfKernel | Failure] = {}
    for case in wanted:
        found[case] = _timed(case)
        tell(len(found), len(wanted))
    return found


def _batches(wanted: list[Request], count: int) -> list[list[Request]]:
    """Return the cases in batches that share a setup; the largest sizes first, so that no long one comes last.

    Runs on other numbers of the same machines stay together: larger ones are followed from smaller ones.
    """
    by_setup: dict[Setup, list[Request]] = {}
    for case in wanted:
        by_setup.setdefault(replace(case.setup, nodes=None), []).append(case)
    size = max(1, len(wanted) // (SHARE * count))
    batches = []
    for cases in by_setup.values():
        ordered = sorted(cases, key=lambda case: -case.size_bytes)
        batches += [ordered[at : at + size] for at in range(0, len(ordered), size)]
    return sorted(batches, key=lambda batch: -max(case.setup.nodes or 1 for case in batch))
