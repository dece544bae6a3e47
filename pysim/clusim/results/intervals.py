"""Sets of time: unions of spans and their overlap, and amounts spread over spans."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


def spread(start: Array, end: Array, weight: Array, edges: Array) -> Array:
    """Spread weights evenly over their spans of time; return the amount in each bin."""
    length = np.maximum(1, end - start)
    first = np.clip(np.searchsorted(edges, start, side="right") - 1, 0, len(edges) - 2)
    last = np.minimum(np.searchsorted(edges, start + length), len(edges) - 1)
    number = np.maximum(0, last - first)
    of = np.repeat(np.arange(len(start)), number)
    bins = first[of] + np.arange(len(of)) - np.repeat(np.cumsum(number) - number, number)
    part = np.minimum(edges[bins + 1], (start + length)[of]) - np.maximum(edges[bins], start[of])
    amounts = weight[of] * np.maximum(0, part) / length[of]
    return np.bincount(bins, amounts, len(edges) - 1)


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
