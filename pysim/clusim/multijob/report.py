"""Results of several jobs as text, and as a picture of the matrix."""

from __future__ import annotations

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
        *text_table("{:<..}  {:<..}" + "  {:>..}" * 6, job_rows(result)),
    ]
    if result.matrix:
        lines += [
            "",
            "slowdown of the job of the row, with only the job of the column",
            *text_table(
                "{:<..}" + "  {:>..}" * len(result.matrix), matrix_rows(result)
            ),
        ]
    if result.shared:
        more = result.shared_wires - len(result.shared)
        table = text_table("  {:<..}  {:>4}  {:<..}", wire_rows(result))
        lines += ["", "wires that jobs share", *table]
        lines += [f"  and {more} more"] if more else []
    lines += [
        "",
        f"fairness: {result.fairness:.3f} (Jain's index of speeds relative to isolation)",
        *(f"verdict: {text}" for text in result.verdict),
        f"granularity: {result.granularity}",
        *(f"note: {text}" for text in result.notes),
    ]
    return "\n".join(lines)


Cells = tuple[str, ...]


def job_rows(result: JobsResult) -> list[Cells]:
    """Return the times of the jobs, below a row of titles."""
    rows = [("job", "kind", "ranks", "times", "mean", "alone", "slower", "99th")]
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
    return [*rows]


def matrix_rows(result: JobsResult) -> list[Cells]:
    """Return the slowdown of each job (row) with each other one, below a row of names."""
    names = list(result.matrix)
    rows: list[Cells] = [("", *names)]
    for name in names:
        row = result.matrix[name]
        cells = (f"{row[other]:.2f}" if other in row else "-" for other in names)
        rows.append((name, *cells))
    return rows


def wire_rows(result: JobsResult) -> list[Cells]:
    """Return the shared wires, the fraction of time in which they are busy, and the shares of jobs."""
    return [
        (
            wire.wire,
            f"{wire.busy:.0%}",
            ", ".join(f"{name} {share:.0%}" for name, share in wire.shares.items()),
        )
        for wire in result.shared
    ]


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
