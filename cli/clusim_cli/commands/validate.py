"""``clusim validate``: predictions against measurements of nccl-tests, or of training steps."""

from __future__ import annotations

import json
import os
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from clusim.base.errors import InputError
from clusim_cli import options
from clusim_cli.outputs import OUTPUT, GuardedCommand, working
from clusim_cli.progress import counted_progress

if TYPE_CHECKING:
    from clusim.validation.collectives.validate import CollectiveReport
    from clusim.validation.measured import Report, Unpredicted
    from clusim.validation.steps.predict import StepPoint


@click.command(
    "validate",
    cls=GuardedCommand,
    short_help="Compare predictions with measured collectives or training steps.",
)
@click.argument(
    "files", nargs=-1, required=True, type=click.Path(exists=True, dir_okay=False, path_type=Path)
)
@click.option(
    "--system", help="Only rows of this system; for outputs of nccl-tests, the preset they ran on."
)
@click.option("--sizes", type=click.IntRange(1), metavar="N",
              help="Maximum sizes per group of rows.  [default: all]")  # fmt: skip
@click.option("--rows", type=click.IntRange(1), metavar="N",
              help="Predict N rows of tables of training steps, spread evenly.  [default: all]")  # fmt: skip
@options.jobs()
@options.executor()
@options.granularity("quick")
@click.option("--releases", is_flag=True,
              help="Predict rows without a release for every release that may differ.")  # fmt: skip
@click.option("--row", metavar="ROW",
              help="Only this row (number or FILE:LINE), with the parts of its time.")  # fmt: skip
@click.option("--plot", type=OUTPUT,
              help="Draw measured against predicted: a file, or a directory with a PNG per system.")  # fmt: skip
@click.option("--markdown", type=OUTPUT, help="Write the accuracy page.")
@click.option("--data", type=OUTPUT,
              help="Write the errors by class, for the expected errors of other commands.")  # fmt: skip
@options.strict("rows that failed or have unknown words")
@options.as_json("clusim_cli.forms:ValidateJson")
@options.no_progress()
def command(files: tuple[Path, ...], as_json: bool, **given: Any) -> int:
    """Predict the measurements in FILES and print the errors.

    A file is a CSV table with the columns system, n_nodes, n_gpus, collective, algorithm, protocol, channels,
    nccl_version, gpus_per_process, threads_per_process, iters, harness, cuda_graph, size_bytes, time_us, spread_pct
    and source, or the output of an nccl-tests program. The system is the name of a preset or a topology file; blank
    is unknown.

    A CSV table with the columns hardware, framework, model, n_gpus, seq, global_batch and step_s is a table of
    training steps. Optional columns: layers, hidden, heads, kv_heads, intermediate, vocab, micro_batch, tensor,
    pipeline, chunks, data, context, expert, sharding, sequence_parallel, precision, recompute, attention and compile;
    tokens_per_s_per_gpu or tflops_per_gpu in place of step_s. Missing values are assumed, and counted. Every row is
    printed when it is predicted.

    Rows that were used to calibrate clusim and held-out rows are scored separately. Rows with unknown words are
    counted and skipped; if no row can be scored, the command fails.
    """
    from clusim.base.files import check_place
    from clusim.validation.collectives.accuracypage import report_lines
    from clusim.validation.collectives.measurements import read_measurements
    from clusim.validation.collectives.validate import validate

    for target in (given["plot"], given["markdown"], given["data"]):
        if target is not None and not target.is_dir():
            check_place(target)
    from clusim.validation.steps.rows import is_step_table

    kinds = {is_step_table(path) for path in files}
    if kinds == {True, False}:
        raise click.UsageError("tables of collectives and of training steps need separate commands")
    if kinds == {True}:
        return _steps(files, as_json, given)
    if given["rows"]:
        raise click.UsageError("--rows is for tables of training steps; --sizes is for collectives")
    rows = read_measurements(files, system=given["system"])
    if given["row"] is not None:
        from clusim.validation.collectives.explained import explained, row_named

        result = explained(row_named(rows, given["row"]), given["granularity"])
        click.echo(json.dumps(result.to_json()) if as_json else "\n".join(result.lines()))
        return 0
    shown, grain = not given["no_progress"], given["granularity"]
    with working(given["jobs"], given["executor"]) as jobs:
        with counted_progress(shown, "predicted") as progress:
            sizes = given["sizes"] or 0
            report = validate(rows, sizes=sizes, jobs=jobs, granularity=grain, progress=progress)
        _require(report, paths=True)
        if given["releases"]:
            from clusim.validation.collectives.releases import with_releases

            with counted_progress(shown, "by other releases") as progress:
                report = with_releases(report, jobs=jobs, granularity=grain, progress=progress)
    _write(report, files, given)
    click.echo(json.dumps(report.to_json()) if as_json else "\n".join(report_lines(report)))
    return _code(report, given)


def _steps(files: tuple[Path, ...], as_json: bool, given: dict[str, Any]) -> int:
    """Validate tables of training steps."""
    from clusim.validation.steps.rows import read_steps
    from clusim.validation.steps.validate import (
        row_line,
        step_lines,
        validate_steps,
    )

    for name in ("system", "sizes", "releases", "row", "plot"):
        if given[name]:
            raise click.UsageError(f"--{name} is for tables of collectives")
    with (
        working(given["jobs"], given["executor"]) as jobs,
        # Without JSON the rows show the progress.
        counted_progress(as_json and not given["no_progress"], "predicted") as progress,
    ):

        def tell(row: StepPoint | Unpredicted, done: int, total: int) -> None:
            if not as_json:
                click.echo(row_line(row))
            elif progress is not None:
                progress(done, total)

        report = validate_steps(
            read_steps(files),
            most=given["rows"] or 0,
            jobs=jobs,
            granularity=given["granularity"],
            tell=tell,
        )
    _require(report, paths=False)
    if given["markdown"] is not None:
        from clusim.validation.steps.validate import write_section

        write_section(report, given["markdown"], _called(files, given))
    if given["data"] is not None:
        report.write_data(given["data"], files)
    click.echo(json.dumps(report.to_json()) if as_json else "\n".join(["", *step_lines(report)]))
    return _code(report, given)


def _require(report: Report[Any], *, paths: bool) -> None:
    """Raise a one-line `InputError` if no row was scored, with the reasons."""
    if not report.points:
        reasons = report.left_out_lines(paths=paths)
        more = f", and {len(reasons) - 1} more reasons" if len(reasons) > 1 else ""
        raise InputError(f"no row could be scored: {reasons[0]}{more}")


def _code(report: Report[Any], given: dict[str, Any]) -> int:
    """Return the exit code: with --strict 2 if rows failed or have unknown words."""
    from clusim.validation.measured import UNUSABLE

    return 2 if given["strict"] and any(i.why != UNUSABLE for i in report.unpredicted) else 0


def _write(report: CollectiveReport, files: tuple[Path, ...], given: dict[str, Any]) -> None:
    """Write figures, page and classes, as requested."""
    plots: list[tuple[str, Path]] = []
    if given["plot"] is not None:
        from clusim.validation.collectives.validate import save_accuracies

        plots = save_accuracies(report.curves(), given["plot"])
    if given["markdown"] is not None:
        from clusim.validation.collectives.accuracypage import write_page

        write_page(report, given["markdown"], _called(files, given), plots)
    if given["data"] is not None:
        report.write_data(given["data"], files)


def _called(files: tuple[Path, ...], given: dict[str, Any]) -> str:
    """Return the command that writes the page, without local paths of the measurements."""
    words = ["clusim", "validate", *(path.name for path in files)]
    for name in ("system", "sizes", "rows", "granularity", "markdown", "plot", "data"):
        value = given[name]
        if value is not None and (name, value) != ("granularity", "quick"):
            shown = os.path.relpath(value) if isinstance(value, Path) else value
            words += [f"--{name}", str(shown)]
    return shlex.join(words)
