"""Processes of the running ranks, and the process that joins them.

A rank requests the end of a call or of a step over a connection, and waits for the answer. The joining process has the
`ProgramJob` and simulates. It has all requests, and detects ranks that wait for each other.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from typing import Any

from clusim.base.errors import ClusimError, InputError
from clusim.programs.clock import IssuedCall
from clusim.programs.job import ProgramJob
from clusim.programs.step import RankRecord, StepTime


class JobLink:
    """Connection of a rank to its job: `clusim.programs.clock.Peers` in the process of the rank."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def _ask(self, *words: Any) -> Any:
        try:
            self._connection.send(words)
            kind, answer = self._connection.recv()
        except (EOFError, OSError):
            # The joining process has ended, with the reason.
            os._exit(1)
        if kind == "error":
            raise InputError(answer)
        return answer

    def issue(
        self, call: IssuedCall, ready_ps: int, after: Iterable[int], sent: Any
    ) -> tuple[int, int, int | None]:
        """Return number, time in isolation and end of a call [ps]; an unknown end is None."""
        result: tuple[int, int, int | None] = self._ask("issue", call, ready_ps, list(after), sent)
        return result

    def end(self, number: int) -> tuple[int, dict[int, Any]]:
        """Wait for the end of a call [ps]; return it and the values of its ranks."""
        result: tuple[int, dict[int, Any]] = self._ask("end", number)
        return result

    def step(self, record: RankRecord) -> StepTime | None:
        """End a step; return its time, or None if other ranks wait for this one."""
        result: StepTime | None = self._ask("step", record)
        return result

    def of(self, rank: int) -> int:
        """Return the running rank that represents a rank."""
        return int(self._ask("of", rank))

    def done(self, result: Any) -> None:
        """Report the result of the rank."""
        self._ask("done", result)

    def failed(self, error: ClusimError) -> None:
        """Report an error that ends the job."""
        self._ask("failed", str(error))


@dataclass(slots=True)
class _Process:
    """A running rank: its process, the request that it waits for, and its result."""

    process: subprocess.Popen[bytes]
    connection: Connection
    waits: tuple[Any, ...] | None = None
    result: Any = None


@dataclass(slots=True)
class RankProcesses:
    """Running ranks as processes.

    Parameters
    ----------
    job : ProgramJob
        The ranks' meetings.
    environment : callable
        Environment variables of a rank.
    given : object
        Task of every rank, as `clusim.programs.rank` reads it.
    """

    job: ProgramJob
    environment: Callable[[int], dict[str, str]]
    given: Any
    _ranks: dict[int, _Process] = field(default_factory=dict)

    def run(self) -> dict[int, Any]:
        """Run all ranks to their ends; return the result of each.

        Raises
        ------
        InputError
            Of a rank, or ranks wait for each other.
        SystemExit
            A rank ended with an exit code other than 0.
        """
        try:
            self._start(self.job.running)
            while live := self._live():
                for ready in wait([item.connection for item in live.values()]):
                    rank = next(r for r, item in live.items() if item.connection is ready)
                    self._serve(rank, live[rank])
                self._answer()
            return {rank: item.result for rank, item in self._ranks.items()}
        finally:
            self._stop()

    def _live(self) -> dict[int, _Process]:
        return {r: item for r, item in self._ranks.items() if r not in self.job.ended}

    def _start(self, ranks: Sequence[int]) -> None:
        for rank in ranks:
            own, other = Pipe()
            words = [sys.executable, "-m", "clusim.programs.rank", str(other.fileno())]
            environment = os.environ | self.environment(rank)
            process = subprocess.Popen(words, env=environment, pass_fds=[other.fileno()])
            other.close()
            own.send((rank, self.given))
            self._ranks[rank] = _Process(process, own)

    def _serve(self, rank: int, item: _Process) -> None:
        """Handle a request, or the end of a process."""
        try:
            kind, *given = item.connection.recv()
        except (EOFError, OSError):
            code = item.process.wait()
            if code < 0:
                name = signal.Signals(-code).name
                raise ClusimError(f"rank {rank} was ended by {name}") from None
            if code or item.result is None:
                raise SystemExit(code or 1) from None
            self.job.ended.add(rank)
            return
        if kind == "failed":
            raise InputError(given[0])
        if kind == "issue":
            self._start(self.job.starts(rank, given[0]))
            issued = self.job.issue(rank, *given)
            item.connection.send(("", (issued.number, issued.alone_ps, issued.end_ps)))
        elif kind == "of":
            item.connection.send(("", self.job.of[given[0]]))
        elif kind == "done":
            item.result = given[0]
            item.connection.send(("", None))
        else:
            if kind == "step":
                self.job.record(rank, given[0])
            item.waits = (kind, *given)

    def _answer(self) -> None:
        """Answer complete requests, and all with an error if every rank waits for another."""
        answered = True
        while answered:
            answered = False
            for rank, item in self._live().items():
                if item.waits is None:
                    continue
                kind, given = item.waits
                answer: Any = self.job.stepped(rank) if kind == "step" else None
                if kind == "end":
                    ended = self.job.end(given)
                    answer = None if ended is None else (ended.end_ps, ended.sent)
                if answer is not None:
                    item.waits, answered = None, True
                    item.connection.send(("", answer))
        self._unblock()

    def _unblock(self) -> None:
        live = self._live()
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
            live[rank].waits = None
            live[rank].connection.send(("", None))

    def _stop(self) -> None:
        """End all processes."""
        for item in self._ranks.values():
            item.connection.close()
            if item.process.poll() is None:
                item.process.send_signal(signal.SIGTERM)
        for item in self._ranks.values():
            item.process.wait()
