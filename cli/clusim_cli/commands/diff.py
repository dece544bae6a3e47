"""``clusim diff``: two runs compared."""

from __future__ import annotations

import shlex
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import click

from clusim_cli import options
from clusim_cli.outputs import GuardedCommand

__all__ = ["command"]

TOP = 20


@click.command(
    "diff", cls=GuardedCommand, short_help="Compare two runs, in sentences with numbers."
)
@click.argument("a")
@click.argument("b")
@options.top(TOP)
@options.as_csv()
@options.as_json("clusim.analysis.tablejson:DiffJson")
def command(a: str, b: str, top: int, as_csv: bool, as_json: bool) -> None:
    """Say where the time of run B went compared with run A.

    A and B are traces, or the words of a `clusim run` in quotes, which is run: clusim diff "dgx-a100 --size 16MiB"
    "dgx-h100 --size 16MiB".
    """
    from clusim.analysis.diff import diff
    from clusim_cli.tables import echo_table

    if as_json and as_csv:
        raise click.UsageError("--json and --csv: give one of them")
    with TemporaryDirectory() as scratch:
        paths = [
            _trace(words, Path(scratch) / f"{name}.h5") for name, words in (("a", a), ("b", b))
        ]
        table = diff(*paths)
    every = as_json or as_csv
    echo_table(table, as_json=as_json, as_csv=as_csv, top=None if every else top or None)


def _trace(words: str, scratch: Path) -> Path:
    """Return a trace: the file of that name, or that of a run made of `words`."""
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
