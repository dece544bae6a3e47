"""Results of several jobs as text, and as a picture of the matrix."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from clusim.base.tables import text_table
from clusim.base.units import format_time
from clusim.multijob.result import JobsResult
from clusim.report.charts import plot_matrix

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def jobs_report(result: JobsResult) -> str:
    """Return the text of a result."""
    lines = [
        f"{result.name}: {len(result.jobs)} jobs on {result.system}, {format_time(result.time_ps)}",
        "",
        *_job_lines(result),
    ]
    if result.matrix:
        lines += [
            "",
            "slowdown of the job of the row, with only the job of the column",
            *_matrix_lines(result),
        ]
    if result.shared:
        more = result.shared_wires - len(result.shared)
        lines += ["", "wires that jobs share", *_wire_lines(result)]
        lines += [f"  and {more} more"] if more else []
    lines += [
        "",
        f"fairness: {result.fairness:.3f} (Jain's index of speeds relative to isolation)",
        *(f"verdict: {text}" for text in result.verdict),
        f"granularity: {result.granularity}",
        *(f"note: {text}" for text in result.notes),
    ]
    return "\n".join(lines)


def _job_lines(result: JobsResult) -> list[str]:
    head = ("job", "kind", "ranks", "times", "mean", "alone", "slower", "99th")
    rows: list[Sequence[object]] = [head]
    for job in result.jobs:
        rows.append(
            (
                job.name,
                job.kind,
                str(job.ranks),
                str(job.iterations),
                format_time(job.mean_ps),
                format_time(job.alone_ps),
                f"{job.slowdown:.2f}",
                f"{job.tail:.2f}",
            )
        )
    layout = "{:<..}  {:<..}  {:>..}  {:>..}  {:>..}  {:>..}  {:>..}  {:>..}"
    return text_table(layout, rows)


def _matrix_lines(result: JobsResult) -> list[str]:
    names = list(result.matrix)
    rows: list[Sequence[object]] = [("", *names)]
    for name in names:
        row = result.matrix[name]
        cells = (f"{row[other]:.2f}" if other in row else "-" for other in names)
        rows.append((name, *cells))
    return text_table("{:<..}" + "  {:>..}" * len(names), rows)


def _wire_lines(result: JobsResult) -> list[str]:
    rows = []
    for wire in result.shared:
        shares = ", ".join(
            f"{name} {share:.0%}" for name, share in wire.shares.items()
        )
        rows.append((wire.wire, wire.busy, shares))
    return text_table("  {:<..}  {:>4.0%}  {:<..}", rows)


def draw_matrix(result: JobsResult) -> Figure:
    """Return a picture of the slowdowns: a row by job, a column by neighbour, and one for all."""
    names = [job.name for job in result.jobs]
    values = np.array(
        [
            [
                *(
                    result.matrix.get(job.name, {}).get(name, np.nan)
                    for name in names
                ),
                job.slowdown,
            ]
            for job in result.jobs
        ]
    )
    title = "slowdown of the row's job beside the column's"
    return plot_matrix(names, [*names, "all jobs"], values, title)
