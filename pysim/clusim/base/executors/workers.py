"""Workers for many pieces of work: processes of this computer, or whoever works for an executor.

An executor is anything of Python's `concurrent.futures`. Its workers may be on other computers: they have their own
installation, which must give the same answers, and a piece of work finds what it needs there.

Identity of an installation: a digest of its text and its shipped files. Equal digests, equal results.
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
from functools import cache
from hashlib import blake2b
from multiprocessing import parent_process
from pathlib import Path
from threading import Lock, Thread
from typing import Any, TypeVar

from clusim.base.errors import EnvironmentFailure
from clusim.base.resources import shipped_topologies, shipped_workloads

PACKAGE = Path(__file__).resolve().parents[2]


def file_digest(path: str | Path) -> str:
    """Return 16 hexadecimal digits of what is in a file; empty if it cannot be read."""
    try:
        with Path(path).open("rb") as file:
            return blake2b(file.read(), digest_size=8).hexdigest()
    except OSError:
        return ""


@cache
def model_digest() -> str:
    """Return 16 hexadecimal digits of everything that decides answers, equal in equal installations.

    The compiled engine is not in it, as every compiler makes another one of the same sources; that it fits the rest is
    checked when it is imported.
    """
    found = blake2b(digest_size=8)
    texts = [path for path in PACKAGE.rglob("*") if path.suffix in (".py", ".json", ".csv")]
    named = {path.relative_to(PACKAGE).as_posix(): path for path in texts}
    for kind, files in (("topologies", shipped_topologies()), ("traces", shipped_workloads())):
        named |= {f"{kind}/{name}": path for name, path in files.items()}
    for name in sorted(named):
        found.update(f"{name} {file_digest(named[name])}\n".encode())
    return found.hexdigest()


Given = TypeVar("Given")
Made = TypeVar("Made")

Jobs = int | Executor | None
"""Processes of this computer, None for one per core; or what else takes work. 1 works in this process."""

OBJECTS = 100_000
"""Objects made until a worker looks for garbage."""

LOOK_S = 0.2
"""Interval between checks for interrupts while waiting [s]."""

_ALONE = Lock()


class Workers:
    """Workers that process pieces of work.

    Attributes
    ----------
    count : int
        Pieces that are worked on at a time, about.
    """

    def __init__(self, executor: Executor, count: int, *, remote: bool) -> None:
        self.count = count
        self._executor = executor
        self._remote = remote
        self._left: set[Future[Any]] = set()

    def submit(self, work: Callable[..., Made], *given: Any) -> Future[Made]:
        """Have a piece of work done: `work` is a function of a module, and all it is given can be pickled."""
        if self._remote:
            future = self._executor.submit(_elsewhere, model_digest(), work, *given)
        else:
            future = self._executor.submit(work, *given)
        self._left.add(future)
        future.add_done_callback(self._left.discard)
        return future

    def done(self, waiting: Iterable[Future[Any]]) -> set[Future[Any]]:
        """Return finished pieces; wait a little if there is none."""
        return wait(waiting, timeout=LOOK_S, return_when=FIRST_COMPLETED).done

    def outcome(self, future: Future[Made]) -> Made:
        """Return the result of a piece of work.

        Raises
        ------
        EnvironmentFailure
            Who worked on it went away, again and again.
        """
        try:
            return future.result()
        except BrokenExecutor:
            raise EnvironmentFailure(
                "a worker process was killed, perhaps because memory ran out; give fewer --jobs"
            ) from None
        except CancelledError:
            raise EnvironmentFailure("the executor gave a piece of work back undone") from None
        except Exception as error:
            if type(error).__name__ != "KilledWorker":  # of Dask, which need not be installed
                raise
            raise EnvironmentFailure(
                "several workers were lost on the same piece of work, perhaps because memory ran out"
            ) from None

    def each(self, work: Callable[[Given], Made], items: Iterable[Given]) -> Iterator[Made]:
        """Yield the results of the items, in their order."""
        for future in [self.submit(work, item) for item in items]:
            yield self.outcome(future)

    def give_up(self) -> None:
        """Take back what nobody has begun."""
        for future in list(self._left):
            future.cancel()


def _elsewhere(digest: str, work: Callable[..., Made], *given: Any) -> Made:
    """Work for somebody else: one piece at a time in a process, whatever threads there are."""
    if digest != model_digest():
        raise EnvironmentFailure(
            f"a worker has another clusim ({model_digest()}) than the one that asks ({digest}); install the same"
        )
    with _ALONE:
        gc.set_threshold(OBJECTS, 20, 20)
        return work(*given)


def _quiet() -> None:
    """End at once when told to, and with the parent: a worker has nothing to clean up. Look for garbage less often.

    Plans are hundreds of thousands of objects without any, and to look at them all again and again is a seventh of
    the time to make them.
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
def workers(jobs: Jobs, most: int) -> Iterator[Workers | None]:
    """Give workers for `most` pieces of work; None if these are best done in this process.

    When the block is left by an exception, processes of this computer end at once, and an executor is asked to drop
    what it has not begun.
    """
    if isinstance(jobs, Executor):
        away = Workers(jobs, _capacity(jobs), remote=True)
        try:
            yield away
        except BaseException:
            away.give_up()
            raise
        return
    count = min(jobs or len(os.sched_getaffinity(0)), max(1, most))
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
    """Return the number of pieces that an executor processes at a time, as far as it reports it."""
    client = getattr(executor, "_client", None)
    if client is not None:  # Dask's; of each worker's threads one works at a time
        return max(1, len(client.ncores()))
    for name in ("num_workers", "_max_workers"):  # MPI's, and those of Python
        count = getattr(executor, name, None)
        if isinstance(count, int) and count > 0:
            return count
    return len(os.sched_getaffinity(0))
