"""Which collective a table of nccl-tests measured, if nothing names it: what its columns and the file's name allow.

The size is that of the largest buffer and the count that of a block: they differ by the number of ranks where a buffer
has a block per rank. A reduction is named by collectives that reduce only, a root by those that have one.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import PurePath

import numpy as np
from numpy.typing import NDArray

from clusim.vocabulary.dtypes import IN_TABLES, REDUCTIONS
from clusim.vocabulary.operations import OPERATIONS, Operation

__all__ = ["TableColumns", "concluded"]

_CLOSE = 0.05
"""How far a bus bandwidth, which is rounded, may be from what it should be."""

_LEAST_GBPS = 0.2
"""Bandwidths below this are printed too coarsely to tell collectives apart [GB/s]."""

_TESTS = [item for item in OPERATIONS.values() if item.test and item.test != "hypercube"]
_USUAL = ("all_reduce", "all_gather", "reduce_scatter", "alltoall", "broadcast", "reduce")
_REDUCTIONS = (*REDUCTIONS, "mulsum")


@dataclass(frozen=True, slots=True)
class TableColumns:
    """The rows of a table: `algbw` and `busbw` in GB/s, `header` the titles in front of the times."""

    source: str
    n_ranks: int
    header: tuple[str, ...]
    sizes: list[int]
    counts: list[int]
    types: list[str]
    ops: list[str]
    roots: list[int]
    algbw: NDArray[np.float64]
    busbw: NDArray[np.float64]


def concluded(rows: TableColumns) -> str:
    """Return the collective, several (`a, b or c`) if all fit, or nothing."""
    ratio = _bus_over_algorithm(rows)
    blocks = _blocks(rows)
    n = rows.n_ranks or max(blocks, 0)
    fitting = [item for item in _TESTS if _fits(item, rows, blocks)]
    if blocks == 0 and ratio != ratio:  # nothing but the file's name
        return ""
    if n > 1 and ratio == ratio:
        fitting = [
            item
            for item in fitting
            if abs(item.bus_factor(n) - ratio) < _CLOSE * item.bus_factor(n)
        ]
    reduced = any(op in _REDUCTIONS for op in rows.ops)
    if reduced and any(item.reduces for item in fitting):
        # All-to-all and messages were given the reduction of the command line in some releases only.
        fitting = [item for item in fitting if item.reduces]
    named = _of_file(rows.source)
    chosen = [item for item in fitting if item.test in named] or fitting
    names = [item.test for item in sorted(chosen, key=_usual)]
    return " or ".join([", ".join(names[:-1]), names[-1]]) if len(names) > 1 else "".join(names)


def _usual(item: Operation) -> int:
    return _USUAL.index(item.test) if item.test in _USUAL else len(_USUAL)


def _bus_over_algorithm(rows: TableColumns) -> float:
    """Return the middle of busbw / algbw of rows that are not rounded to nothing, nan if there is none."""
    big = rows.algbw > 1 if (rows.algbw > 1).any() else rows.algbw > _LEAST_GBPS
    if not big.any():
        return float("nan")
    ratios = np.sort(rows.busbw[big] / rows.algbw[big])  # what is no number comes last
    if np.isnan(ratios[-1]):
        return float("nan")
    return float(ratios[(len(ratios) - 1) // 2] + ratios[len(ratios) // 2]) / 2


def _blocks(rows: TableColumns) -> int:
    """Return how many blocks of `count` elements the largest buffer has: 1, the number of ranks, 0 if it is unknown."""
    found = {
        round(size / (count * IN_TABLES[kind].size_bytes))
        for size, count, kind in zip(rows.sizes, rows.counts, rows.types, strict=False)
        if count > 0 and size % (count * IN_TABLES[kind].size_bytes) == 0
    }
    if len(found) != 1:
        return 0
    (number,) = found
    return number if number == 1 or rows.n_ranks in (0, number) else 0


def _fits(item: Operation, rows: TableColumns, blocks: int) -> bool:
    """Return whether a collective has the reduction, root and blocks of the rows."""
    rooted = max(rows.roots, default=-1) >= 0
    if rooted != item.rooted and (rooted or rows.header):
        return False
    if item.rooted and item.blocks and not rooted:
        return False  # gather and scatter came when every table had a root
    reduced = any(op in _REDUCTIONS for op in rows.ops)
    if reduced and not item.reduces:
        if item.test not in ("alltoall", "sendrecv"):
            return False
    elif rows.header and item.reduces and not reduced:
        return False
    if blocks == 0 or (blocks == 1 and rows.n_ranks < 2):
        return True
    return bool(item.blocks) == (blocks > 1)


def _of_file(source: str) -> set[str]:
    """Return the collectives that the name of a file has in it."""
    text = re.sub(r"[^a-z]", "", PurePath(source).name.lower())
    found = set()
    for item in sorted(_TESTS, key=lambda item: -len(item.test)):
        words = {item.test.replace("_", ""), *item.others}
        if any(word in text for word in words):
            found.add(item.test)
            for word in words:
                text = text.replace(word, " ")
    return found
