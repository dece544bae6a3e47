"""Workers for independent tasks, and the identity of an installation.

Workers are local processes, or those of an executor: any of Python's `concurrent.futures`. An executor's workers may
be on other nodes: they have a separate installation, which must produce the same results, and must find all inputs of
a task there. The identity is a digest of clusim's text and shipped files; equal digests imply equal results.

Executors are opened by address: Dask's workers, or the processes of an MPI job. clusim does not include a scheduler.
"""

from __future__ import annotations

import gc
import os
import signal
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import (
    FIRST_COMPLETED,
    BrokenExecutor,
    CancelledError,
    Executor,
    Future,
    ProcessPoolExecutor,
    wait,
)
from contextlib import contextmanager
from multiprocessing import parent_process
from pathlib import Path
from threading import Lock, Thread
from typing import Any, TypeVar

from clusim.base.errors import EnvironmentFailure, InputError
from clusim.base.kept import model_digest

PATIENCE_S = 20
"""Timeout for a scheduler and its first worker [s]."""

RETRIES = 5
"""Retries of a task after the loss of its worker."""

FORMS = "use dask://HOST:PORT, dask:SCHEDULER_FILE, or mpi"


@contextmanager
def connect_executor(address: str) -> Iterator[Executor]:
    """Connect to the executor at an address, and leave it running.

    Parameters
    ----------
    address : str
        ``dask://HOST:PORT``, ``dask:FILE`` with a scheduler's file, or ``mpi`` in a job started by
        ``mpiexec -n N python -m mpi4py.futures -m clusim ...``.

    Raises
    ------
    InputError
        The address has another form, or the library is not installed.
    EnvironmentFailure
        The scheduler does not answer, or does not have workers.
    """
    if address.lower() == "mpi":
        with _mpi() as executor:
            yield executor
        return
    scheme, colon, place = address.partition(":")
    if scheme.lower() != "dask" or not colon or not place.strip("/"):
        raise InputError(f"executor {address!r}: {FORMS}")
    with _dask(place) as executor:
        yield executor


@contextmanager
def _dask(place: str) -> Iterator[Executor]:
    """Connect to Dask's executor by the scheduler at ``//HOST:PORT`` or in a file."""
    try:
        from distributed import Client
    except ImportError:
        raise InputError(
            "executor dask: needs distributed; pip install 'clusim-net[cluster]'"
        ) from None
    if place.startswith("//"):
        where = {"address": f"tcp:{place}"}
    elif Path(place).is_file():
        where = {"scheduler_file": place}
    else:
        raise InputError(f"executor dask:{place}: no such file; {FORMS}")
    try:
        connect: Any = Client
        client = connect(**where, timeout=PATIENCE_S, set_as_default=False)
    except (OSError, ValueError) as error:  # TimeoutError is an OSError
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise EnvironmentFailure(f"executor dask:{place}: {reason}") from None
    with client:
        try:
            client.wait_for_workers(1, timeout=PATIENCE_S)
        except TimeoutError:
            raise EnvironmentFailure(
                f"executor dask:{place}: no workers at the scheduler; start some with 'dask worker'"
            ) from None
        yield client.get_executor(retries=RETRIES, pure=False)


@contextmanager
def _mpi() -> Iterator[Executor]:
    """Start the executor of the other processes of this MPI job."""
    try:
        from mpi4py import MPI
        from mpi4py.futures import MPIPoolExecutor
    except (ImportError, RuntimeError) as error:
        raise InputError(
            f"executor mpi: needs mpi4py and an MPI library ({error}); pip install 'clusim-net[mpi]'"
        ) from None
    if MPI.COMM_WORLD.Get_size() < 2:
        raise InputError(
            "executor mpi: this is a single process; start it with mpiexec -n N python -m mpi4py.futures -m clusim ..."
        )
    with MPIPoolExecutor() as executor:
        yield executor


Given = TypeVar("Given")
Made = TypeVar("Made")

Jobs = int | Executor | None
"""Number of local processes (1: this process, None: one per core), or an executor."""

OBJECTS = 100_000
"""Allocations between garbage collections of a worker."""

LOOK_S = 0.2
"""Interval between checks for interrupts while waiting [s]."""

_ALONE = Lock()


class Workers:
    """Workers that process independent tasks.

    Attributes
    ----------
    count : int
        Approximate number of concurrent tasks.
    remote : bool
        True if they may be on other computers.
    """

    def __init__(self, executor: Executor, count: int, *, remote: bool) -> None:
        self.count = count
        self._executor = executor
        self.remote = remote
        self._left: set[Future[Any]] = set()

    def submit(self, work: Callable[..., Made], *given: Any) -> Future[Made]:
        """Submit a task; `work` must be a module-level function, and its arguments picklable."""
        if self.remote:
            future = self._executor.submit(_elsewhere, model_digest(), work, *given)
        else:
            future = self._executor.submit(work, *given)
        self._left.add(future)
        future.add_done_callback(self._left.discard)
        return future

    def done(self, waiting: Iterable[Future[Any]]) -> set[Future[Any]]:
        """Return finished tasks; wait up to `LOOK_S` if no task has finished."""
        return wait(waiting, timeout=LOOK_S, return_when=FIRST_COMPLETED).done

    def outcome(self, future: Future[Made]) -> Made:
        """Return the result of a task.

        Raises
        ------
        EnvironmentFailure
            Its workers were lost, or the executor cancelled it.
        """
        try:
            return future.result()
        except BrokenExecutor:
            raise EnvironmentFailure(
                "a worker process was killed, perhaps because memory ran out; use fewer --jobs"
            ) from None
        except CancelledError:
            raise EnvironmentFailure("the executor cancelled a task") from None
        except Exception as error:
            if (
                type(error).__name__ != "KilledWorker"
            ):  # of Dask, which need not be installed
                raise
            raise EnvironmentFailure(
                "several workers were lost on the same task, perhaps because memory ran out"
            ) from None

    def map_items(
        self, work: Callable[[Given], Made], items: Iterable[Given]
    ) -> Iterator[Made]:
        """Yield the results of the items, in their order."""
        for future in [self.submit(work, item) for item in items]:
            yield self.outcome(future)

    def give_up(self) -> None:
        """Cancel tasks that have not started."""
        for future in list(self._left):
            future.cancel()


def _elsewhere(digest: str, work: Callable[..., Made], *given: Any) -> Made:
    """Run a task on an executor's worker, one at a time per process for all threads."""
    if digest != model_digest():
        raise EnvironmentFailure(
            f"a worker runs a different clusim ({model_digest()}, client {digest}); install the same"
        )
    with _ALONE:
        gc.set_threshold(OBJECTS, 20, 20)
        return work(*given)


def _quiet() -> None:
    """Set up a worker: end at once at a signal or with the parent, collect less garbage.

    A worker has no state to clean up. Plans are hundreds of thousands of objects without garbage; scanning
    these repeatedly is a seventh of the time to build them.
    """
    gc.set_threshold(OBJECTS, 20, 20)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    """Wait for the parent's end, also by SIGKILL, and end this process."""
    parent = parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


@contextmanager
def workers(jobs: Jobs, max_workers: int) -> Iterator[Workers | None]:
    """Open workers for `max_workers` tasks; None if this process should run them.

    If an exception leaves the block, local processes are killed, and an executor cancels tasks that have not
    started.
    """
    if isinstance(jobs, Executor):
        away = Workers(jobs, _capacity(jobs), remote=True)
        try:
            yield away
        except BaseException:
            away.give_up()
            raise
        return
    count = min(jobs or len(os.sched_getaffinity(0)), max(1, max_workers))
    if count == 1:
        yield None
        return
    pool = ProcessPoolExecutor(count, initializer=_quiet)
    try:
        yield Workers(pool, count, remote=False)
    except BaseException:
        for process in list(pool._processes.values()):
            process.kill()  # a SIGTERM is lost in a process that was just forked
        pool.shutdown(wait=True, cancel_futures=True)
        raise
    pool.shutdown()


def _capacity(executor: Executor) -> int:
    """Return the number of concurrent tasks of an executor, or of cores if it is unknown."""
    client = getattr(executor, "_client", None)
    if (
        client is not None
    ):  # of Dask; each worker runs one task at a time, for any number of threads
        return max(1, len(client.ncores()))
    for name in (
        "num_workers",
        "_max_workers",
    ):  # attributes of MPI's and Python's executors
        count = getattr(executor, name, None)
        if isinstance(count, int) and count > 0:
            return count
    return len(os.sched_getaffinity(0))
