"""``clusim traffic``: synthetic traffic on one fabric."""

from __future__ import annotations

import json
from typing import Any

import click

from clusim_cli import options
from clusim_cli.outputs import GuardedCommand, doubts
from clusim_cli.params import SIZE, TIME, TOPOLOGY, command_line, one_of
from clusim_cli.progress import said_ended, shown_progress

PATTERN = one_of(
    *("permutation", "uniform", "alltoall", "incast", "hotspot"), random="uniform", a2a="alltoall"
)


@click.command(
    "traffic",
    cls=GuardedCommand,
    short_help="Run synthetic traffic and print latency and throughput.",
)
@click.argument("topology", type=TOPOLOGY)
@options.nodes()
@click.option("--pattern", type=PATTERN, default="permutation", show_default=True,
              help="Senders and receivers.")  # fmt: skip
@click.option("--message", type=SIZE, default=None,
              help="Size of a message.  [default: 16MiB; one packet for uniform and hotspot]")  # fmt: skip
@click.option(
    "--packet", type=SIZE, default="4KiB", show_default=True, help="Largest payload of a packet."
)
@click.option("--load", type=float, default=None,
              help="uniform, hotspot: load as a share of the topology's capacity.  [default: 0.6]")  # fmt: skip
@click.option("--duration", type=TIME, default="1ms", show_default=True,
              help="uniform, hotspot: time in which messages arrive.")  # fmt: skip
@click.option("--routing", type=one_of("auto", "ecmp", "spray", "adaptive"), default="auto", show_default=True,
              help="One path per message, all paths in turn, or the emptiest queue.")  # fmt: skip
@options.granularity(default="packet")
@options.engine()
@options.threads()
@options.time_limit()
@options.trace_out()
@options.trace_limit()
@options.seed()
@options.strict()
@options.as_json("clusim_cli.forms:TrafficJson")
@options.no_progress()
def command(
    topology: str, nodes: int | None, as_json: bool, no_progress: bool, **given: Any
) -> int:
    """Run synthetic traffic on TOPOLOGY: a preset, a topology file or a generator such as fat-tree:k=8.

    `clusim topo show fat-tree:k=4` prints the topology of a generator.
    """
    from clusim.analysis.latency import summarise
    from clusim.report.runreport import traffic_report
    from clusim.simulation.api import traffic
    from clusim.simulation.setup import Setup

    doubtful = doubts(Setup(topology, nodes), given.pop("strict"), quiet=as_json)
    pattern, message = given.pop("pattern"), given.pop("message")
    with shown_progress(not no_progress, given["trace_out"]) as shown:
        given["watch"].tell = shown.begins
        given |= {"nodes": nodes, "progress": shown.progress, "command": command_line()}
        result = traffic(topology, pattern, message, **given)
    if as_json:
        extra = {"pattern": pattern, "doubts": doubtful}
        click.echo(json.dumps(result.to_json() | extra | summarise(result).to_json()))
    else:
        click.echo(traffic_report(result))
    return said_ended(result.unfinished, result.time_ps, shown)
