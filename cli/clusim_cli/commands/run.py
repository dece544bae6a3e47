"""``clusim run``: one collective on one fabric."""

from __future__ import annotations

import json
from typing import Any

import click

from clusim_cli.outputs import TRACE_OUT, GuardedCommand
from clusim_cli.params import (
    ENV,
    GRANULARITY,
    NCCL_VERSION,
    NODES,
    RANKS,
    SIZE,
    command_line,
)
from clusim_cli.progress import shown_progress

__all__ = ["command"]


@click.command("run", cls=GuardedCommand, short_help="Run a collective and print what it reached.")
@click.argument("topology")
@NODES
@click.option("--collective", default="allreduce", show_default=True, help="Operation.")
@click.option(
    "--algorithm",
    default="",
    help="How it is done: nccl is what NCCL would run, PLAN.xml or PLAN.json is a plan of MSCCL or MSCCL++."
    "  [default: nccl where NCCL runs, else the first that the operation has]",
)
@click.option(
    "--size",
    type=SIZE,
    default="256MiB",
    show_default=True,
    help="Size as in nccl-tests: 64M is 64 MiB.",
)
@click.option(
    "--ranks",
    type=RANKS,
    default=None,
    help="GPUs that take part, e.g. 0-7 or 0,2,4-6.  [default: all]",
)
@click.option(
    "--channels",
    type=click.IntRange(1, 64),
    default=None,
    help="Channels of an algorithm that is named.  [default: the fabric's]",
)
@click.option("--protocol", type=click.Choice(["simple", "ll", "ll128"]), default=None,
              help="How data and flags of an algorithm that is named travel.  [default: its first]")  # fmt: skip
@ENV
@NCCL_VERSION
@click.option("--dtype", default="float32", show_default=True, help="Type of the elements.")
@click.option("--redop", default="sum", show_default=True, help="Reduction.")
@click.option(
    "--root",
    type=click.IntRange(0),
    default=None,
    help="Root, of an operation that has one.  [default: the first rank]",
)
@click.option("--fault", "faults", multiple=True, metavar="TEXT",
              help="What breaks, e.g. 'link gpu3:nvl5 down at 2ms'; may be repeated.")  # fmt: skip
@click.option("--granularity", type=GRANULARITY, default="auto", show_default=True,
              help="Exact packets, bursts chosen by size, or bursts of about SIZE.")  # fmt: skip
@click.option("--engine", type=click.Choice(["c", "reference"]), default="c", show_default=True)
@click.option("--verify", is_flag=True, help="Carry real data and check them.")
@click.option("--trace-out", type=TRACE_OUT, default=None, help="Write an HDF5 trace.")
@click.option(
    "--trace-primitives/--no-trace-primitives",
    default=None,
    help="Put every completed slice into the trace, too.  [default: if at most a million]",
)
@click.option(
    "--trace-limit",
    type=SIZE,
    default="1GiB",
    show_default=True,
    help="Keep the trace below this size.",
)
@click.option("--seed", type=click.IntRange(0, 2**63 - 1), default=0, show_default=True)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.option("--no-progress", is_flag=True, help="Show no progress bar.")
def command(topology: str, as_json: bool, no_progress: bool, **options: Any) -> int:
    """Run a collective on TOPOLOGY, a preset or a topology file: as NCCL would, unless --algorithm says how.

    Prints time and bandwidths as nccl-tests defines them, the wire that is the limit, the busiest wires and
    why they stood still, and what crossed each tier and class of wires.

    Faults at time 0 are known when the collective is planned; later ones hit it unprepared. FAULT is one of:
    "link LINK down", "lanes LINK 1/2", "plane SWITCH down", "node NODE down", "errors LINK 1e-7" (bit errors),
    "rank N slow x1.3", "nic NIC flap for 500us"; with "at TIME" and "for TIME". LINK is A-B.0, A->B.0 (one direction)
    or gpu3:nvl5 (its fifth NVLink).
    """
    from clusim.analysis.limits import tables_json
    from clusim.nccl import parse_assignments
    from clusim.report.text import collective_report
    from clusim.run.job import Options
    from clusim.run.request import Request
    from clusim.run.setup import Setup
    from clusim.run.simulate import result_of

    setup = Setup(
        topology,
        options["nodes"],
        version=options["version"],
        env=tuple(parse_assignments(options["environment"]).items()),
        ranks=options["ranks"],
        faults=options["faults"],
    )
    names = (
        *("algorithm", "channels", "dtype", "redop", "root"),
        *("granularity", "seed", "verify", "engine"),
    )
    request = Request(
        *(setup, options["collective"], options["size"]),
        protocol=options["protocol"] or "",
        **{name: options[name] for name in names},
    )
    with shown_progress(not no_progress, options["trace_out"]) as progress:
        how = Options(
            trace_out=options["trace_out"],
            trace_primitives=options["trace_primitives"],
            trace_limit_bytes=options["trace_limit"],
            progress=progress,
            command=command_line(),
        )
        result = result_of(request, how)
    click.echo(
        json.dumps(result.to_json() | tables_json(result)) if as_json else collective_report(result)
    )
    if options["verify"] and result.verified is None:
        reason = "the plan is a custom one, which has no definition to compare with"
        click.echo(f"clusim: data: not verified: {reason}", err=True)
    if result.verified is False:
        click.echo(f"clusim: data: wrong: {result.verify_note}", err=True)
        return 1
    return 0
