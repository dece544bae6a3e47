"""``clusim validate``: predictions against measurements of collectives, training steps, or serving runs."""

from __future__ import annotations

import json
import os
import shlex
import signal
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from clusim.base.errors import InputError
from clusim_cli import options
from clusim_cli.outputs import OUTPUT, GuardedCommand, working
from clusim_cli.params import MEASURED
from clusim_cli.progress import counted_progress

if TYPE_CHECKING:
    from clusim.validation.collectives.measurements import Row
    from clusim.validation.measured import Report


@click.command(
    "validate",
    cls=GuardedCommand,
    short_help="Compare predictions with measured collectives, training steps or serving.",
)
@click.argument("files", nargs=-1, required=True, type=MEASURED)
@click.option(
    "--system",
    help="Only rows of this system; for outputs of nccl-tests, the preset they ran on.",
)
@options.row_sizes()
@click.option("--campaign", type=click.IntRange(1), metavar="N",
              help="Maximum rows of a source on a system with a number of nodes, or of steps of a source."
              "  [default: all]")  # fmt: skip
@click.option("--max-gpus", type=click.IntRange(1), metavar="N",
              help="With --campaign, only rows on at most N GPUs.  [default: all]")  # fmt: skip
@click.option("--rows", type=click.IntRange(1), metavar="N",
              help="Predict N rows of tables of training steps, spread evenly.  [default: all]")  # fmt: skip
@options.jobs()
@options.executor()
@options.granularity(default=None, said="quick; of training steps, step")
@click.option("--releases", is_flag=True,
              help="Predict rows without a release for every release that may differ.")  # fmt: skip
@click.option("--infer", is_flag=True,
              help="Infer NCCL's release or the network plugin's from the shape of curves without them.")  # fmt: skip
@click.option("--no-infer", is_flag=True,
              help="Ignore texts and dates of rows that show their software.")  # fmt: skip
@click.option("--row", metavar="ROW",
              help="Only this row (number or FILE:LINE), with the parts of its time.")  # fmt: skip
@options.plot(
    more="It has measured and predicted times; a directory gets a PNG per system."
)
@click.option("--markdown", type=OUTPUT, help="Write the accuracy page.")
@click.option("--errors", type=OUTPUT,
              help="Write the errors by class, for the expected errors of other commands.")  # fmt: skip
@options.strict(more="These are rows that failed or have unknown words.")
@options.as_json("clusim_cli.forms:ValidateJson")
@options.no_progress()
def command(files: tuple[Path, ...], as_json: bool, **given: Any) -> int:
    """Predict the measurements in FILES and print the errors.

    A file is a CSV table with the columns system, n_nodes, n_gpus, domains, collective, algorithm, protocol, channels,
    nccl_version, gpus_per_process, threads_per_process, iters, harness, cuda_graph, plugin, environment, release,
    size_bytes, time_us, spread_pct and source, or the output of an nccl-tests program. The system is the name of a
    preset or a topology file; blank is unknown.

    A CSV table with the columns hardware, framework, model, n_gpus, seq, global_batch and step_s is a table of
    training steps. Optional columns: layers, hidden, heads, kv_heads, intermediate, vocab, micro_batch, tensor,
    pipeline, chunks, data, context, expert, sharding, sequence_parallel, precision, recompute, attention and compile;
    tokens_per_s_per_gpu or tflops_per_gpu in place of step_s. Missing values are assumed, and counted.

    A CSV table with the columns hardware, engine, model, precision, tp, input_len, output_len, concurrency_or_batch,
    ttft_ms and tpot_ms is a table of serving runs; pp, ep, dp and note, which names pools, are optional.

    Every row is printed when it is predicted. Rows that calibrated clusim, other rows of their sources, and rows of
    other sources are scored separately. Rows with unknown words are counted and skipped; if no row can be scored, the
    command fails.
    """
    from clusim.base.files import check_place
    from clusim.validation.serving.rows import is_serving_table
    from clusim.validation.steps.rows import is_step_table

    for target in (given["plot"], given["markdown"], given["errors"]):
        if target is not None and not target.is_dir():
            check_place(target)
    if any(map(is_serving_table, files)):
        return _serving(files, as_json, given)
    kinds = {is_step_table(path) for path in files}
    if kinds == {True, False}:
        raise click.UsageError(
            "tables of collectives and of training steps need separate commands"
        )
    if given["max_gpus"] and not given["campaign"]:
        raise click.UsageError("--max-gpus limits the rows of --campaign")
    if kinds == {True}:
        return _steps(files, as_json, given)
    if given["rows"]:
        raise click.UsageError(
            "--rows is for tables of training steps; --sizes is for collectives"
        )
    return _collectives(files, as_json, given)


def _collectives(
    files: tuple[Path, ...], as_json: bool, given: dict[str, Any]
) -> int:
    """Validate tables of collectives."""
    from clusim.lowering import QUICK
    from clusim.validation.collectives.accuracypage import point_line, report_lines
    from clusim.validation.collectives.measurements import read_measurements
    from clusim.validation.collectives.validate import (
        CollectiveReport,
        by_campaign,
        validate,
    )

    rows = read_measurements(
        files, system=given["system"], infer=not given["no_infer"]
    )
    grain = given["granularity"] or QUICK
    if given["row"] is not None:
        from clusim.validation.collectives.explained import explain_row, row_named

        result = explain_row(row_named(rows, given["row"]), grain)
        click.echo(
            json.dumps(result.to_json()) if as_json else "\n".join(result.lines())
        )
        return 0
    if given["infer"]:
        return _inferred(rows, as_json, given)
    if given["campaign"]:
        rows = by_campaign(rows, given["campaign"], gpus=given["max_gpus"] or 0)
    with working(given["jobs"], given["executor"]) as jobs:
        predict = partial(
            validate, rows, sizes=given["sizes"] or 0, jobs=jobs, granularity=grain
        )
        report, code = _predict(
            predict, CollectiveReport, point_line, as_json, given
        )
        if code:
            return _print(report, report_lines(report), as_json, code)
        if given["releases"]:
            from clusim.validation.collectives.releases import with_releases

            with counted_progress(
                not given["no_progress"], "by other releases"
            ) as progress:
                report = with_releases(
                    report, jobs=jobs, granularity=grain, progress=progress
                )
    plots: list[tuple[str, Path]] = []
    if given["plot"] is not None:
        from clusim.validation.collectives.validate import save_accuracies

        plots = save_accuracies(report.by_group().values(), given["plot"])
    if given["markdown"] is not None:
        from clusim.validation.collectives.accuracypage import write_page

        write_page(report, given["markdown"], _called(files, given), plots)
    return _end(report, report_lines(report), files, as_json, given)


def _inferred(rows: list[Row], as_json: bool, given: dict[str, Any]) -> int:
    """Print the inferred software of the curves."""
    from clusim.lowering import QUICK
    from clusim.validation.collectives.inference import infer

    with (
        working(given["jobs"], given["executor"]) as jobs,
        counted_progress(not given["no_progress"], "predicted") as progress,
    ):
        found = infer(
            rows,
            jobs=jobs,
            granularity=given["granularity"] or QUICK,
            progress=progress,
        )
    data = {"inferred": [item.to_json() for item in found]}
    click.echo(
        json.dumps(data) if as_json else "\n".join(item.line() for item in found)
    )
    return 0


def _steps(files: tuple[Path, ...], as_json: bool, given: dict[str, Any]) -> int:
    """Validate tables of training steps."""
    from clusim.lowering.grain import STEP
    from clusim.validation.measured import rows_by_source
    from clusim.validation.steps.rows import read_steps
    from clusim.validation.steps.validate import (
        StepReport,
        row_line,
        step_lines,
        validate_steps,
        write_section,
    )

    for name in ("system", "sizes", "releases", "infer", "no_infer", "row", "plot"):
        if given[name]:
            raise click.UsageError(
                f"--{name.replace('_', '-')} is for tables of collectives"
            )
    table = rows = read_steps(files)
    if given["campaign"]:
        most = given["max_gpus"]
        small = [row for row in table if not most or row.n_gpus <= most]
        rows = rows_by_source(small, given["campaign"])
    with working(given["jobs"], given["executor"]) as jobs:
        grain = given["granularity"] or STEP
        predict = partial(
            validate_steps,
            rows,
            limit=given["rows"] or 0,
            jobs=jobs,
            granularity=grain,
        )
        report, code = _predict(predict, StepReport, row_line, as_json, given)
    report = replace(report, skipped=report.skipped + len(table) - len(rows))
    if code:
        return _print(report, step_lines(report), as_json, code)
    if given["markdown"] is not None:
        write_section(report, given["markdown"], _called(files, given))
    return _end(report, step_lines(report), files, as_json, given)


def _serving(files: tuple[Path, ...], as_json: bool, given: dict[str, Any]) -> int:
    """Validate tables of serving runs."""
    from clusim.validation.measured import rows_by_source
    from clusim.validation.serving.rows import read_serving_rows
    from clusim.validation.serving.validate import (
        ServingReport,
        serving_line,
        serving_lines,
        validate_serving,
    )

    for name in (
        *("system", "sizes", "releases", "infer", "no_infer", "row", "plot"),
        *("markdown", "max_gpus", "granularity"),
    ):
        if given[name]:
            raise click.UsageError(
                f"--{name.replace('_', '-')} is not for tables of serving runs"
            )
    table = [*read_serving_rows(files)]
    rows = rows_by_source(table, given["campaign"] or 0)
    with working(given["jobs"], given["executor"]) as jobs:
        predict = partial(
            validate_serving,
            rows,
            limit=given["rows"] or 0,
            jobs=jobs,
            granularity="quick",
        )
        report, code = _predict(predict, ServingReport, serving_line, as_json, given)
    report = replace(report, skipped=report.skipped + len(table) - len(rows))
    if code:
        return _print(report, serving_lines(report), as_json, code)
    return _end(report, serving_lines(report), files, as_json, given)


def _predict(
    predict: partial[Any],
    kind: type[Report[Any]],
    line: Callable[[Any], str],
    as_json: bool,
    given: dict[str, Any],
) -> tuple[Any, int]:
    """Print each row when it is predicted, with --json a bar; return the report and 0.

    After a signal: the report of the rows before it, and the exit code of the signal.
    """
    rows: list[Any] = []
    number = 0
    with counted_progress(
        as_json and not given["no_progress"], "predicted"
    ) as progress:

        def tell(row: Any, done: int, total: int) -> None:
            nonlocal number
            rows.append(row)
            number = total
            if not as_json:
                click.echo(line(row))
            elif progress is not None:
                progress(done, total)

        try:
            report = predict(tell=tell)
        except (KeyboardInterrupt, SystemExit) as end:
            if not rows:
                raise
            click.echo(
                f"clusim: interrupted after {len(rows)} of {number} rows", err=True
            )
            code: Any = (
                end.code if isinstance(end, SystemExit) else 128 + signal.SIGINT
            )
            return kind.of(
                rows, number - len(rows), str(predict.keywords["granularity"])
            ), code
    _require(report)
    return report, 0


def _end(
    report: Report[Any],
    lines: list[str],
    files: tuple[Path, ...],
    as_json: bool,
    given: dict[str, Any],
) -> int:
    """Write the classes, print the report and return the exit code.

    It is 2 with --strict if rows failed or have unknown words.
    """
    from clusim.validation.measured import UNUSABLE

    if given["errors"] is not None:
        report.write_data(given["errors"], files)
    bad = any(item.why != UNUSABLE for item in report.unpredicted)
    return _print(report, lines, as_json, 2 if given["strict"] and bad else 0)


def _print(report: Report[Any], lines: list[str], as_json: bool, code: int) -> int:
    """Print a report; return the exit code."""
    click.echo(json.dumps(report.to_json()) if as_json else "\n".join(["", *lines]))
    return code


def _require(report: Report[Any]) -> None:
    """Raise a one-line `InputError` if no row was scored, with the reasons."""
    if not report.points:
        reasons = report.left_out_lines()
        more = f", and {len(reasons) - 1} more reasons" if len(reasons) > 1 else ""
        raise InputError(f"no row could be scored: {reasons[0]}{more}")


def _called(files: tuple[Path, ...], given: dict[str, Any]) -> str:
    """Return the command that writes the page, without local paths of the measurements."""
    words = ["clusim", "validate", *(path.name for path in files)]
    limits = ("system", "sizes", "campaign", "max_gpus", "rows")
    for name in (*limits, "granularity", "markdown", "plot", "errors"):
        value = given[name]
        if value is not None:
            shown = os.path.relpath(value) if isinstance(value, Path) else value
            words += [f"--{name.replace('_', '-')}", str(shown)]
    return shlex.join(words)
