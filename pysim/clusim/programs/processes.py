"""Processes of the running ranks, and the process that joins them.

A rank requests the end of a call or of a step over a connection, and waits for the answer. The joining process has the
`ProgramJob` and simulates. It has all requests, and detects ranks that wait for each other.
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
from clusim.programs.clock import IssuedCall
from clusim.programs.job import ProgramJob
from clusim.programs.starter import Starter
from clusim.programs.step import RankRecord, StepTime
from clusim.programs.symmetry import ComparedRanks, Operation, RankComparison, RankReply

MOST_COMPARED = max(1, (os.cpu_count() or 1) // 2)
"""Compared ranks that run at the same time."""


class JobLink:
    """Connection of a rank to its job: `clusim.programs.clock.Peers` in the process of the rank.

    Attributes
    ----------
    operations : callable
        Operations since the last call with their lines, which requests report; empty if they are not compared.
    repeats : bool
        Calls that end without other running ranks are answered here if an equal one was before, and only reported.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self.repeats = False
        self._alone_ps: dict[IssuedCall, int] = {}
        self._running: list[int] = []
        self.operations: Callable[[], list[tuple[Operation, str]]] = list

    def _send(self, *words: Any) -> None:
        try:
            self._connection.send(words)
        except OSError:
            # The joining process has ended, with the reason.
            os._exit(1)

    def _ask(self, *words: Any) -> Any:
        self._send(*words)
        try:
            kind, answer = self._connection.recv()
        except (EOFError, OSError):
            os._exit(1)
        if kind == "error":
            raise InputError(answer)
        return answer

    def issue(
        self, call: IssuedCall, ready_ps: int, after: Iterable[int], sent: Any
    ) -> tuple[int, int, int | None]:
        """Return number, time in isolation and end of a call [ps]; an unknown end is None."""
        words = self.operations(), call, ready_ps, list(after), sent
        alone_ps = self._alone_ps.get(call)
        if alone_ps is not None:
            self._send("issued", *words)
            return -1, alone_ps, ready_ps + alone_ps
        number, alone_ps, end_ps, *running = self._ask("issue", *words)
        if running != self._running:
            self._running = running
            self._alone_ps.clear()
        if self.repeats and number < 0 and not call.splits:
            self._alone_ps[call] = alone_ps
        return number, alone_ps, end_ps

    def end(self, number: int) -> tuple[int, dict[int, Any]]:
        """Wait for the end of a call [ps]; return it and the values of its ranks."""
        result: tuple[int, dict[int, Any]] = self._ask("end", number)
        return result

    def step(self, record: RankRecord) -> StepTime | None:
        """End a step; return its time, or None if other ranks wait for this one."""
        result: StepTime | None = self._ask("step", self.operations(), record)
        return result

    def of(self, rank: int) -> int:
        """Return the running rank that represents a rank."""
        return int(self._ask("of", rank))

    def done(self, result: Any) -> None:
        """Report the result of the rank."""
        self._ask("done", self.operations(), result)

    def failed(self, error: ClusimError) -> None:
        """Report an error that ends the job."""
        self._ask("failed", str(error))


@dataclass(slots=True)
class _Process:
    """A rank: its process, the request that it waits for, and its result."""

    pid: int
    connection: Connection
    waits: tuple[Any, ...] | None = None
    result: Any = None


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
        self.starter, self.job, self.environment, self.given = starter, job, environment, given
        self.compared = compared
        self.comparison = RankComparison(job, compared.ranks, self._dismiss)
        self._ranks: dict[int, _Process] = {}
        self._others: dict[int, _Process] = {}
        self.digest = ""
        self._comparing = False

    def run(self) -> dict[int, Any]:
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
                [item.connection for item in (*live.values(), *self._others.values())]
            ):
                rank = next((r for r, item in live.items() if item.connection is ready), None)
                if rank is not None:
                    self._serve(rank, live[rank])
                    continue
                for other, item in list(self._others.items()):
                    if item.connection is ready:
                        self._serve_compared(other, item)
            self._answer()
        return {rank: item.result for rank, item in self._ranks.items()}

    def _live(self) -> dict[int, _Process]:
        return {r: item for r, item in self._ranks.items() if r not in self.job.ended}

    def _started(self, rank: int, *, silent: bool = False) -> _Process:
        pid, connection = self.starter.start(self.environment(rank), silent=silent)
        connection.send((rank, self.given))
        return _Process(pid, connection)

    def _start(self, ranks: Sequence[int]) -> None:
        self.comparison.runs(ranks)
        for rank in ranks:
            self._ranks[rank] = self._started(rank)

    def _compare(self) -> None:
        """Start compared ranks, up to `MOST_COMPARED` at a time."""
        waiting = (rank for rank in sorted(self.comparison.live) if rank not in self._others)
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
            kind, *given = item.connection.recv()
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
            raise InputError(given[0])
        if kind in ("issue", "issued"):
            operations, call, *more = given
            self._start(self.job.starts(rank, call))
            issued = self.job.issue(rank, call, *more)
            self.comparison.note(rank, "issue", operations, call, more[-1])
            self.comparison.answered(rank, issued=issued)
            if kind == "issue":
                reply = issued.number, issued.alone_ps, issued.end_ps, len(self.job.running)
                item.connection.send(("", reply))
        elif kind == "of":
            item.connection.send(("", self.job.of[given[0]]))
        elif kind == "end":
            item.waits = kind, given[0]
        else:
            self.comparison.note(rank, kind, given[0])
            if kind == "step":
                self.job.record(rank, given[1])
            else:
                self.comparison.answered(rank)
                item.result = given[1]
            item.waits = (kind,)

    def _serve_compared(self, rank: int, item: _Process) -> None:
        """Handle a request, or the end of a compared rank."""
        try:
            kind, *given = item.connection.recv()
        except (EOFError, OSError):
            self._others.pop(rank)
            code = self.starter.code(item.pid)
            if rank in self.comparison.live:
                self.comparison.failed(rank, f"exit code {code}")
            return
        if kind == "failed":
            self.comparison.failed(rank, given[0])
            self._dismiss(rank)
        elif kind == "of":
            item.connection.send(("", self.job.of[given[0]]))
        elif kind == "end":
            item.waits = kind, given[0]
        else:
            operations, *more = given
            called = (more[0], more[-1]) if kind == "issue" else ()
            self.comparison.note(rank, kind, operations, *called)
            item.waits = (kind,)

    def _answer(self) -> None:
        """Answer complete requests, and all with an error if every rank waits for another."""
        answered = True
        while answered:
            answered = False
            for item, value in self._replies():
                item.waits, answered = None, True
                item.connection.send(("", value))
        self._unblock()

    def _replies(self) -> Iterator[tuple[_Process, Any]]:
        """Yield processes with a complete request, and the reply."""
        for rank, item in list(self._others.items()):
            if item.waits is None:
                continue
            reply: RankReply | None
            if item.waits[0] == "end":
                met = self.comparison.end(rank, item.waits[1])
                reply = None if met is None else RankReply((met.end_ps, met.sent))
            else:
                reply = self.comparison.answer(rank)
            if reply is not None and reply.over:
                self._dismiss(rank)
            elif reply is not None:
                yield item, reply.value
        if self._comparing:
            self._compare()
        live = self._live()
        compares = self._comparing and self.comparison.live
        if not compares and all(item.waits == ("done",) for item in live.values()):
            self._check()
            compares = self._comparing and self.comparison.live
        for rank, item in live.items():
            if item.waits is None:
                continue
            kind = item.waits[0]
            answer: Any = self.job.stepped(rank) if kind == "step" else None
            if answer is not None:
                self.comparison.answered(rank, step=answer)
            elif kind == "end":
                ended = self.job.end(item.waits[1])
                answer = None if ended is None else (ended.end_ps, ended.sent)
            elif kind == "done" and self.digest and not compares:
                answer = ()
            if answer is not None:
                yield item, answer

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

    def _unblock(self) -> None:
        live = {r: item for r, item in self._live().items() if item.waits != ("done",)}
        if not live or any(item.waits is None for item in live.values()):
            return
        released = [rank for rank, item in live.items() if item.waits and item.waits[0] == "step"]
        if not released:
            words = "; ".join(
                self.job.waits(rank, item.waits[1])
                for rank, item in sorted(live.items())
                if item.waits is not None
            )
            for item in live.values():
                item.waits = None
                item.connection.send(("error", words))
        for rank in released:
            self.job.release(rank)
            self.comparison.answered(rank)
            live[rank].waits = None
            live[rank].connection.send(("", None))
