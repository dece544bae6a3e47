"""Processes of the running ranks, and the process that joins them.

A rank sends its operations over a connection. It requests the end of operations for which its host waits, and values
of other ranks. The joining process has the `ProgramJob`, whose clock continues while all ranks wait. It has all
requests, and detects ranks that wait for each other.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from multiprocessing.connection import Connection, wait
from typing import Any

from clusim.base.errors import ClusimError, InputError
from clusim.programs.issued import IssuedCall, IssuedOperation
from clusim.programs.job import ProgramJob, ValuesReply
from clusim.programs.starter import Starter
from clusim.programs.step import RankRecord, RankResult
from clusim.programs.symmetry import ComparedRanks, Operation, RankComparison

MOST_QUEUED = 512
"""Operations that a rank sends together."""

MOST_COMPARED = max(1, (os.cpu_count() or 1) // 2)
"""Compared ranks that run at the same time."""


class JobLink:
    """Connection of a rank to its job: `clusim.programs.issued.Peers` in the process of the rank.

    Attributes
    ----------
    alone : bool
        The rank represents all, and exchanges no messages.
    operations : callable or None
        Operations since the last call with their lines, which reports and requests contain; None if they are not
        compared.
    """

    def __init__(self, connection: Connection, *, alone: bool = False) -> None:
        self._connection, self.alone = connection, alone
        self._queue: list[IssuedOperation] = []
        self.operations: Callable[[], list[tuple[Operation, str]]] | None = None

    def _send(self, *words: Any) -> None:
        try:
            self._connection.send(words)
        except OSError:
            # The joining process has ended, with the reason.
            os._exit(1)

    def _ask(self, *words: Any) -> Any:
        self._flush()
        self._send(*words)
        try:
            kind, answer = self._connection.recv()
        except (EOFError, OSError):
            os._exit(1)
        if kind == "error":
            raise InputError(answer)
        return answer

    def _flush(self) -> None:
        if self._queue:
            queue, self._queue = self._queue, []
            self._send("issue", queue)

    def _news(self) -> list[tuple[Operation, str]]:
        return [] if self.operations is None else self.operations()

    def issue(self, operation: IssuedOperation) -> None:
        """Issue an operation; calls are sent at once if other ranks may wait for them."""
        self._queue.append(operation)
        call = operation.call
        if call is not None and (call.peer >= 0 or call.splits):
            self.alone = False
        if len(self._queue) >= MOST_QUEUED or (call is not None and not self.alone):
            self._flush()

    def announce(self, call: IssuedCall, sent: Any) -> None:
        """Report the next call before its operation, for the comparison of ranks."""
        if self.operations is not None:
            self._send("call", self.operations(), call, sent)

    def end(
        self, operations: Iterable[int], until_ps: int | None = None
    ) -> int | None:
        """Wait for operations; return the last end [ps], or None if it is later than `until_ps`."""
        result: int | None = self._ask(
            "end",
            self._news(),
            tuple(sorted(operations)),
            until_ps,
        )
        return result

    def values(self, number: int) -> tuple[int, dict[int, Any]]:
        """Wait until all ranks have issued a call; return the time [ps], and the values of all ranks."""
        result: ValuesReply = self._ask("values", number)
        return result

    def step(
        self, issued_ps: int, deps: Iterable[int], record: RankRecord | None
    ) -> None:
        """End a step with the operations before it, and its record if it may be written."""
        self._flush()
        self._send("step", self._news(), issued_ps, tuple(deps), record)

    def done(self, result: RankResult, host_ps: int) -> None:
        """Report the result of the rank, and the host's time [ps]."""
        self._ask("done", self._news(), result, host_ps)

    def failed(self, error: ClusimError) -> None:
        """Report an error that ends the job."""
        self._ask("failed", str(error))


@dataclass(slots=True)
class _Process:
    """A rank: its process, the request that it waits for, its result and the host's time at the end [ps]."""

    pid: int
    connection: Connection
    waits: tuple[Any, ...] | None = None
    result: RankResult | None = None
    host_ps: int = 0


class RankProcesses:
    """Running and compared ranks as processes.

    Parameters
    ----------
    job : ProgramJob
        The ranks' meetings.
    environment : callable
        Environment variables of a rank.
    given : object
        Task of every rank, as `clusim.programs.rank` reads it.

    Attributes
    ----------
    comparison : RankComparison
        Comparison of ranks with their representatives.
    digest : str
        Digest of the running ranks' compared operations, once they have ended.
    """

    def __init__(
        self,
        starter: Starter,
        job: ProgramJob,
        environment: Callable[[int], dict[str, str]],
        given: Any,
        compared: ComparedRanks,
    ) -> None:
        self.starter, self.job, self.environment, self.given = (
            starter,
            job,
            environment,
            given,
        )
        self.compared = compared
        self.comparison = RankComparison(job, compared.ranks, self._dismiss)
        self._ranks: dict[int, _Process] = {}
        self._others: dict[int, _Process] = {}
        self.digest = ""
        self._comparing = False

    def run(self) -> dict[int, RankResult]:
        """Run all ranks to their ends; return the result of each.

        Raises
        ------
        InputError
            Of a rank, or ranks wait for each other.
        SystemExit
            A rank ended with an exit code other than 0.
        """
        self._start(self.job.running)
        self._comparing = not self.compared.digest
        while live := self._live():
            for ready in wait(
                [
                    item.connection
                    for item in (*live.values(), *self._others.values())
                ]
            ):
                rank = next(
                    (r for r, item in live.items() if item.connection is ready), None
                )
                if rank is not None:
                    self._serve(rank, live[rank])
                    continue
                for other, item in list(self._others.items()):
                    if item.connection is ready:
                        self._serve_compared(other, item)
            self._answer()
        return {
            rank: self.job.complete(rank, item.result, item.host_ps)
            for rank, item in self._ranks.items()
            if item.result is not None
        }

    def _live(self) -> dict[int, _Process]:
        return {
            r: item for r, item in self._ranks.items() if r not in self.job.ended
        }

    def _started(self, rank: int, *, silent: bool = False) -> _Process:
        pid, connection = self.starter.start(self.environment(rank), silent=silent)
        alone = not silent and len(self.job.running) == 1
        connection.send((rank, self.given, alone))
        return _Process(pid, connection)

    def _start(self, ranks: Sequence[int]) -> None:
        self.comparison.runs(ranks)
        for rank in ranks:
            self._ranks[rank] = self._started(rank)

    def _compare(self) -> None:
        """Start compared ranks, up to `MOST_COMPARED` at a time."""
        waiting = (
            rank for rank in sorted(self.comparison.live) if rank not in self._others
        )
        for rank in islice(waiting, MOST_COMPARED - len(self._others)):
            self._others[rank] = self._started(rank, silent=True)

    def _dismiss(self, rank: int) -> None:
        """End a compared rank."""
        item = self._others.pop(rank, None)
        if item is not None:
            item.connection.close()
            self.starter.stop(item.pid)

    def _serve(self, rank: int, item: _Process) -> None:
        """Handle a request, or the end of a process."""
        try:
            kind, *details = item.connection.recv()
        except (EOFError, OSError):
            code = self.starter.code(item.pid)
            if code < 0:
                name = signal.Signals(-code).name
                raise ClusimError(f"rank {rank} was ended by {name}") from None
            if code or item.result is None:
                raise SystemExit(code or 1) from None
            self.job.ended.add(rank)
            return
        if kind == "failed":
            raise InputError(details[0])
        if kind == "issue":
            for operation in details[0]:
                if operation.call is not None:
                    self._start(self.job.starts(rank, operation.call))
                self.job.issue(rank, operation)
            return
        if kind == "values":
            item.waits = kind, details[0]
            return
        operations, *more = details
        self.comparison.note(rank, kind, operations, more)
        if kind == "step":
            self.comparison.stepped(rank)
            self.job.step(rank, *more)
        elif kind == "end":
            item.waits = kind, *more
        elif kind == "done":
            self.comparison.answered(rank, None)
            item.result, item.host_ps = more
            item.waits = (kind,)

    def _serve_compared(self, rank: int, item: _Process) -> None:
        """Handle a request, or the end of a compared rank."""
        try:
            kind, *details = item.connection.recv()
        except (EOFError, OSError):
            self._others.pop(rank)
            code = self.starter.code(item.pid)
            if rank in self.comparison.live:
                self.comparison.failed(rank, f"exit code {code}")
            return
        if kind == "failed":
            self.comparison.failed(rank, details[0])
            self._dismiss(rank)
        elif kind == "values":
            item.waits = kind, details[0]
        elif kind != "issue":
            operations, *more = details
            self.comparison.note(rank, kind, operations, more)
            if kind in ("end", "done"):
                item.waits = (kind,)

    def _answer(self) -> None:
        """Answer complete requests; continue the clock, or fail if every rank waits for another."""
        while True:
            replies = list(self._replies())
            for item, value in replies:
                item.waits = None
                item.connection.send(("", value))
            if replies:
                continue
            live = self._live()
            if any(
                item.waits is None for item in live.values()
            ) or not self._advance(live):
                return

    def _advance(self, live: dict[int, _Process]) -> bool:
        """Continue the clock until a request is complete; all ranks wait."""
        waits = {
            r: item.waits
            for r, item in live.items()
            if item.waits and item.waits[0] == "end"
        }
        for rank, (_, _, until_ps) in waits.items():
            if until_ps is not None and self.job.is_before_next(until_ps):
                self.comparison.answered(rank, None)
                live[rank].waits = None
                live[rank].connection.send(("", None))
                return True
        if self.job.clock.next_ps is None:
            return self._unblock(live)
        while self.job.clock.advance():
            if any(
                self.job.end(rank, row[1]) is not None for rank, row in waits.items()
            ):
                return True
            nearest = (row[2] for row in waits.values() if row[2] is not None)
            if any(self.job.is_before_next(until_ps) for until_ps in nearest):
                return True
        return True

    def _replies(self) -> Iterator[tuple[_Process, Any]]:
        """Yield processes with a complete request, and the reply."""
        for rank, item in list(self._others.items()):
            if item.waits is None:
                continue
            request, *more = item.waits
            compared = self.comparison
            reply = (
                compared.values(rank, *more)
                if request == "values"
                else compared.answer(rank)
            )
            if reply is not None and reply.over:
                self._dismiss(rank)
            elif reply is not None:
                yield item, reply.value
        if self._comparing:
            self._compare()
        live = self._live()
        compares = self._comparing and self.comparison.live
        is_done = all(item.waits == ("done",) for item in live.values())
        if not compares and is_done:
            self._check()
            compares = self._comparing and self.comparison.live
        for rank, item in live.items():
            if item.waits is None:
                continue
            kind, *details = item.waits
            if kind == "end":
                end_ps = self.job.end(rank, details[0])
                if end_ps is not None:
                    self.comparison.answered(rank, end_ps)
                    yield item, end_ps
            elif kind == "values":
                values = self.job.values(rank, details[0])
                if values is not None:
                    yield item, values
            elif (
                self.digest
                and not compares
                and is_done
                and self.job.clock.next_ps is None
            ):
                if self.job.is_stuck(rank):
                    raise InputError(self.job.waits(rank))
                yield item, ()

    def _check(self) -> None:
        """Compare the running ranks' operations with an earlier run's, or start the compared ranks."""
        if self.digest:
            return
        self.digest = self.comparison.digest()
        if not self.compared.digest:
            return
        if self.digest == self.compared.digest:
            self.comparison.known(self.compared.operations)
        else:
            self._comparing = True

    def _unblock(self, live: dict[int, _Process]) -> bool:
        """Answer all requests with an error, as every rank waits for another; return False without requests."""
        waiting = {r: item for r, item in live.items() if item.waits != ("done",)}
        words = "; ".join(map(self.job.waits, sorted(waiting)))
        for item in waiting.values():
            item.waits = None
            item.connection.send(("error", words))
        return False
