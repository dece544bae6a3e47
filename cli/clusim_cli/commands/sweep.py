"""``clusim sweep``: all combinations of a grid, into a table that can be continued."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

from clusim.base.resources import shipped_sweeps
from clusim.base.tables import text_table
from clusim.base.units import format_size
from clusim_cli import options
from clusim_cli.outputs import GuardedCommand, working
from clusim_cli.params import GRID
from clusim_cli.progress import counted_progress

if TYPE_CHECKING:
    from clusim.studies.sweep import SweepReport
    from clusim.studies.sweep.keys import Cell

MOST_SHOWN = 40
"""Rows that are printed."""


@click.command(
    "sweep", cls=GuardedCommand, short_help="Run all combinations of a grid."
)
@click.argument("grid", type=GRID)
@options.output(
    more="CSV, or Parquet if FILE ends in .parquet (needs pyarrow); the table of an earlier sweep is continued.",
    said="GRID with .csv",
)
@options.jobs()
@options.executor()
@click.option("--again", is_flag=True, help="Run failed points again.")
@options.strict(more="These are failed points.")
@options.as_json("clusim_cli.forms:SweepJson")
@options.no_progress()
def command(
    grid: Path,
    output: Path | None,
    jobs: int | None,
    executor: str | None,
    again: bool,
    strict: bool,
    as_json: bool,
    no_progress: bool,
) -> int:
    """Run all combinations of the values in GRID, a YAML file or a shipped one, and write the results into a table.

    Below run: are the words of "clusim run" (topology, nodes, collective, size, algorithm, protocol, channels, dtype,
    redop, root, ranks, env, nccl_version, symmetric, fault, granularity, seed), below train: the words of "clusim
    train" (workload, topology, nodes, steps, fold, estimate, fault, granularity, seed) and change:, keys of the
    workload by their path, below serve: serving, topology, nodes and change: of its file, below jobs: jobs, topology,
    nodes, policy, granularity and change:. A list is an axis; a list in it is one value.

    The same command continues an interrupted sweep. Points run again if clusim or their files have changed; points
    outside this grid stay in the table.
    """
    from clusim.studies.sweep import read_grid, sweep

    points, target = read_grid(grid), output or _beside(grid)
    with (
        working(jobs, executor) as workers,
        counted_progress(not no_progress, "points") as progress,
    ):
        report = sweep(points, target, jobs=workers, again=again, progress=progress)
    click.echo(
        json.dumps(report.to_json())
        if as_json
        else "\n".join(_lines(report, target))
    )
    return (
        2
        if report.failures and (strict or len(report.failures) == len(report.rows))
        else 0
    )


def _beside(grid: Path) -> Path:
    """Return the table of a grid: beside it, or in the current folder for a shipped one."""
    path = Path(grid.name) if grid in shipped_sweeps().values() else grid
    earlier = path.with_suffix(".parquet")
    return earlier if earlier.exists() else path.with_suffix(".csv")


MEASURES = {
    "run": (
        "time_us",
        "iteration_us",
        "busbw_GBps",
        "ran_algorithm",
        "ran_protocol",
    ),
    "train": ("gpus", "step_time_s", "mfu", "memory_GiB", "fits"),
    "serve": (
        "gpus",
        "ttft_ms",
        "tpot_ms",
        "tokens_per_s_per_gpu",
        "good_per_s",
        "cache",
    ),
    "jobs": ("slowest", "slowdown", "slowdowns", "fairness"),
}
"""Columns printed in addition to the axes."""


def _lines(report: SweepReport, output: Path) -> list[str]:
    ran = len(report.rows) - report.known
    words = [
        f"{len(report.rows)} points",
        f"{ran} run now",
        f"{report.known} there already",
    ]
    if report.outdated:
        words.append(
            f"{report.outdated} run again, as clusim or their files have changed"
        )
    lines = [f"{output}: {', '.join(words)}"]
    for kind, measures in MEASURES.items():
        rows = [
            row
            for row in report.rows
            if row["kind"] == kind and not row.get("error")
        ]
        lines += _table(
            rows, [name for name in report.grid.axes if _any(rows, name)], measures
        )
    for reason, count in report.reasons():
        lines.append(f"  {count} failed: {reason}")
    return lines


def _any(rows: list[dict[str, Cell]], name: str) -> bool:
    return any(row.get(name) not in (None, "") for row in rows)


def _table(
    rows: list[dict[str, Cell]], axes: list[str], measures: tuple[str, ...]
) -> list[str]:
    names = [*axes, *measures]
    cells = [
        [_cell(name, row.get(name)) for name in names] for row in rows[:MOST_SHOWN]
    ]
    lines = text_table(
        "  {:>..}" * len(names), [names, *cells] if rows else [], strip=False
    )
    if len(rows) > MOST_SHOWN:
        lines.append(f"  and {len(rows) - MOST_SHOWN} more")
    return lines


def _cell(name: str, value: Cell) -> str:
    if value in (None, ""):
        return "-"
    if name == "size" and isinstance(value, int):
        return format_size(value)
    return f"{value:,.4g}" if isinstance(value, float) else str(value)
