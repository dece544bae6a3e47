"""``clusim run``: one collective on one fabric."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

import click

from clusim_cli import options
from clusim_cli.outputs import GuardedCommand, doubts
from clusim_cli.params import PERCENT, RANKS, TOPOLOGY, command_line
from clusim_cli.progress import said_ended, shown_progress

if TYPE_CHECKING:
    from clusim.simulation.request import Request


@click.command(
    "run",
    cls=GuardedCommand,
    short_help="Run a collective and print its time and bandwidth.",
)
@click.argument("topology", type=TOPOLOGY)
@options.nodes()
@options.domains()
@options.collective()
@options.algorithm(said="nccl on systems with NCCL, otherwise the operation's first")
@options.size(default="256MiB")
@click.option(
    "--ranks",
    type=RANKS,
    default=None,
    help="Participating GPUs, e.g. 0-7 or 0,2,4-6.  [default: all]",
)
@options.channels(said="NCCL's choice, or the topology's for a named algorithm")
@options.protocol(said="NCCL's choice, or the first one of a named algorithm")
@options.env()
@options.symmetric()
@options.nccl_version()
@options.dtype()
@options.redop()
@click.option(
    "--root",
    type=click.IntRange(0),
    default=None,
    help="Root of operations with a root.  [default: the first rank]",
)
@options.faults()
@options.routing()
@options.flowlet_gap()
@options.reorder()
@options.policy()
@options.granularity()
@options.engine()
@options.threads()
@options.time_limit()
@click.option("--verify", is_flag=True, help="Carry real data and check them.")
@options.trace_out()
@click.option(
    "--trace-primitives/--no-trace-primitives",
    default=None,
    help="Also record every completed slice in the trace.  [default: up to a million]",
)
@options.trace_limit()
@options.confirm(more="The bottleneck is removed; automatic up to about 2 s.")
@click.option(
    "--sensitivity",
    is_flag=True,
    help="Also print the derivatives of the time by rates, latencies and overheads, and its interval.",
)
@click.option(
    "--improve",
    type=PERCENT,
    default=None,
    help="Also find the smallest set of changes, one or two, that shorten the run by this part, e.g. 20%.",
)
@options.seed()
@options.strict()
@options.as_json("clusim_cli.forms:RunJson")
@options.no_progress()
def command(topology: str, as_json: bool, no_progress: bool, **given: Any) -> int:
    """Simulate a collective on TOPOLOGY (a preset or a topology file), with NCCL's plan unless --algorithm is set.

    Prints time and bandwidths as nccl-tests defines them, the bottleneck (time breakdown along the critical path, and
    the simulated savings of changes), the busiest wires with the reasons of their stalls, and the traffic per tier and
    link class.

    The plan avoids faults at time 0; later faults do not change it. FAULT is one of: "link LINK down",
    "lanes LINK 1/2", "plane SWITCH down", "node NODE down", "errors LINK 1e-7" (bit errors), "rank N slow x1.3",
    "nic NIC flap for 500us"; with "at TIME" and "for TIME". LINK is A-B.0, A->B.0 (one direction) or gpu3:nvl5 (fifth
    NVLink of gpu3).
    """
    from clusim.base.errors import TimeLimitReached
    from clusim.report.headline import collective_head
    from clusim.simulation.api import result_of
    from clusim.simulation.job import RunOptions
    from clusim.simulation.plan import plan
    from clusim.simulation.request import taken
    from clusim.simulation.reruns import Budget, Repeats

    request = asked(topology=topology, **given)
    results = doubts(request.setup, given["strict"], quiet=as_json)
    with shown_progress(not no_progress, given["trace_out"]) as shown:
        given["watch"].tell = shown.begins
        given["confirm"] = given["confirm"] or None
        budget = Budget()
        how = RunOptions(
            progress=shown.progress,
            command=command_line(),
            budget=budget,
            **taken(given, RunOptions),
        )
        planned = plan(request)
        result = result_of(planned, how)
        # Its diagnosis may need the time of the run again. With faults, their cost is among the first lines.
        headed = not (as_json or request.setup.faults)
        if headed:
            click.echo(collective_head(result))
            sys.stdout.flush()
        derived = None
        if given["sensitivity"]:
            shown.begins("re-simulation with other figures")
            derived = result.sensitivity()
        if result.complete:
            shown.begins("simulation of remedies")
            result.diagnose()
        improvement = None
        if given["improve"] is not None and result.complete:
            from clusim.studies.improve import improve

            shown.begins("simulation of changes")
            improvement = improve(request, result, given["improve"], how)
        if request.setup.faults:
            shown.begins("simulation without the faults")
        from clusim.simulation.fault_cost import fault_cost

        cost, left = None, []
        try:
            cost = fault_cost(
                planned,
                result,
                Repeats(how.confirm, how.progress, how.watch, budget),
            )
        except TimeLimitReached:
            left.append(f"fault cost; {how.watch.words}")
    judged = result.verdict.unfinished if result.complete else ""
    left = [judged, derived.unfinished if derived is not None else "", *left]
    left += [improvement.unfinished] if improvement is not None else []
    left = [text for text in left if text]
    if as_json:
        from clusim.analysis.limits import wire_tables
        from clusim.simulation.expected import expected_of

        expected = expected_of(planned, result.call.algorithm if result.call else "")
        more = {
            "verdict": result.verdict.to_json(),
            "expected_error": expected.error.to_json(),
            "doubts": results,
        }
        more |= {"fault_cost": cost.to_json()} if cost is not None else {}
        more |= {"unfinished": left} if left else {}
        more |= {"sensitivity": derived.to_json()} if derived is not None else {}
        more |= (
            {"improvement": improvement.to_json()} if improvement is not None else {}
        )
        click.echo(
            json.dumps(result.to_json() | wire_tables(result).to_json() | more)
        )
    else:
        from clusim.report.runreport import collective_rest

        rows = cost.rows() if cost is not None else []
        if cost is None and request.setup.faults and result.complete:
            rows = [
                ("fault cost", "not simulated" + ("" if left else "; use --confirm"))
            ]
        if not headed:
            click.echo(collective_head(result, rows))
        click.echo("\n" + collective_rest(result))
        if derived is not None:
            click.echo("\n" + "\n".join(derived.lines()))
        if improvement is not None:
            click.echo("\n" + "\n".join(f"  {line}" for line in improvement.lines()))
    if result.unfinished is not None:
        return said_ended(result.unfinished, result.time_ps, shown)
    if left:
        return shown.ended(f"not simulated: {', '.join(left)}")
    if given["verify"] and result.verified is None:
        reason = "a custom plan has no reference result"
        click.echo(f"clusim: data: not verified: {reason}", err=True)
    if result.verified is False:
        click.echo(f"clusim: data: wrong: {result.verify_note}", err=True)
        return 1
    return 0


def asked(**given: Any) -> Request:
    """Return the request of the options."""
    from clusim.base.errors import InputError
    from clusim.simulation.request import Request, requested, taken
    from clusim.simulation.setup import Setup

    given["protocol"] = given["protocol"] or ""
    if given["domains"] is not None:
        if given["nodes"] is not None:
            raise InputError("--domains sets the number of nodes: leave out --nodes")
        given["nodes"], given["per_node"] = given["domains"]
    return requested(symmetric=given["symmetric"], **taken(given, Setup, Request))
