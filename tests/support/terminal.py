"""A terminal for commands to print on."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TextIO

__all__ = ["Screen", "Terminal", "at_terminal", "terminal"]


@dataclass(frozen=True)
class Screen:
    """What came to a terminal, escape codes included, and the exit code."""

    text: str
    code: int


@dataclass
class Terminal:
    """A terminal to write on, and what came to it."""

    file: TextIO
    parts: list[bytes] = field(default_factory=list)

    @property
    def text(self) -> str:
        """All that came, once the terminal is closed."""
        return b"".join(self.parts).decode().replace("\r\n", "\n")


@contextmanager
def terminal() -> Iterator[Terminal]:
    """Give a terminal; it is closed, and all that came to it known, at the end."""
    master, slave = pty.openpty()
    with os.fdopen(slave, "w", encoding="utf-8") as file:
        own = Terminal(file)
        listener = threading.Thread(target=_listen, args=(master, own.parts))
        listener.start()
        yield own
    listener.join()
    os.close(master)


def _listen(master: int, parts: list[bytes]) -> None:
    while part := _read(master):
        parts.append(part)


def at_terminal(words: Sequence[str], columns: int, **env: str) -> Screen:
    """Run a command line with standard output and errors on a terminal of a width, and TERM=xterm unless told."""
    told = {**os.environ, "TERM": "xterm", "COLUMNS": str(columns), **env}
    command = [sys.executable, "-m", "clusim", *words]
    with terminal() as own:
        done = subprocess.run(command, stdin=own.file, stdout=own.file, stderr=own.file, env=told)
    return Screen(own.text, done.returncode)


def _read(master: int) -> bytes:
    try:
        return os.read(master, 1 << 16)
    except OSError:  # how Linux says that nobody has the other end any more
        return b""
