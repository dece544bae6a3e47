"""Children of one process that has imported the readers: the imports take longer than most of what is tried.

``python -m fuzz.forked`` with tests/ on the path reads requests, one JSON object per line, and prints how each ended.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

__all__ = ["Forks", "forks", "main"]

GUARD_S = 3600
"""Ends a child that the limit on its processor time did not end; no more than a guard."""


class Forks:
    """Runs ``main(arguments)`` of modules, each in a process of its own."""

    def __init__(self, process: subprocess.Popen[str], folder: Path) -> None:
        self._process, self._folder = process, folder

    def run(self, module: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run a module and return how it ended and what it wrote."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        files = [self._folder / name for name in ("out", "err")]
        for file in files:
            file.write_text("")
        asked = {"module": module, "arguments": arguments, "files": list(map(str, files))}
        self._process.stdin.write(f"{json.dumps(asked)}\n")
        self._process.stdin.flush()
        code = int(self._process.stdout.readline())
        out, err = (file.read_text(encoding="utf-8", errors="replace") for file in files)
        return subprocess.CompletedProcess([module, *arguments], code, out, err)


@contextmanager
def forks() -> Iterator[Forks]:
    """Have a process that forks."""
    command = [sys.executable, "-m", "fuzz.forked"]
    tests, pipe = Path(__file__).parents[1], subprocess.PIPE
    with (
        tempfile.TemporaryDirectory() as folder,
        subprocess.Popen(command, cwd=tests, stdin=pipe, stdout=pipe, text=True) as process,
    ):
        yield Forks(process, Path(folder))


def _child(module: str, arguments: list[str], files: list[str]) -> None:
    """Do what is asked, and end the process."""
    code = 1
    try:
        for number, file in enumerate(files, start=1):
            os.dup2(os.open(file, os.O_WRONLY), number)
        signal.alarm(GUARD_S)
        importlib.import_module(module).main(arguments)
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def main() -> None:
    """Fork a child for every line that comes in, one after the other."""
    importlib.import_module("fuzz.targets")
    for line in sys.stdin:
        asked = json.loads(line)
        pid = os.fork()
        if pid == 0:
            _child(**asked)
        _, status = os.waitpid(pid, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


if __name__ == "__main__":
    main()
