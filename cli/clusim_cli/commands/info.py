"""``clusim info``: content of a trace."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

from clusim.base.tables import text_table
from clusim.base.units import format_size
from clusim_cli import options
from clusim_cli.outputs import GuardedCommand

if TYPE_CHECKING:
    from clusim.results.trace.reader import Column


@click.command(
    "info", cls=GuardedCommand, short_help="Print the content of a trace."
)
@click.argument("file", type=click.Path(path_type=Path))
@options.as_json("clusim_cli.forms:InfoJson")
def command(file: Path, as_json: bool) -> None:
    """Print the content of the trace FILE: results of the run, and every column.

    Also reads FILE.partial of an interrupted run or a run in progress.
    """
    from clusim.analysis.diff import judged_trace
    from clusim.report.runreport import collective_report, traffic_report
    from clusim.results.trace.reader import columns

    result, table = judged_trace(file), columns(file)
    if as_json:
        names = {
            c.name: {"shape": c.shape, "dtype": c.dtype, "units": c.units}
            for c in table
        }
        origin = {"command": result.provenance.command, "complete": result.complete}
        more = {"verdict": result.verdict.to_json(), **origin, "columns": names}
        click.echo(json.dumps(result.to_json() | more))
        return
    click.echo(
        traffic_report(result) if result.messages else collective_report(result)
    )
    if result.provenance.command:
        click.echo(f"  command      {result.provenance.command}")
    click.echo(f"  written by   clusim {result.provenance.version}")
    click.echo("")
    for line in _column_lines(table):
        click.echo(line)


def _column_lines(table: list[Column]) -> list[str]:
    rows = [("column", "shape", "type", "stored", "what")]
    for column in table:
        shape = " x ".join(str(n) for n in column.shape) or "scalar"
        description = column.long_name + (
            f" [{column.units}]" if column.units not in ("", "1") else ""
        )
        rows.append(
            (
                column.name,
                shape,
                _kind(column.dtype),
                format_size(column.stored_bytes),
                description,
            )
        )
    return text_table("  {:<..} {:>..} {:<..} {:>..}  {}", rows)


def _kind(dtype: str) -> str:
    """Return a short name of a type: a compound type by its number of fields."""
    return f"{dtype.count('(')} fields" if dtype.startswith("[") else dtype
