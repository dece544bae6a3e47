"""``clusim export``: a trace in the formats of other tools."""

from __future__ import annotations

from pathlib import Path

import click

from clusim_cli import options
from clusim_cli.outputs import GuardedCommand, beside, echo_done
from clusim_cli.params import one_of

SUFFIXES = {
    "perfetto": ".pftrace",
    "chrome": ".json",
    "kineto": "-kineto",
    "csv": ".csv",
    "parquet": ".parquet",
    "nccl-log": ".log",
}


@click.command(
    "export",
    cls=GuardedCommand,
    short_help="Write a trace in the format of another tool.",
)
@click.argument("trace", type=click.Path(path_type=Path))
@click.option(
    "--format",
    "form",
    type=one_of(
        *SUFFIXES, pftrace="perfetto", json="chrome", pytorch="kineto", hta="kineto"
    ),
    default="perfetto",
    show_default=True,
    help="Format to write.",
)
@options.output(more="For kineto, the folder.", said="TRACE with another ending")
@click.option(
    "--table",
    default=None,
    help="csv, parquet: the table to write.  [default: tasks]",
)
@click.option(
    "--no-slices", is_flag=True, help="perfetto: no tracks of channels, no arrows."
)
@click.option(
    "--no-counters", is_flag=True, help="perfetto: no tracks of wires and memories."
)
def command(
    trace: Path,
    form: str,
    output: Path | None,
    table: str | None,
    no_slices: bool,
    no_counters: bool,
) -> None:
    """Write TRACE for another tool.

    \b
    perfetto  ui.perfetto.dev: streams, channels, counters
    kineto    tools for PyTorch's profiler: a file a rank
    chrome    chrome://tracing: tasks, load of wires
    csv       a table: tasks, wires, history, messages, ...
    parquet   the same; needs pyarrow
    nccl-log  lines of collectives as in NCCL_DEBUG=INFO
    """
    if table is not None and form not in ("csv", "parquet"):
        raise click.UsageError(
            f"--table: not with --format {form}; use csv or parquet"
        )
    if (no_slices or no_counters) and form != "perfetto":
        raise click.UsageError(
            f"--no-slices, --no-counters: not with --format {form}"
        )
    target = beside(trace, SUFFIXES[form], output)
    done = _write(
        trace, form, target, table or "tasks", not no_slices, not no_counters
    )
    echo_done(target, done)


def _write(
    trace: Path, form: str, target: Path, table: str, slices: bool, counters: bool
) -> str:
    """Write the file and return a summary of its content."""
    if form == "perfetto":
        from clusim.report.export.perfetto import write_perfetto

        counts = write_perfetto(trace, target, slices=slices, counters=counters)
        return (
            f"{counts.tracks:,} tracks, {counts.slices:,} slices, {counts.arrows:,} arrows,"
            f" {counts.samples:,} counter values"
        )
    if form == "kineto":
        from clusim.report.export.kineto import write_kineto

        return f"{len(write_kineto(trace, target)):,} ranks"
    if form == "chrome":
        from clusim.report.export.kineto import write_chrome

        return f"{write_chrome(trace, target):,} events"
    if form == "nccl-log":
        from clusim.report.export.nccl_log import write_nccl_log

        return f"{write_nccl_log(trace, target):,} lines"
    from clusim.report.export import tables

    write = tables.write_csv if form == "csv" else tables.write_parquet
    return f"{write(trace, table, target):,} rows"
