"""``clusim plan``: the fastest parallelism of a training job on a system."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from clusim.base.tables import text_table
from clusim.base.units import format_time
from clusim_cli import options
from clusim_cli.outputs import GuardedCommand
from clusim_cli.params import TOPOLOGY, one_of

if TYPE_CHECKING:
    from clusim.studies.plan.search import PlannedStep, PlanSearch


@click.command(
    "plan", cls=GuardedCommand, short_help="Find the fastest parallelism of a model."
)
@click.argument("model", metavar="MODEL")
@click.argument("topology", type=TOPOLOGY)
@options.nodes()
@click.option("--batch", type=click.IntRange(1, 1 << 40), default=None,
              help="Samples of a step over all GPUs; by default the workload's.")  # fmt: skip
@click.option("--sequence", type=click.IntRange(1, 1 << 24), default=None,
              help="Tokens of a sample; by default the workload's, or 2048.")  # fmt: skip
@click.option("--estimates", "most", type=click.IntRange(1, 10_000), default=8, show_default=True,
              help="Layouts that are estimated, in the order of their forecasts.")  # fmt: skip
@click.option("--launch", type=one_of("megatron", "torchtitan"), default=None,
              help="Print the arguments of a framework for its fastest layout.")  # fmt: skip
@options.output(more="The workload with the fastest layout, as YAML.")
@options.as_json("clusim.studies.plan.search:PlanSearch")
@options.no_progress()
def command(
    model: str,
    topology: str,
    nodes: int | None,
    batch: int | None,
    sequence: int | None,
    most: int,
    launch: str | None,
    output: Path | None,
    as_json: bool,
    no_progress: bool,
) -> None:
    """Find the fastest parallelism of MODEL, the name of a model or a workload file, on TOPOLOGY.

    Layouts that divide the model and the batch and fit the memory are ordered by a forecast of their steps; the first
    are estimated, as by clusim train --estimate.
    """
    from clusim.studies.plan.api import plan, plan_workload, write_workload
    from clusim.studies.plan.launchers import CANNOT, launch_arguments
    from clusim.workload.parallel.plan import model_of
    from clusim_cli.progress import shown_progress

    workload = plan_workload(model, batch=batch, sequence=sequence)
    with shown_progress(not no_progress, None) as shown:
        found = plan(
            workload, topology, nodes=nodes, estimates=most, notify=shown.begins
        )
    best = found.steps[0].layout
    if output is not None:
        write_workload(workload, best, output, (topology, nodes))
    lines = [*_lines(found)]
    if launch is not None:
        layouts = [
            row.layout
            for row in found.steps
            if row.layout.states not in CANNOT[launch]
        ]
        lines += [
            "",
            f"{launch}: {layouts[0].words if layouts else 'no layout in the table'}",
        ]
        for layout in layouts[:1]:
            words = launch_arguments(
                launch, layout, workload, model_of(workload.model)
            )
            lines += [f"  {argument}" for argument in words]
    click.echo(json.dumps(found.to_json()) if as_json else "\n".join(lines))


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
