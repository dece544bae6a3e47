"""``clusim traffic``: synthetic traffic on one fabric."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from clusim_cli import options
from clusim_cli.outputs import GuardedCommand, doubts
from clusim_cli.params import SIZE, TIME, TOPOLOGY, command_line, one_of
from clusim_cli.progress import said_ended, shown_progress

if TYPE_CHECKING:
    from clusim.simulation.traffic import Pattern

PATTERN = one_of(
    "permutation", "uniform", "alltoall", "incast", "hotspot", "tornado", "transpose",
    "bit-complement", "stride", "group-alltoall",
    random="uniform", a2a="alltoall", shift="stride",
)  # fmt: skip


@click.command(
    "traffic",
    cls=GuardedCommand,
    short_help="Run synthetic traffic and print latency and throughput.",
)
@click.argument("topology", type=TOPOLOGY)
@options.nodes()
@click.option(
    "--pattern", type=PATTERN, default=None, metavar="NAME",
    help=f"Senders and receivers: {', '.join(PATTERN.choices)}.  [default: permutation]",
)  # fmt: skip
@click.option("--flows", type=click.Path(path_type=Path), metavar="FILE.csv",
              help="CSV table of flows, in place of a pattern: source, destination, bytes, start, class.")  # fmt: skip
@click.option("--span", type=click.IntRange(1), default=None,
              help="stride: distance to the receiver; group-alltoall: endpoints of a group.")  # fmt: skip
@click.option("--message", type=SIZE, default=None,
              help="Size of a message.  [default: 16MiB; one packet for uniform and hotspot]")  # fmt: skip
@click.option(
    "--packet",
    type=SIZE,
    default="4KiB",
    show_default=True,
    help="Largest payload of a packet.",
)
@click.option("--load", type=float, default=None,
              help="uniform, hotspot: load as a share of the topology's capacity.  [default: 0.6]")  # fmt: skip
@click.option("--duration", type=TIME, default=None,
              help="uniform, hotspot: time in which messages arrive.  [default: 1ms]")  # fmt: skip
@options.routing()
@options.flowlet_gap()
@options.reorder()
@options.policy()
@options.granularity(default="packet")
@options.engine()
@options.threads()
@options.time_limit()
@options.trace_out()
@options.trace_limit()
@options.seed()
@options.plot(more="It has the rates of the flows over time.")
@options.strict()
@options.as_json("clusim_cli.forms:TrafficJson")
@options.no_progress()
def command(topology: str, nodes: int | None, as_json: bool, no_progress: bool, plot: Path | None,
            **given: Any) -> int:  # fmt: skip
    """Run synthetic traffic on TOPOLOGY: a preset, a topology file or a generator such as fat-tree:k=8.

    Messages pass the shortest wires and the NICs of their endpoints, without NCCL: no PXN, in-switch reductions or
    kernels, and no copies in host memory (p2p_level, gdr_level). `clusim topo show fat-tree:k=4` prints the topology of
    a generator.
    """
    from clusim.analysis.flowrates import flow_rates, summarise
    from clusim.base.files import check_place
    from clusim.report.runreport import traffic_report
    from clusim.simulation.setup import Setup
    from clusim.simulation.traffic_api import traffic

    doubtful = doubts(Setup(topology, nodes), given.pop("strict"), quiet=as_json)
    pattern: Pattern | None = given.pop("pattern")
    message, by_flows = given.pop("message"), given["flows"] is not None
    given["gap"] = given.pop("gap_ps")
    if given["duration"] is None:
        del given["duration"]
    if by_flows and pattern is not None:
        raise click.UsageError("--flows and --pattern exclude each other")
    if plot is not None:
        if not by_flows:
            raise click.UsageError("--plot needs --flows")
        check_place(plot)
    with shown_progress(not no_progress, given["trace_out"]) as shown:
        given["watch"].tell = shown.begins
        given |= {
            "nodes": nodes,
            "progress": shown.progress,
            "command": command_line(),
        }
        result = traffic(topology, pattern or "permutation", message, **given)
    rates = flow_rates(result) if by_flows else None
    if plot is not None and rates is not None:
        from clusim.base.display import Plot
        from clusim.report.charts import plot_flows

        Plot(plot_flows(rates)).save(plot)
    if as_json:
        extra = {
            "pattern": "flows" if by_flows else pattern or "permutation",
            "doubts": doubtful,
        }
        form = result.to_json() | extra | summarise(result).to_json()
        click.echo(
            json.dumps(form if rates is None else form | {"flows": rates.to_json()})
        )
    else:
        result.diagnose()
        click.echo(traffic_report(result, rates))
    return said_ended(result.unfinished, result.time_ps, shown)
