"""``clusim schema``: JSON Schemas of ``--json`` output."""

from __future__ import annotations

import json

import click

from clusim_cli.outputs import GuardedCommand


@click.command(
    "schema",
    cls=GuardedCommand,
    raw=True,
    short_help="Print the JSON Schema of --json.",
)
@click.argument("words", nargs=-1, metavar="[COMMAND...]")
def command(words: tuple[str, ...]) -> None:
    """Print the JSON Schema of the --json output of COMMAND, such as "run" or "analyze blame"; without COMMAND, list
    the commands with --json.

    The schema lists all keys of the output, with units in their names or descriptions.
    """
    from clusim_cli.schemas import known, schema

    click.echo(
        json.dumps(schema(" ".join(words)), indent=2)
        if words
        else "\n".join(known())
    )
