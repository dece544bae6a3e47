"""``clusim validate``: predictions against measurements of nccl-tests."""

from __future__ import annotations

import json
from pathlib import Path

import click

from clusim_cli import options
from clusim_cli.outputs import OUTPUT, GuardedCommand
from clusim_cli.progress import counted_progress

__all__ = ["command"]


@click.command(
    "validate",
    cls=GuardedCommand,
    short_help="Compare predictions with measurements of nccl-tests.",
)
@click.argument(
    "files", nargs=-1, required=True, type=click.Path(exists=True, dir_okay=False, path_type=Path)
)
@click.option(
    "--system", help="Only rows of this system; for outputs of nccl-tests, the preset they ran on."
)
@click.option("--per-group", type=click.IntRange(0), default=None,
              help="Most sizes per group that are predicted; 0 is all.  [default: 4]")  # fmt: skip
@options.jobs()
@options.granularity()
@click.option("--plot", type=OUTPUT, help="Draw measured against predicted.")
@click.option("--markdown", type=OUTPUT,
              help="Write the figures into this page, between its marks.")  # fmt: skip
@options.as_json()
@options.no_progress()
def command(
    files: tuple[Path, ...],
    system: str | None,
    per_group: int | None,
    jobs: int | None,
    granularity: str | int,
    plot: Path | None,
    markdown: Path | None,
    as_json: bool,
    no_progress: bool,
) -> None:
    """Predict what FILES measured and print how far off that is.

    A file is a CSV table with the columns system, n_nodes, n_gpus, collective, algorithm, protocol, channels,
    nccl_version, gpus_per_process, threads_per_process, iters, harness, cuda_graph, size_bytes and time_us, or what
    a program of nccl-tests printed. The system is the name of a preset or a topology file; blank is unknown.
    """
    from clusim.files import check_place
    from clusim.nccltests.measurements import read_measurements
    from clusim.nccltests.validate import PER_GROUP, validate
    from clusim.nccltests.validationreport import report_lines

    for target in (plot, markdown):
        if target is not None:
            check_place(target)
    rows = read_measurements(files, system=system)
    with counted_progress(not no_progress, "predicted") as progress:
        report = validate(
            rows,
            per_group=PER_GROUP if per_group is None else per_group,
            jobs=jobs,
            granularity=granularity,
            progress=progress,
        )
    if plot is not None:
        from clusim.report.accuracy import save_accuracy

        save_accuracy(report.curves(), plot)
    if markdown is not None:
        from clusim.nccltests.validationreport import write_page

        write_page(report, markdown, plot)
    click.echo(json.dumps(report.to_json()) if as_json else "\n".join(report_lines(report)))
