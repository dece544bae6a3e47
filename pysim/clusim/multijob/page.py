"""Page of several jobs: who slows whom, times of iterations, the matrix and shared wires."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from clusim.base.units import format_time
from clusim.multijob.report import job_rows, matrix_rows, wire_rows
from clusim.multijob.result import JobsResult
from clusim.report.comparison import plain_page
from clusim.report.markup import (
    Markup,
    element,
    histogram_svg,
    join_markup,
    table,
)


def jobs_page(result: JobsResult) -> str:
    """Return the page of a result."""
    head, *rows = job_rows(result)
    sections = [
        _verdict(result),
        element("h2", "Jobs"),
        table((*head[:2], *(f"#{word}" for word in head[2:])), rows),
        *_matrix(result),
        *_times(result),
        *_wires(result),
        *(element("p", f"Note: {note}", class_="hint") for note in result.notes),
    ]
    title = f"{result.name} on {result.system}"
    return plain_page(title, join_markup(sections, "\n"))


def _verdict(result: JobsResult) -> Markup:
    first, *more = result.verdict
    length = f"{format_time(result.time_ps)}; fairness {result.fairness:.3f}"
    return element(
        "div",
        element("h2", "Verdict"),
        element("p", first, class_="headline"),
        *(element("p", line) for line in more),
        element(
            "p", f"{length} (Jain's index); {result.granularity}", class_="hint"
        ),
        class_="verdict",
    )


def _matrix(result: JobsResult) -> Iterator[Markup]:
    """Yield the slowdown of each job with each other one."""
    if not result.matrix:
        return
    yield element("h2", "Slowdown of the row with only the column")
    head, *rows = matrix_rows(result)
    yield table((head[0], *(f"#{name}" for name in head[1:])), rows)


def _times(result: JobsResult) -> Iterator[Markup]:
    """Yield the distribution of the times of each job with several iterations or messages."""
    yield element("h2", "Times of iterations and messages")
    for name, run in result.joint.jobs.items():
        if len(run.times_ps) > 1:
            yield element("h3", name)
            yield histogram_svg(np.asarray(run.times_ps, float), "times")


def _wires(result: JobsResult) -> Iterator[Markup]:
    """Yield the busiest wires that jobs share."""
    if result.shared:
        yield element("h2", "Wires that jobs share")
        yield table(("wire", "#busy", "bytes"), wire_rows(result))
