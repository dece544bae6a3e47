"""``clusim diff``: two runs compared."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

import click

from clusim_cli import options
from clusim_cli.outputs import GuardedCommand
from clusim_cli.traced import echo_table, trace_of

TOP = 20


@click.command(
    "diff",
    cls=GuardedCommand,
    short_help="Compare two runs, in sentences with numbers.",
)
@click.argument("a")
@click.argument("b")
@options.top(default=TOP)
@options.as_csv()
@options.as_json("clusim.analysis.tablejson:DiffJson")
def command(a: str, b: str, top: int, as_csv: bool, as_json: bool) -> None:
    """Show the difference in time of run B compared with run A.

    A and B are traces, or the words of a `clusim run` in quotes, which is run: clusim diff "dgx-a100 --size 16MiB"
    "dgx-h100 --size 16MiB".
    """
    from clusim.analysis.diff import diff

    if as_json and as_csv:
        raise click.UsageError("--json and --csv exclude each other")
    with TemporaryDirectory() as scratch:
        paths = [
            trace_of(words, Path(scratch) / f"{name}.h5")
            for name, words in (("a", a), ("b", b))
        ]
        table = diff(*paths)
    every = as_json or as_csv
    echo_table(
        table, as_json=as_json, as_csv=as_csv, top=None if every else top or None
    )
