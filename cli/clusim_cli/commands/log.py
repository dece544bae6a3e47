"""``clusim log``: content of logs of NCCL, RCCL or nccl-tests."""

from __future__ import annotations

import json

import click

from clusim_cli import options
from clusim_cli.outputs import GuardedGroup
from clusim_cli.params import RECORDING


@click.group(
    "log", cls=GuardedGroup, short_help="Read logs of NCCL, RCCL and nccl-tests."
)
def command() -> None:
    """Read logs of real jobs: output of NCCL_DEBUG=INFO, and tables of nccl-tests."""


@command.command("summary", short_help="Print the content of a log.")
@click.argument("logs", nargs=-1, required=True, metavar="LOG...", type=RECORDING)
@options.as_json("clusim.formats.logs.summary:LogJson")
@options.all_lines()
def summary(logs: tuple[str, ...], as_json: bool, everything: bool) -> None:
    """Print the content of LOG: versions, hosts, communicators, rings, transports, calls, and inconsistencies.

    Several files are the log of one job. They may be compressed (gzip, bzip2, xz); - is standard input.
    """
    from clusim.formats.logs import read_logs, report, summarize

    log = read_logs(logs)
    if as_json:
        click.echo(json.dumps(summarize(log)))
    else:
        click.echo(report(log, everything=everything))
