"""The verdict on a run that is in a trace."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from clusim.analysis.judge import judged, without_path
from clusim.analysis.traced import critical
from clusim.base.errors import TraceError
from clusim.results.result import Result
from clusim.results.trace.reader import read_result


def judged_trace(path: str | Path) -> Result:
    """Return the result that a trace holds, with its verdict: the one of the run, or one made of its slices."""
    result = read_result(path)
    if result.judge is not None:
        return result
    try:
        with critical(path) as run:
            found = judged(run).verdict
    except TraceError as error:
        found = without_path(result, str(error).removeprefix(f"{path}: "))
    return replace(result, judge=lambda _: found)
