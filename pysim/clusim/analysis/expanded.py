"""Result including its replicated blocks: totals and histories of wires and memories.

Within a block, bytes and busy times are assumed evenly distributed; over the run they add up to the simulated totals.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clusim.results.bins import COLUMNS, Bins
from clusim.results.replicated import FoldedBlocks
from clusim.results.result import Result

Array = NDArray[Any]

_LARGEST = ("queued_bytes", "queued_max", "held_max")
"""Counters that are maxima: two runs are combined by the larger value, not the sum."""


def expanded(result: Result) -> Result:
    """Return the result of a run including its replicated blocks; unchanged without blocks."""
    folded = result.tasks.folded
    if folded is None:
        return result
    times = np.array(
        [(result.tasks.end_ps[tasks] >= 0).all(axis=1).sum() for tasks in folded.by_place]
    )
    counters = result.wires.counters.copy()
    each = np.repeat(times, np.diff(folded.places_wires_off))
    for name, values in folded.counters.items():
        if name in _LARGEST:
            done = each > 0
            np.maximum.at(
                counters[name], folded.wires_wire[done], values[done].astype(counters[name].dtype)
            )
        else:
            np.add.at(
                counters[name], folded.wires_wire, (values * each).astype(counters[name].dtype)
            )
    wires = replace(result.wires, counters=counters)
    return replace(result, wires=wires, bins=_with_blocks(result, folded, times))


def _with_blocks(result: Result, folded: FoldedBlocks, times: Array) -> Bins:
    """Return histories including the traffic of blocks."""
    bins, histories = result.bins, {name: part.copy() for name, part in result.bins.wires.items()}
    hbm_bytes = bins.hbm_bytes.copy()
    if len(bins.edge_ps) < 2:
        return bins
    wires_off, ranks_off = folded.places_wires_off.tolist(), folded.places_ranks_off.tolist()
    sums = {name: COLUMNS[name][0] for name in histories if COLUMNS[name][0] in folded.counters}
    for place in np.flatnonzero(times).tolist():
        done = _done(result, folded.by_place[place])
        part = slice(*wires_off[place : place + 2])
        for name, counter in sums.items():
            if counter not in _LARGEST:
                grown = _grown(folded.counters[counter][part], done)
                np.add.at(histories[name], folded.wires_wire[part], grown)
        part = slice(*ranks_off[place : place + 2])
        np.add.at(hbm_bytes, folded.ranks_endpoint[part], _grown(folded.ranks_hbm[part], done))
    return Bins(bins.edge_ps, histories, hbm_bytes)


def _done(result: Result, pauses: Array) -> Array:
    """Return the number of completed blocks of a place at every bin edge, with fractions."""
    start, end = result.tasks.start_ps[pauses], result.tasks.end_ps[pauses]
    ended = (end >= 0).all(axis=1)
    low, high = start[ended].min(axis=1), end[ended].max(axis=1)
    edges, results = result.bins.edge_ps, np.zeros(len(result.bins.edge_ps))
    length = np.maximum(1, high - low)
    for index, edge in enumerate(edges.tolist()):
        results[index] = np.clip((edge - low) / length, 0.0, 1.0).sum()
    results[-1] = len(low)
    return results


def _grown(each: Array, done: Array) -> Array:
    """Return the integers that blocks add by row and bin; each block adds `each` in total."""
    return np.diff(np.floor(each[:, None] * done[None, :]).astype(np.int64), axis=1)
