"""Lines of trees among the regular lines of a block, as columns."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from clusim.base.limits import MOST_CHANNELS, MOST_RANKS
from clusim.formats.logs.digits import decimals, word
from clusim.formats.logs.scan import Scan

Positions = NDArray[np.int64]

_TREES = word(b"Trees [")
_PER_CHANNEL = len(" [] //->->")
_SIX = 6
"""Numbers of a tree: channel, three children, rank, and parent."""

_BEFORE = tuple(np.frombuffer(text, np.uint8) for text in (b"[", b" ", b"/", b"/", b">", b">"))
_BEHIND = tuple(np.frombuffer(text, np.uint8) for text in (b"]", b"/", b"/", b"-", b"-", b" \n\0"))


@dataclass(slots=True)
class Branches:
    """Trees of lines: `rows` in the scan and `rank` are per line, the rest is per tree.

    `line` is the index of a tree's line in `rows`; `numbers` has channel, parent, rank and children.
    """

    rows: Positions
    rank: Positions
    line: Positions
    numbers: tuple[Positions, ...]


def find_branches(scan: Scan, among: NDArray[np.bool_]) -> Branches | None:
    """Return the lines of trees among these rows in the format since 2.8."""
    buffer = scan.buffer
    rows = np.flatnonzero(among)
    rows = rows[(scan.head_words(scan.message[rows]) & _TREES[1]) == _TREES[0]]
    if len(rows) == 0:
        return None
    begin, end = scan.message[rows] + len("Trees"), scan.ends[scan.regular[rows]]
    for _ in range(2):
        end = end - (buffer[end - 1] == ord(" "))
    # All bytes of the lines, and the mask of digits.
    length = end - begin
    first = np.concatenate(([0], np.cumsum(length)))
    at = np.arange(first[-1]) - np.repeat(first[:-1] - begin, length)
    digit = (buffer[at] - np.uint8(ord("0"))) < 10
    edge = np.flatnonzero(digit & ~np.concatenate(([False], digit[:-1])))
    stop = np.flatnonzero(digit & ~np.concatenate((digit[1:], [False]))) + 1
    if len(edge) != len(stop):
        return None
    start, behind = at[edge], at[stop - 1] + 1
    which = np.searchsorted(first, edge, "right") - 1
    count = np.bincount(which, minlength=len(rows))
    value, fine = decimals(buffer, start, behind)
    fine &= behind - start <= 9
    place = np.arange(len(start)) - np.repeat(np.cumsum(count) - count, count)
    kind = place % _SIX
    minus = (buffer[start - 1] == ord("-")) & (kind != 0) & (kind != 4)
    front = start - 1 - minus
    for number in range(_SIX):
        own = kind == number
        fine[own] &= np.isin(buffer[front[own]], _BEFORE[number])
        fine[own] &= np.isin(buffer[behind[own]], _BEHIND[number])
    # The numbers and the expected separators cover the line in full.
    written = np.bincount(which, behind - start + minus, len(rows)).astype(np.int64)
    good = (count > 0) & (count % _SIX == 0) & (written + count // _SIX * _PER_CHANNEL == length)
    good &= np.bincount(which, ~fine, len(rows)) == 0
    signed = np.where(minus, -value.astype(np.int64), value.astype(np.int64))
    legal = np.where(kind == 0, signed < MOST_CHANNELS, signed < MOST_RANKS)
    good &= np.bincount(which, ~legal, len(rows)) == 0
    if not good.any():
        return None
    kept = good[which]
    table = signed[kept].reshape(-1, _SIX)
    of_line = (np.cumsum(good) - 1)[which[kept]].reshape(-1, _SIX)[:, 0]
    ranks = table[np.searchsorted(of_line, np.arange(np.count_nonzero(good))), 4]
    channel, *children, rank, parent = table.T
    return Branches(rows[good], ranks, of_line, (channel, parent, rank, *children))
