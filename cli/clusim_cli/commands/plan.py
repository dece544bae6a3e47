"""``clusim plan``: the fastest parallelism of a training job on a system."""

from __future__ import annotations

import json
from collections.abc import Iterator
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING

import click

from clusim.base.errors import InputError
from clusim.base.tables import text_table
from clusim.base.units import format_time
from clusim_cli import options
from clusim_cli.outputs import GuardedCommand
from clusim_cli.params import TIME, TOPOLOGY, Value, one_of

if TYPE_CHECKING:
    from clusim.studies.plan.clusters import PricedClusters, PricedStep
    from clusim.studies.plan.search import PlannedStep, PlanSearch
    from clusim.studies.plan.serving import ServingPlan
    from clusim.workload import Workload


def parse_price(text: str) -> tuple[str, float]:
    """Return system and price of ``SYSTEM=AMOUNT``."""
    system, _, amount = text.rpartition("=")
    try:
        price = float(amount)
    except ValueError:
        price = 0.0
    if not system or not 0 < price < inf:
        raise InputError(
            f"price {text!r}: must be SYSTEM=AMOUNT, such as dgx-h100=2.5"
        )
    return system, price


PRICE = Value("system=amount", parse_price)


@click.command(
    "plan", cls=GuardedCommand, short_help="Find the fastest parallelism of a model."
)
@click.argument("model", metavar="MODEL")
@click.argument("topology", type=TOPOLOGY, required=False)
@options.nodes()
@click.option("--batch", type=click.IntRange(1, 1 << 40), default=None,
              help="Samples of a step over all GPUs; by default the workload's.")  # fmt: skip
@click.option("--sequence", type=click.IntRange(1, 1 << 24), default=None,
              help="Tokens of a sample; by default the workload's, or 2048.")  # fmt: skip
@click.option("--estimates", "most", type=click.IntRange(1, 10_000), default=8, show_default=True,
              help="Layouts that are estimated, in the order of their forecasts.")  # fmt: skip
@click.option("--launch", type=one_of("megatron", "torchtitan"), default=None,
              help="Print the arguments of a framework for its fastest layout.")  # fmt: skip
@click.option("--price", "prices", type=PRICE, multiple=True, metavar="SYSTEM=AMOUNT",
              help="Price of a GPU hour of a system; with --within, instead of TOPOLOGY.")  # fmt: skip
@click.option("--within", "within_ps", type=TIME, default=None,
              help="Find the cheapest system with a step this short, of 1, 2, 4, .. --nodes nodes.")  # fmt: skip
@click.option("--serve", "serves", is_flag=True,
              help="MODEL is a serving file; rank layouts by requests within its limits for each GPU.")  # fmt: skip
@options.output(more="The workload with the fastest layout, as YAML.")
@options.plot(more="It has the steps and memory of the layouts.")
@options.as_json("clusim_cli.forms:PlanJson")
@options.no_progress()
def command(
    model: str,
    topology: str | None,
    nodes: int | None,
    batch: int | None,
    sequence: int | None,
    most: int,
    launch: str | None,
    prices: tuple[tuple[str, float], ...],
    within_ps: int | None,
    serves: bool,
    output: Path | None,
    plot: Path | None,
    as_json: bool,
    no_progress: bool,
) -> None:
    """Find the fastest parallelism of MODEL, the name of a model or a workload file, on TOPOLOGY.

    Layouts that divide the model and the batch and fit the memory are ordered by a forecast of their steps; the first
    are estimated, as by clusim train --estimate.
    """
    from clusim.studies.plan.api import plan, plan_workload, write_workload
    from clusim.studies.plan.clusters import PricedSearch, priced_clusters
    from clusim.studies.plan.serving import plan_serving, write_serving
    from clusim_cli.progress import shown_progress

    if serves:
        if prices or within_ps or batch or sequence or launch or plot:
            raise click.UsageError("--serve: only with --nodes, --estimates and -o")
        with shown_progress(not no_progress, None) as shown:
            served = plan_serving(
                model, topology, nodes=nodes, estimates=most, notify=shown.begins
            )
        if output is not None:
            write_serving(served.runs[0], output)
        click.echo(_serving_text(served, as_json=as_json))
        return
    _check(topology, prices, within_ps, launch or output or plot)
    workload = plan_workload(model, batch=batch, sequence=sequence)
    progress = shown_progress(not no_progress, None)
    if topology is None:
        search = PricedSearch(dict(prices), (within_ps or 0) / 1e12, nodes, most)
        with progress as shown:
            priced = priced_clusters(workload, search, shown.begins)
        text = "\n".join(_price_lines(priced))
        click.echo(json.dumps(priced.to_json()) if as_json else text)
        return
    with progress as shown:
        found = plan(
            workload, topology, nodes=nodes, estimates=most, notify=shown.begins
        )
    best = found.steps[0].layout
    if output is not None:
        write_workload(workload, best, output, (topology, nodes))
    if plot is not None:
        _draw(found, plot)
    lines = [*_lines(found)]
    if launch is not None:
        lines += _launch_lines(launch, found, workload)
    click.echo(json.dumps(found.to_json()) if as_json else "\n".join(lines))


def _serving_text(found: ServingPlan, *, as_json: bool) -> str:
    """Return the output of a search for the layout of a served model."""
    if as_json:
        return json.dumps(found.to_json())
    fit = found.layouts - sum(found.omitted.values())
    head = (
        "good/s/GPU",
        "within",
        "TTFT ms",
        "TPOT ms",
        "tokens/s/GPU",
        "GPUs",
        "layout",
    )
    rows = [
        (
            f"{row.good_per_s_per_gpu:.4f}",
            f"{row.good:.0%}",
            f"{row.ttft_ms:.1f}",
            f"{row.tpot_ms:.2f}",
            f"{row.tokens_per_s_per_gpu:.1f}",
            str(row.gpus),
            row.words,
        )
        for row in found.runs
    ]
    table = "  {:>..} {:>..} {:>..} {:>..} {:>..} {:>..}  {}"
    lines = [
        f"{found.serving} on {found.gpus} GPUs of {found.system}: {found.layouts} layouts, {fit} fit",
        *(f"  omitted: {count} by {why}" for why, count in found.omitted.items()),
        "",
        *text_table(table, [head, *rows]),
        "",
        *(f"  best: {line}" for line in found.runs[0].verdict),
    ]
    return "\n".join(lines)


def _launch_lines(launch: str, found: PlanSearch, workload: Workload) -> list[str]:
    """Return the arguments of a framework for the fastest layout that it has."""
    from clusim.studies.plan.launchers import CANNOT, launch_arguments
    from clusim.workload.parallel.plan import model_of

    layouts = [
        row.layout for row in found.steps if row.layout.states not in CANNOT[launch]
    ]
    if not layouts:
        return ["", f"{launch}: no layout in the table"]
    words = launch_arguments(launch, layouts[0], workload, model_of(workload.model))
    arguments = [f"  {argument}" for argument in words]
    return ["", f"{launch}: {layouts[0].words}", *arguments]


def _draw(found: PlanSearch, path: Path) -> None:
    from clusim.base.display import Plot
    from clusim.report.charts import ParetoPoint, plot_pareto

    points = [
        ParetoPoint(row.memory_GiB, row.step_time_s, row.words, row.pareto)
        for row in found.steps
    ]
    Plot(plot_pareto(points)).save(path)


def _check(
    topology: str | None,
    prices: tuple[tuple[str, float], ...],
    within_ps: int | None,
    of_one: object,
) -> None:
    """Raise an error unless there is one system, or systems with prices and a time; `of_one` needs one system."""
    if (topology is None) != bool(prices) or bool(prices) != (within_ps is not None):
        raise click.UsageError(
            "one TOPOLOGY, or --price SYSTEM=AMOUNT for each system and --within TIME"
        )
    names = [system for system, _ in prices]
    if len(set(names)) < len(names):
        raise click.UsageError("--price: a system has two prices; give it one")
    if prices and of_one:
        raise click.UsageError(
            "--launch, --plot and -o need one TOPOLOGY; not with --price"
        )


def _price_lines(found: PricedClusters) -> Iterator[str]:
    """Yield the lines of a search for the cheapest system."""
    within = format_time(round(found.within_s * 1e12))
    yield f"{found.workload}: systems with a step of at most {within}"
    yield ""
    head = ("system", "GPUs", "step", "per hour", "per step", "layout")
    rows = [
        (
            row.system,
            row.gpus,
            _step_words(row),
            f"{row.price_per_hour:,.2f}{'*' if row.cheapest else ''}",
            f"{row.price_per_step:.4f}" if row.words else "",
            row.words,
        )
        for row in found.steps
    ]
    yield from text_table("  {:<..} {:>6} {:>..} {:>..} {:>..}  {}", [head, *rows])
    yield ""
    if any(row.cheapest for row in found.steps):
        yield "  *: the lowest price per hour of the systems that reach the time"
    else:
        yield "  no system reaches the time; more --nodes or another batch can help"


def _step_words(row: PricedStep) -> str:
    if row.step_time_s is None:
        return "no memory"
    time = format_time(round(row.step_time_s * 1e12))
    return time if row.words else f"above {time}"


def _lines(found: PlanSearch) -> Iterator[str]:
    """Yield the lines of a search."""
    fit = found.layouts - sum(found.omitted.values())
    yield f"{found.workload} on {found.gpus} GPUs of {found.system}: {found.layouts} layouts, {fit} fit"
    for why, count in found.omitted.items():
        yield f"  omitted: {count} by {why}"
    yield ""
    head = ("step", "MFU", "exposed", "bubble", "memory", "layout", "slower by")
    table = "  {:>9} {:>6} {:>9} {:>9} {:>10}  {:<44}  {}"
    yield from text_table(table, [head, *map(_cells, found.steps)])
    yield ""
    yield "  *: no layout of the table is faster with less memory"
    yield (
        f"  {found.unknown} other layouts have a bound below the fastest step and were not estimated"
        if found.unknown
        else "  certain: no other layout has a bound below the fastest step"
    )


def _cells(row: PlannedStep) -> tuple[str, ...]:
    exposed_s = sum(row.exposed_by_dimension_s.values())
    times = (format_time(round(one * 1e12)) for one in (exposed_s, row.bubble_s))
    return (
        format_time(round(row.step_time_s * 1e12)), f"{row.mfu:.1%}", *times,
        f"{row.memory_GiB:.1f} GiB{'*' if row.pareto else ''}", row.words, row.slower_by,
    )  # fmt: skip
