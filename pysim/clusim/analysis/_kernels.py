"""The loops that must be fast, compiled by numba; imported only where one of them is long."""

from __future__ import annotations

from numba import njit

from clusim.analysis import loops

__all__ = ["count_spans", "slice_table"]

slice_table = njit(cache=True)(loops.slice_table)
count_spans = njit(cache=True)(loops.count_spans)
