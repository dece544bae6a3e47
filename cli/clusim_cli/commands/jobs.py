"""``clusim jobs``: several jobs on one fabric."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from clusim_cli import options
from clusim_cli.outputs import GuardedCommand, doubts
from clusim_cli.params import JOBS, TOPOLOGY, command_line
from clusim_cli.progress import shown_progress

if TYPE_CHECKING:
    from clusim.multijob.api import JobsRequest


@click.command(
    "jobs", cls=GuardedCommand, short_help="Run several jobs on one fabric."
)
@click.argument("jobs", type=JOBS)
@click.argument("topology", type=TOPOLOGY, required=False)
@options.nodes()
@options.granularity(default=None, said="step with training, else quick")
@options.policy()
@options.routing()
@click.option("--pairs/--no-pairs", default=True, show_default=True,
              help="Run every two jobs that share wires or ranks, for the matrix.")  # fmt: skip
@options.trace_out()
@options.plot(more="It has the slowdown of each job beside each other one.")
@options.html(
    more="It has the verdict, the matrix, distributions of times, and shared wires."
)
@options.strict()
@options.as_json("clusim.multijob.result:JobsResult")
@options.no_progress()
def command(
    jobs: str,
    topology: str | None,
    nodes: int | None,
    trace_out: Path | None,
    plot: Path | None,
    html: Path | None,
    pairs: bool,
    strict: bool,
    as_json: bool,
    no_progress: bool,
    **picked: Any,
) -> None:
    """Run the jobs of JOBS, a YAML file or a shipped one, together on TOPOLOGY or the file's system: training, replays,
    collectives, storage, checkpoints and synthetic traffic.

    Prints the slowdown of each job against isolation, and beside each other one, the wires that jobs share, and who
    slows whom.
    """
    from clusim.multijob.api import compare_jobs
    from clusim.multijob.report import draw_matrix, jobs_report

    runner = asked(jobs=jobs, topology=topology, nodes=nodes, **picked).runner()
    runner.options = replace(runner.options, command=command_line())
    doubts(runner.setup, strict, quiet=as_json)
    with shown_progress(not no_progress, trace_out) as shown:
        result = compare_jobs(
            runner, pairs=pairs, notify=shown.begins, trace_out=trace_out
        )
    if plot is not None:
        from clusim.base.display import Plot

        Plot(draw_matrix(result)).save(plot)
    if html is not None:
        from clusim.base.files import write_bytes
        from clusim.multijob.page import jobs_page

        write_bytes(html, jobs_page(result).encode())
    click.echo(json.dumps(result.to_json()) if as_json else jobs_report(result))


def asked(
    jobs: str,
    topology: str | None,
    nodes: int | None,
    changes: dict[str, Any] | None = None,
    **options_of_run: Any,
) -> JobsRequest:
    """Return the request of the options; `changes` are keys of the file by their path."""
    from clusim.multijob.api import JobsRequest

    chosen = {
        name: options_of_run[name] for name in ("granularity", "policy", "routing")
    }
    return JobsRequest(jobs, topology, nodes, changes or {}, chosen)
