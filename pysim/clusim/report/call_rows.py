"""Rows of the table of collectives on a page: a row per call or, for very many, per kind."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from clusim.base.tables import ColumnTable, group_values

_KIND = (
    "operation",
    "algorithm",
    "size_bytes",
    "dtype",
    "ranks",
    "channels",
    "stream",
)


@dataclass(frozen=True, slots=True)
class CallRow:
    """One collective, or several of one kind.

    Attributes
    ----------
    start_ps : int
        When the first rank of the first one started [ps].
    least_ps, mean_ps, most_ps : float
        Time from the start of a call's first rank to the end of its last [ps].
    busbw_GBps : float
        Mean over the calls, as nccl-tests define it [10^9 bytes/s].
    limit_busy : float
        Part of the time in which the fullest wire was busy, mean over the calls.
    exposed_ps : float
        Time that no computation hid, mean over calls and ranks [ps].
    """

    operation: str
    algorithm: str
    size_bytes: int
    dtype: str
    ranks: int
    channels: int
    stream: str
    count: int
    start_ps: int
    least_ps: float
    mean_ps: float
    most_ps: float
    busbw_GBps: float
    limit_busy: float
    exposed_ps: float


def call_rows(calls: ColumnTable | None, limit: int = 60) -> list[CallRow]:
    """Return a row per collective, or per kind of collective if they exceed `limit`."""
    if calls is None:
        return []
    rows = calls.rows()
    names = _KIND if len(rows) > limit else (*_KIND, "call")
    kinds = group_values((tuple(row[name] for name in names), row) for row in rows)
    return sorted(map(_row, kinds.values()), key=lambda row: row.start_ps)[
        : 4 * limit
    ]


def _row(calls: Sequence[dict[str, Any]]) -> CallRow:
    weights = [call["times"] for call in calls]

    def mean(name: str) -> float:
        return float(np.average([call[name] for call in calls], weights=weights))

    times = [call["time_ps"] for call in calls]
    return CallRow(
        **{name: calls[0][name] for name in _KIND},
        count=sum(weights),
        start_ps=min(call["start_ps"] for call in calls),
        least_ps=min(times),
        mean_ps=mean("time_ps"),
        most_ps=max(times),
        busbw_GBps=mean("busbw_GBps"),
        limit_busy=mean("limit_busy"),
        exposed_ps=mean("exposed_ps"),
    )
