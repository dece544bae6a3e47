"""Sets of time (unions of spans and their overlap), and utilisation between two times.

Utilisation of a resource is computed from the histories of a trace.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from clusim.results.bins import Bins


class Usage:
    """Averages of histories over any span of time; inside a bin everything is taken as even."""

    def __init__(self, bins: Bins, memory_cost16: Array, unit_busy_ps: Array | None = None) -> None:
        self.edge_ps = np.asarray(bins.edge_ps, np.int64)
        self._sums = {name: _running(bins.wires[name]) for name in ("busy", "stall_credit")}
        cost = np.asarray(memory_cost16, np.float64)[:, None] / 65536.0
        self._memory = _running(bins.hbm_bytes) * cost
        self._units = None if unit_busy_ps is None else _running(unit_busy_ps)

    def _at(self, sums: Array, rows: Any, time_ps: int) -> Array:
        """Return the running sums of some rows at a time, interpolated inside the bin."""
        last = len(self.edge_ps) - 1
        time_ps = min(max(time_ps, 0), int(self.edge_ps[last]))
        low = min(int(np.searchsorted(self.edge_ps, time_ps, side="right")) - 1, last - 1)
        start, end = int(self.edge_ps[low]), int(self.edge_ps[low + 1])
        part = (time_ps - start) / (end - start)
        return np.asarray(sums[rows, low] * (1 - part) + sums[rows, low + 1] * part)

    def _part(self, sums: Array, rows: Any, start_ps: int, end_ps: int) -> Array:
        if len(self.edge_ps) < 2 or end_ps <= start_ps:
            return np.zeros(len(rows))
        grown = self._at(sums, rows, end_ps) - self._at(sums, rows, start_ps)
        return np.clip(grown / (end_ps - start_ps), 0.0, 1.0)

    def busy(self, wires: Any, start_ps: int, end_ps: int) -> Array:
        """Return the part of a span in which each of `wires` was busy."""
        return self._part(self._sums["busy"], wires, start_ps, end_ps)

    def no_credit(self, wire: int, start_ps: int, end_ps: int) -> float:
        """Return the share of a span in which a wire was in a credit stall."""
        return float(self._part(self._sums["stall_credit"], [wire], start_ps, end_ps)[0])

    def memory(self, endpoint: int, start_ps: int, end_ps: int) -> float:
        """Return the part of a span for which communication kept an endpoint's memory busy."""
        return float(self._part(self._memory, [endpoint], start_ps, end_ps)[0])

    def unit(self, unit: int, start_ps: int, end_ps: int) -> float:
        """Return the share of a span in which a reduction unit was busy; 0 if unknown."""
        if self._units is None:
            return 0.0
        return float(self._part(self._units, [unit], start_ps, end_ps)[0])


def _running(table: Array) -> Array:
    sums = np.zeros((table.shape[0], table.shape[1] + 1), np.float64)
    np.cumsum(table, axis=1, out=sums[:, 1:])
    return sums


Array = NDArray[Any]


class Union:
    """The union of spans of time.

    Attributes
    ----------
    start_ps, end_ps : ndarray
        Its disjoint parts in order.
    """

    def __init__(self, start_ps: Array, end_ps: Array) -> None:
        order = np.argsort(start_ps, kind="stable")
        start, end = np.asarray(start_ps)[order], np.asarray(end_ps)[order]
        kept = end > start
        start, end = start[kept], end[kept]
        reach = np.maximum.accumulate(end) if len(end) else end
        opens = np.ones(len(start), bool)
        opens[1:] = start[1:] > reach[:-1]
        self.start_ps = start[opens]
        closes = np.append(opens[1:], True) if len(start) else opens
        self.end_ps = reach[closes]
        self._before = np.append(0, np.cumsum(self.end_ps - self.start_ps))

    @property
    def length_ps(self) -> int:
        """Time covered in all [ps]."""
        return int(self._before[-1])

    @property
    def spans(self) -> Array:
        """Its parts as rows of (start, end) [ps]."""
        return np.stack([self.start_ps, self.end_ps], axis=1)

    def until(self, time_ps: Any) -> Array:
        """Return the time covered before each of some times [ps]."""
        times = np.asarray(time_ps, np.int64)
        part = np.searchsorted(self.start_ps, times, side="right") - 1
        inside = np.clip(part, 0, None)
        if not len(self.start_ps):
            return np.zeros(times.shape, np.int64)
        lengths = self.end_ps - self.start_ps
        partial = np.clip(times - self.start_ps[inside], 0, lengths[inside])
        return np.where(part < 0, 0, self._before[inside] + partial)

    def within(self, start_ps: Any, end_ps: Any) -> Array:
        """Return the covered part of each span [ps]."""
        return np.asarray(self.until(end_ps) - self.until(start_ps))


def first_come(start_ps: Array, end_ps: Array) -> tuple[Array, Array]:
    """Cut spans so that they do not overlap: a shared time belongs to the earliest start."""
    order = np.lexsort((np.arange(len(start_ps)), start_ps))
    start, end = np.asarray(start_ps)[order], np.asarray(end_ps)[order]
    reach = np.maximum.accumulate(end) if len(end) else end
    begin = start.copy()
    begin[1:] = np.maximum(start[1:], reach[:-1])
    own_start, own_end = np.empty_like(begin), np.empty_like(begin)
    own_start[order], own_end[order] = begin, np.maximum(end, begin)
    return own_start, own_end
