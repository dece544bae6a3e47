"""The tasks of a trace as columns: whose they are, what kind, which collective, when."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clusim.analysis.critical import Traced
from clusim.errors import TraceError

__all__ = ["TaskColumns", "task_columns"]

Array = NDArray[Any]


@dataclass(frozen=True, slots=True)
class TaskColumns:
    """Tasks that started, one element each.

    Attributes
    ----------
    rank, call : ndarray
        Rank, and collective call or -1.
    kind, stream, name : list of str
        ``program kernel delay marker``; stream; name.
    start_ps, end_ps : ndarray
        Times [ps]; the end of the run for what did not end.
    ended : ndarray of bool
        Which ended.
    """

    rank: Array
    call: Array
    kind: Array
    stream: list[str]
    name: list[str]
    start_ps: Array
    end_ps: Array
    ended: Array

    @property
    def computes(self) -> Array:
        """Which are kernels."""
        return np.asarray(self.kind == "kernel")

    @property
    def communicates(self) -> Array:
        """Which are programs."""
        return np.asarray(self.kind == "program")


def task_columns(traced: Traced) -> TaskColumns:
    """Return the tasks of a trace; raises `TraceError` if it is one of synthetic traffic."""
    inputs, tasks = traced.inputs, traced.result.tasks
    if not tasks.names:
        raise TraceError(f"{traced.path}: has no tasks; it is a trace of synthetic traffic")
    started = np.flatnonzero(tasks.start_ps >= 0)
    end = np.where(tasks.end_ps < 0, traced.result.time_ps, tasks.end_ps)
    kinds, streams = inputs.texts("tasks/kind"), inputs.texts("tasks/stream")
    return TaskColumns(
        rank=inputs.numbers("tasks/rank")[started],
        call=inputs.numbers("tasks/call")[started],
        kind=np.array([kinds[i] for i in started], object),
        stream=[streams[i] for i in started],
        name=[tasks.names[i] for i in started],
        start_ps=tasks.start_ps[started],
        end_ps=end[started],
        ended=tasks.end_ps[started] >= 0,
    )
