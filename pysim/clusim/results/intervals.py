"""Sets of time: unions of spans and their overlap, and amounts spread over spans."""

from __future__ import annotations

from typing import Any

import numpy as np

from clusim.base.arrays import Array


def spread(start: Array, end: Array, weight: Array, edges: Array) -> Array:
    """Spread weights evenly over their spans of time; return the amount in each bin."""
    if not len(start):
        return np.zeros(len(edges) - 1)
    length = np.maximum(1, end - start)
    rate = weight / length
    times = np.concatenate([start, start + length])
    order = np.argsort(times, kind="stable")
    times = times[order]
    # The running total at a time, from the sum of the rates of all spans that contain it.
    level = np.cumsum(np.concatenate([rate, -rate])[order])
    total = np.append(0.0, np.cumsum(level[:-1] * np.diff(times)))
    last = np.searchsorted(times, edges, side="right") - 1
    inside = np.clip(last, 0, None)
    at_edges = np.where(
        last < 0, 0.0, total[inside] + level[inside] * (edges - times[inside])
    )
    return np.asarray(np.maximum(0.0, np.diff(at_edges)))


class Union:
    """The union of spans of time.

    Attributes
    ----------
    start_ps, end_ps : ndarray
        Its disjoint parts in order.
    """

    @classmethod
    def of(cls, *spans: Array) -> Union:
        """Return the union of arrays with rows of (start, end) [ps]."""
        return cls(*np.concatenate(spans).T)

    def __init__(self, start_ps: Array, end_ps: Array) -> None:
        order = np.argsort(start_ps, kind="stable")
        start, end = np.asarray(start_ps)[order], np.asarray(end_ps)[order]
        nonempty = end > start
        start, end = start[nonempty], end[nonempty]
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

    def shared_ps(self, other: Union) -> int:
        """Return the time that two unions have in common [ps]."""
        return int(self.within(other.start_ps, other.end_ps).sum())

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
