"""``clusim analyze``: from a trace to an answer."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from clusim_cli import options
from clusim_cli.outputs import GuardedGroup
from clusim_cli.traced import echo_table

if TYPE_CHECKING:
    from clusim.base.tables import ColumnTable

TOP = 20


def _form(name: str) -> Callable[[Any], Any]:
    """Add the options that every analysis has; `name` is where the form of its JSON is."""

    def add(function: Any) -> Any:
        function = options.top(said=f"{TOP}, all with --json or --csv")(function)
        function = options.as_json(name)(options.as_csv()(function))
        return click.argument("trace", type=click.Path(path_type=Path))(function)

    return add


def _show(
    table: ColumnTable, form: dict[str, Any], hidden: tuple[str, ...] = ()
) -> None:
    if form["as_json"] and form["as_csv"]:
        raise click.UsageError("--json and --csv exclude each other")
    top = form["top"]
    if top is None and not form["as_json"] and not form["as_csv"]:
        top = TOP
    echo_table(
        table,
        as_json=form["as_json"],
        as_csv=form["as_csv"],
        top=top or None,
        hidden=hidden,
    )


@click.group(
    "analyze",
    cls=GuardedGroup,
    short_help="Answer a question about a run from its trace.",
)
def command() -> None:
    """Answer a question about a run from its TRACE, also a .partial one of an interrupted run."""


@command.command("congestion")
@_form("clusim_cli.forms:CongestionSaidJson")
@click.option("--over-time", is_flag=True, help="A row for every wire and time bin.")
def congestion(trace: Path, over_time: bool, **form: Any) -> None:
    """Busy wires, reasons of stalls, uneven parallel links, incast."""
    from clusim.analysis import congestion as analysis

    table = analysis.wire_history(trace) if over_time else analysis.congestion(trace)
    never = tuple(name for name in ("pauses", "marks") if not table.facts.get(name))
    _show(table, form, ("bytes", *never))


@command.command("flows")
@_form("clusim.analysis.tablejson:FlowUseJson")
def flows(trace: Path, **form: Any) -> None:
    """Rates, marks and round trips of flows with rate control, and the time in which it holds them."""
    from clusim.analysis.flows import flow_use

    _show(flow_use(trace), form)


@command.command("overlap")
@_form("clusim.analysis.tablejson:OverlapJson")
def overlap(trace: Path, **form: Any) -> None:
    """Time of compute, communication, both, and idle; exposed communication."""
    from clusim.analysis.overlap import overlap as analyse

    _show(analyse(trace), form)


@command.command("servers")
@_form("clusim.analysis.tablejson:ServersJson")
def servers(trace: Path, **form: Any) -> None:
    """Busy time of the serial servers: wires, threads, acknowledgements, reduction units, CTAs, memories, hosts."""
    from clusim.analysis.blame import server_table

    _show(server_table(trace), form)


@command.command("blame")
@_form("clusim.analysis.tablejson:BlameJson")
@options.confirm(more="The first stalled link is repaired, or twice as fast.")
def blame(trace: Path, confirm: bool, **form: Any) -> None:
    """Break the run's time down by cause, along its critical path."""
    from clusim.analysis.blame import blame as analyse
    from clusim.analysis.blame import largest

    table = analyse(trace)
    if confirm:
        from clusim.simulation.reruns import without_first_stall

        table.notes.append(without_first_stall(trace, table))
    if form["top"] != 0 and not form["as_json"] and not form["as_csv"]:
        table = largest(table)
    _show(table, form, ("wires",))


@command.command("critical-path")
@_form("clusim_cli.forms:PathSaidJson")
@click.option("--what-if", "what_if", nargs=2, metavar="PART FACTOR", default=None,
              help="Estimated time of the run if PART were faster: a class of wires (nvlink), a tier (nic-leaf), a "
              "wire ('gpu0->*'), hbm, cta, step, proxy, latency, launch, compute, unit; FACTOR as x2.")  # fmt: skip
@options.confirm(more="The change is from --what-if.")
def critical_path(
    trace: Path, what_if: tuple[str, str] | None, confirm: bool, **form: Any
) -> None:
    """List the segments of the critical path in the order of time."""
    if what_if is None:
        if confirm:
            raise click.UsageError("--confirm needs --what-if")
        from clusim.analysis.path import critical_path as analyse

        _show(analyse(trace), form)
        return
    from clusim.analysis.blame import estimate
    from clusim.base.tables import ColumnTable
    from clusim.base.units import format_time

    guess = estimate(trace, *what_if)
    before, after = guess.before_ps, guess.after_ps
    facts: dict[str, Any] = {
        "what": what_if[0],
        "factor": what_if[1],
        "time_ps": before,
        "estimate_ps": after,
    }
    notes = [
        f"{what_if[0]} {what_if[1]}: about {format_time(after)} instead of {format_time(before)}"
        f" ({(after - before) / max(1, before):+.1%}), critical-path estimate"
    ]
    if confirm:
        from clusim.simulation.reruns import rerun

        real = rerun(trace, guess.change).time_ps
        facts["simulated_ps"] = real
        notes.append(
            f"simulated: {format_time(real)} ({(real - before) / max(1, before):+.1%});"
            f" the estimate is {(after - real) / max(1, real):+.1%} off"
        )
    _show(
        ColumnTable({name: [value] for name, value in facts.items()}, facts, notes),
        form,
    )


@command.command("pipeline")
@_form("clusim.analysis.tablejson:PipelineJson")
def pipeline(trace: Path, **form: Any) -> None:
    """Bubbles of each rank, and a timeline."""
    from clusim.analysis.pipeline import pipeline as analyse
    from clusim.analysis.pipeline import timeline

    _show(analyse(trace), form)
    if not form["as_json"] and not form["as_csv"]:
        click.echo("")
        for line in timeline(trace):
            click.echo(f"  {line}")


@command.command("collectives")
@_form("clusim.analysis.tablejson:CollectivesJson")
def collectives(trace: Path, **form: Any) -> None:
    """Time, algbw, busbw and share of the limit of every collective."""
    from clusim.analysis.calls import collectives as analyse

    table = analyse(trace)
    once = all(times == 1 for times in table.columns["times"])
    _show(table, form, ("dtype", "end_ps", *(["times"] if once else [])))


@command.command("memory")
@_form("clusim.analysis.tablejson:MemoryJson")
def memory(trace: Path, **form: Any) -> None:
    """Memory bandwidth used by communication and by kernels."""
    from clusim.analysis.memory import memory as analyse

    _show(analyse(trace), form)
