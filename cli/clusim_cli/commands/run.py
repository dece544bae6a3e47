"""``clusim run``: one collective on one fabric."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from clusim_cli import options
from clusim_cli.outputs import GuardedCommand, doubts
from clusim_cli.params import PERCENT, RANKS, TOPOLOGY, command_line
from clusim_cli.progress import Shown, said_ended, shown_progress

if TYPE_CHECKING:
    from clusim.results.result import Result
    from clusim.results.sensitivity import Sensitivity
    from clusim.simulation.fault_cost import FaultCost
    from clusim.simulation.plan import Plan
    from clusim.simulation.request import Request
    from clusim.studies.improve import Improvement


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
    request = asked(topology=topology, **given)
    results = doubts(request.setup, given["strict"], quiet=as_json)
    # A diagnosis may need the time of the run again. With faults, their cost is among the first lines.
    headed = not (as_json or request.setup.faults)
    with shown_progress(not no_progress, given["trace_out"]) as shown:
        outcome = _simulate(request, given, shown, headed=headed)
    result = outcome.result
    if as_json:
        click.echo(json.dumps(_values(outcome, results)))
    else:
        _print(outcome, headed=headed)
    if result.unfinished is not None:
        return said_ended(result.unfinished, result.time_ps, shown)
    if outcome.unfinished:
        return shown.ended(f"not simulated: {', '.join(outcome.unfinished)}")
    if given["verify"] and result.verified is None:
        reason = "a custom plan has no reference result"
        click.echo(f"clusim: data: not verified: {reason}", err=True)
    if result.verified is False:
        click.echo(f"clusim: data: wrong: {result.verify_note}", err=True)
        return 1
    return 0


@dataclass(slots=True)
class _Outcome:
    """Result of a run, and the studies that its options request."""

    planned: Plan
    result: Result
    derived: Sensitivity | None = None
    improvement: Improvement | None = None
    cost: FaultCost | None = None
    late: str = ""

    @property
    def unfinished(self) -> list[str]:
        """Re-simulations that are missing because of a time limit."""
        texts = [
            self.result.verdict.unfinished if self.result.complete else "",
            self.derived.unfinished if self.derived is not None else "",
            self.late,
            self.improvement.unfinished if self.improvement is not None else "",
        ]
        return [text for text in texts if text]


def _simulate(
    request: Request, given: dict[str, Any], shown: Shown, *, headed: bool
) -> _Outcome:
    """Simulate a run, its remedies, and the studies of the options; print the first lines if they are `headed`."""
    from clusim.base.errors import TimeLimitReached
    from clusim.report.headline import collective_head
    from clusim.simulation.api import result_of
    from clusim.simulation.job import RunOptions
    from clusim.simulation.plan import plan
    from clusim.simulation.request import taken
    from clusim.simulation.reruns import Budget, Repeats

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
    outcome = _Outcome(planned, result_of(planned, how))
    result = outcome.result
    if headed:
        click.echo(collective_head(result))
        sys.stdout.flush()
    if given["sensitivity"]:
        shown.begins("re-simulation with other figures")
        outcome.derived = result.sensitivity()
    if result.complete:
        shown.begins("simulation of remedies")
        result.diagnose()
    if given["improve"] is not None and result.complete:
        from clusim.studies.improve import improve

        shown.begins("simulation of changes")
        outcome.improvement = improve(request, result, given["improve"], how)
    if request.setup.faults:
        shown.begins("simulation without the faults")
    from clusim.simulation.fault_cost import fault_cost

    repeats = Repeats(how.confirm, how.progress, how.watch, budget)
    try:
        outcome.cost = fault_cost(planned, result, repeats)
    except TimeLimitReached:
        outcome.late = f"fault cost; {how.watch.words}"
    return outcome


def _values(outcome: _Outcome, results: list[str]) -> dict[str, Any]:
    """Return the values of ``--json``; `results` are the doubts."""
    from clusim.analysis.limits import wire_tables
    from clusim.simulation.expected import expected_of

    result = outcome.result
    algorithm = result.call.algorithm if result.call else ""
    expected = expected_of(outcome.planned, algorithm)
    values = result.to_json() | wire_tables(result).to_json()
    values |= {
        "verdict": result.verdict.to_json(),
        "expected_error": expected.error.to_json(),
        "doubts": results,
    }
    if outcome.cost is not None:
        values["fault_cost"] = outcome.cost.to_json()
    if outcome.unfinished:
        values["unfinished"] = outcome.unfinished
    if outcome.derived is not None:
        values["sensitivity"] = outcome.derived.to_json()
    if outcome.improvement is not None:
        values["improvement"] = outcome.improvement.to_json()
    return values


def _print(outcome: _Outcome, *, headed: bool) -> None:
    """Print the result; without its first lines if these are printed."""
    from clusim.report.headline import collective_head
    from clusim.report.runreport import collective_rest

    result, cost = outcome.result, outcome.cost
    rows = cost.rows() if cost is not None else []
    if cost is None and outcome.planned.setup.faults and result.complete:
        remedy = "" if outcome.unfinished else "; use --confirm"
        rows = [("fault cost", f"not simulated{remedy}")]
    if not headed:
        click.echo(collective_head(result, rows))
    click.echo("\n" + collective_rest(result))
    if outcome.derived is not None:
        click.echo("\n" + "\n".join(outcome.derived.lines()))
    if outcome.improvement is not None:
        lines = outcome.improvement.lines()
        click.echo("\n" + "\n".join(f"  {line}" for line in lines))


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
