"""Traces that commands compare (files, or runs given by their command words), and tables of analyses."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from clusim.base.tables import ColumnTable


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
    context: Any = run.make_context(
        "clusim run", [*arguments, "--trace-out", str(scratch)]
    )
    with context, click.open_file("/dev/null", "w") as nowhere:
        import contextlib

        with contextlib.redirect_stdout(nowhere):
            run.invoke(context)
    return scratch


def echo_table(
    table: ColumnTable,
    *,
    as_json: bool,
    as_csv: bool,
    top: int | None,
    hidden: tuple[str, ...] = (),
) -> None:
    """Print a table in the requested format; text is preceded by the notes."""
    shown = table.top(top)
    if as_json:
        click.echo(json.dumps(shown.to_json()))
    elif as_csv:
        click.echo(shown.to_csv(), nl=False)
    else:
        if not table.facts.get("complete", True):
            click.echo("  unfinished run: this is how far it got\n")
        for note in table.notes:
            click.echo(f"  {note}")
        click.echo("")
        for text in shown.text(hidden):
            click.echo(text)
        if len(shown) < len(table):
            click.echo(
                f"  ... {len(table) - len(shown)} more rows; --top 0 shows all"
            )
