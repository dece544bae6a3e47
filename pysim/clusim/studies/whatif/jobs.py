"""Changes of several jobs on one fabric: the time of each with each change."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from clusim.base.errors import ClusimError, InputError, one_line
from clusim.multijob.api import JobsRequest, compare_jobs
from clusim.simulation.speed import Speed
from clusim.studies.whatif.changed_system import ChangedSystem
from clusim.studies.whatif.table import BaselineRun, ChangeOutcome, ChangeRow, WhatIf

MEAN = "mean of an iteration or message, beside the other jobs"

JobsChange = tuple[str, Any]
"""Name of a change, and a `JobsRequest`, `Speed` or `ChangedSystem`."""


def what_if_of_jobs(
    base: JobsRequest,
    changes: Sequence[JobsChange],
    *,
    title: str = "",
    counted: Callable[[int, int], None] | None = None,
) -> WhatIf:
    """Run jobs and the same with changes: keys, options, or links of another speed.

    Raises
    ------
    InputError
        The baseline cannot run, or a change is of anything else than links, options and keys.
    """
    requests = [(name, _changed(base, change)) for name, change in changes]
    first = _outcomes(base)
    names = list(first)
    result = WhatIf(title, MEAN)
    result.baseline = [BaselineRun(name, first[name]) for name in names]
    for number, (text, request) in enumerate(requests):
        try:
            moved = _outcomes(request)
        except ClusimError as error:
            refused = ChangeOutcome(error=one_line(str(error)))
            moved = dict.fromkeys(names, refused)
        result.rows += (
            ChangeRow(text, first[name], None, moved[name], of=name)
            for name in names
            if name in moved
        )
        if counted is not None:
            counted(number + 1, len(requests))
    return result


def _changed(
    base: JobsRequest, change: JobsRequest | Speed | ChangedSystem
) -> JobsRequest:
    """Return the request of a change."""
    if isinstance(change, JobsRequest):
        return change
    if isinstance(change, Speed) and not change.of_links:
        raise InputError(
            f"what-if {change.words}: of jobs, links can be faster, and keys and options changed"
        )
    fabric = change.machine(base.runner().setup.fabric)
    return replace(base, topology=fabric, nodes=None)


def _outcomes(request: JobsRequest) -> dict[str, ChangeOutcome]:
    """Return the time of each job, and who slows it."""
    result = compare_jobs(request.runner(), pairs=False)
    verdicts = {text.partition(" ")[0]: text for text in result.verdict}
    return {
        job.name: ChangeOutcome(
            job.mean_ps,
            f"{job.slowdown:.2f} x alone",
            limit=verdicts.get(job.name, "no job slows it"),
        )
        for job in result.jobs
    }
