"""Commands that run PyTorch programs, forked from a process that has imported it: importing it takes seconds.

A command and its starter of ranks (`clusim.programs.starter`) are processes as otherwise, with their own environment,
folder and output; only the starter is not a child of the command. `tests/torchrun/test_page.py` starts all anew.
"""

from __future__ import annotations

import atexit
import gc
import json
import os
import select
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable
from functools import cache
from importlib import import_module
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NoReturn

__all__ = ["clusim"]

_IMPORTED = (
    *(f"clusim.programs.{name}" for name in ("cuda", "data", "groups", "operators", "rank")),
    *("torch._dynamo", "torch.distributed.fsdp", "torch.distributed.tensor.parallel"),
    *("clusim_cli.commands.torchrun", "clusim_cli.commands.capture"),
)


def clusim(
    *words: object, cwd: Path | None = None, check: bool = False
) -> subprocess.CompletedProcess[str]:
    """Run a command with PyTorch imported, in the present environment."""
    texts = [str(word) for word in words]
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        given = {"words": texts, "cwd": str(cwd or Path.cwd()), "environment": dict(os.environ)}
        code = _server().run(given, out.fileno(), err.fileno())
        done = [file.seek(0) or file.read() for file in (out, err)]
    result = subprocess.CompletedProcess(["clusim", *texts], code, *done)
    if check:
        assert code == 0, result.stdout + result.stderr
    return result


class _Server:
    """Parent's side of the process with PyTorch."""

    def __init__(self) -> None:
        self.socket, other = socket.socketpair()
        program = f"from support.warm_torch import _serve; _serve({other.fileno()})"
        paths = os.pathsep.join([str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")])
        self.process = subprocess.Popen(
            [sys.executable, "-c", program],
            env=os.environ | {"PYTHONPATH": paths},
            pass_fds=[other.fileno()],
        )
        other.close()
        self.socket.settimeout(300)
        atexit.register(self.close)

    def run(self, given: dict[str, Any], *outputs: int) -> int:
        text = json.dumps(given).encode()
        socket.send_fds(self.socket, [len(text).to_bytes(8)], list(outputs))
        self.socket.sendall(text)
        return int.from_bytes(self.socket.recv(8), signed=True)

    def close(self) -> None:
        self.socket.close()
        self.process.wait()


@cache
def _server() -> _Server:
    return _Server()


def _serve(number: int) -> None:
    """Fork a command, and a starter for its ranks, for each request."""
    from clusim.programs.device import library

    library()
    for name in _IMPORTED:
        import_module(name)
    gc.freeze()
    with socket.socket(fileno=number) as asking:
        while True:
            head, outputs, *_ = socket.recv_fds(asking, 8, 2)
            if not head:
                return
            text = b""
            while len(text) < int.from_bytes(head):
                text += asking.recv(1 << 20)
            given = json.loads(text)
            asking.sendall(_answered(given, outputs, asking).to_bytes(8, signed=True))


def _answered(given: dict[str, Any], outputs: list[int], asking: socket.socket) -> int:
    """Run a command with a starter, and return its exit code."""
    own, other = Pipe()
    starter = _forked(lambda: _start(other), given, outputs, asking, own)
    other.close()
    command = _forked(lambda: _command(given, own, starter), given, outputs, asking)
    own.close()
    for each in outputs:
        os.close(each)
    _, status = os.waitpid(command, 0)
    os.waitpid(starter, 0)
    return os.waitstatus_to_exitcode(status)


def _forked(
    run: Callable[[], object], given: dict[str, Any], outputs: list[int], *closed: Any
) -> int:
    """Run a function in a process with the output, the folder and the environment of a command."""
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        for each in closed:
            each.close()
        for place, each in enumerate(outputs, 1):
            os.dup2(each, place)
            os.close(each)
        os.environ.clear()
        os.environ.update(given["environment"])
        os.chdir(given["cwd"])
        run()
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        sys.excepthook(*sys.exc_info())  # type: ignore[arg-type]
    finally:
        for file in (sys.stdout, sys.stderr):
            file.flush()
        os._exit(code)


def _start(connection: Connection) -> None:
    """Be `python -m clusim.programs.rank`, once the command has said what it needs."""
    try:
        environment = connection.recv()
    except EOFError:
        return
    os.environ.update(environment)
    sys.argv = ["rank", str(connection.fileno())]
    import_module("clusim.programs.rank").main()


def _command(given: dict[str, Any], connection: Connection, starter: int) -> NoReturn:
    from clusim.programs import starter as module
    from clusim_cli.main import main

    class Forked(module.Starter):
        def __init__(self, local: int) -> None:
            self._connection, self._running = connection, set()
            self._process = _Other(starter)  # type: ignore[assignment]
            connection.send({"LOCAL_WORLD_SIZE": str(local)})

    import_module("clusim.programs.launch").Starter = Forked  # type: ignore[attr-defined]
    sys.argv = ["clusim", *given["words"]]
    main()


class _Other:
    """Process that is not a child."""

    def __init__(self, pid: int) -> None:
        self.pid, self._ended = pid, os.pidfd_open(pid)

    def wait(self) -> None:
        select.select([self._ended], [], [])
