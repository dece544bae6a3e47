"""A trace opened for analysis: result, with what folded blocks moved, inputs and network, read once."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from clusim.analysis.critical import Critical, Traced, critical_of, require_tasks
from clusim.analysis.expanded import expanded
from clusim.results.trace.inputs import read_run
from clusim.results.trace.records import RecordFile


def open_traced(path: str | Path) -> Traced:
    """Read a trace; raises `TraceError` if it is none, or too old to hold its inputs."""
    result, inputs = read_run(path)
    return Traced.of(Path(path), expanded(result), inputs)


@contextmanager
def critical(path: str | Path) -> Iterator[Critical]:
    """Open a trace for a walk along its critical path."""
    traced = open_traced(path)
    # Before its records are looked for, which traffic has none of.
    require_tasks(traced)
    with RecordFile(path) as records:
        yield critical_of(traced, records)
