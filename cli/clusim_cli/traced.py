"""Traces that commands compare: files, or runs given by their command words."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import click


def trace_of(words: str, scratch: Path) -> Path:
    """Return a trace: the file `words`, or the trace of a run with the arguments `words`."""
    if Path(words).exists() or " " not in words:
        if not Path(words).exists() and not words.endswith((".h5", ".partial")):
            return _run([words], scratch)
        return Path(words)
    return _run(shlex.split(words), scratch)


def _run(arguments: list[str], scratch: Path) -> Path:
    from clusim_cli.commands.run import command as run

    if arguments[0] == "clusim":
        arguments = arguments[1:]
    if arguments[0] == "run":
        arguments = arguments[1:]
    context: Any = run.make_context("clusim run", [*arguments, "--trace-out", str(scratch)])
    with context, click.open_file("/dev/null", "w") as nowhere:
        import contextlib

        with contextlib.redirect_stdout(nowhere):
            run.invoke(context)
    return scratch
