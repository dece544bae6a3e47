"""Process that imports PyTorch once and forks a process per rank."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from multiprocessing.reduction import recv_handle, send_handle
from types import TracebackType


class Starter:
    """Parent's side: starts ranks, and returns their exit codes.

    Parameters
    ----------
    local : int
        Simulated GPUs, equal for all ranks.
    """

    def __init__(self, local: int) -> None:
        self._connection, other = Pipe()
        words = [sys.executable, "-m", "clusim.programs.rank", str(other.fileno())]
        environment = os.environ | {"LOCAL_WORLD_SIZE": str(local)}
        self._process = subprocess.Popen(
            words, env=environment, pass_fds=[other.fileno()]
        )
        other.close()
        self._running: set[int] = set()

    def start(
        self, environment: Mapping[str, str], *, silent: bool = False
    ) -> tuple[int, Connection]:
        """Start a rank; return its process and the connection to it.

        Parameters
        ----------
        environment : dict
            Variables of the rank.
        silent : bool
            Discard its output.
        """
        connection, other = Pipe()
        self._connection.send(("start", dict(environment), silent))
        send_handle(self._connection, other.fileno(), self._process.pid)
        other.close()
        pid = int(self._connection.recv())
        self._running.add(pid)
        return pid, connection

    def code(self, pid: int) -> int:
        """Wait for the end of a rank; return its exit code, negative for a signal."""
        self._connection.send(("wait", pid, False))
        self._running.discard(pid)
        return int(self._connection.recv())

    def stop(self, pid: int) -> None:
        """End a rank."""
        os.kill(pid, signal.SIGTERM)
        self.code(pid)

    def __enter__(self) -> Starter:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        """End all ranks."""
        for pid in self._running:
            os.kill(pid, signal.SIGTERM)
        self._connection.close()
        self._process.wait()


def next_rank(connection: Connection) -> Connection | None:
    """Serve a `Starter`; return in each forked rank with its connection, and None after the last one."""
    while True:
        try:
            word, values, silent = connection.recv()
        except EOFError:
            return None
        if word == "wait":
            _, status = os.waitpid(values, 0)
            connection.send(os.waitstatus_to_exitcode(status))
            continue
        handle = recv_handle(connection)
        pid = os.fork()
        if pid:
            os.close(handle)
            connection.send(pid)
            continue
        connection.close()
        os.environ |= values
        if silent:
            void = os.open(os.devnull, os.O_WRONLY)
            os.dup2(void, 1)
            os.dup2(void, 2)
            os.close(void)
        return Connection(handle)
