"""Connections among the regular lines of a block, as columns."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from clusim.base.limits import MOST_CHANNELS, MOST_RANKS
from clusim.formats.logs.digits import decimals, hashes, word, words
from clusim.formats.logs.scan import Scan, only

Positions = NDArray[np.int64]

_ROUTE_BYTES = 64
_CHANNEL, _VIA, _ARROW, _COLON = (word(t) for t in (b"Channel ", b"via ", b"-> ", b": "))
_SEND, _RECEIVE = word(b"[send] "), word(b"[receive")


@dataclass(slots=True)
class Connections:
    """Connection lines as columns.

    `rows` are their rows in the scan; `side` is 1 for send, 2 for receive, else 0.
    """

    rows: Positions
    channel: Positions
    index: Positions
    source: Positions
    target: Positions
    side: Positions
    route: tuple[Positions, Positions]
    route_hash: NDArray[np.uint64]

    def only(self, good: NDArray[np.bool_]) -> Connections:
        """Return the connections that are `good`."""
        return only(self, good)


def find_connections(scan: Scan, among: NDArray[np.bool_]) -> Connections | None:
    """Return the connections among these rows in the line format since 2.8."""
    rows = np.flatnonzero(among)
    view, spaces = words(scan.buffer), scan.spaces
    rows = rows[view[scan.message[rows]] == _CHANNEL[0]]
    first = np.searchsorted(spaces, scan.message[rows])
    inside = first + 7 < len(spaces)
    rows, first = rows[inside], first[inside]
    if len(rows) == 0:
        return None

    def start(index: int) -> Positions:
        at: Positions = spaces[first + index - 1] + 1
        return at

    def fits(at: Positions, text: tuple[np.uint64, np.uint64]) -> NDArray[np.bool_]:
        result: NDArray[np.bool_] = (view[at] & text[1]) == text[0]
        return result

    side = np.where(fits(start(6), _SEND), 1, np.where(fits(start(6), _RECEIVE), 2, 0))
    via = np.where(side > 0, start(7), start(6))
    ends = scan.ends[scan.regular[rows]]
    ends = ends - (scan.buffer[ends - 1] == ord(" "))
    good = fits(start(2), _COLON) & fits(start(4), _ARROW) & fits(via, _VIA)
    good &= (via + 4 < ends) & (ends - via - 4 <= _ROUTE_BYTES)
    numbers = []
    for at, stop, mark in ((start(1), start(2) - 1, "/"), (start(3), start(4) - 1, "[")):
        cut = _until(scan.buffer, at, stop, ord(mark))
        value, fine = decimals(scan.buffer, at, cut)
        good &= fine
        numbers.append(value)
        if mark == "/":
            index, fine = decimals(scan.buffer, cut + 1, stop)
            good &= fine | (cut == stop)
            numbers.append(np.where(cut == stop, 0, index))
    at, stop = start(5), start(6) - 1
    target, fine = decimals(scan.buffer, at, _until(scan.buffer, at, stop, ord("[")))
    good &= fine & (target < MOST_RANKS)
    for value in numbers:
        good &= value < MOST_RANKS
    good &= numbers[0] < MOST_CHANNELS
    if not good.any():
        return None
    rows, via, ends, side = rows[good], via[good] + 4, ends[good], side[good]
    channel, index_of, source = (value[good].astype(np.int64) for value in numbers)
    return Connections(
        rows, channel, index_of, source, target[good].astype(np.int64), side, (via, ends),
        hashes(scan.buffer, via, ends, _ROUTE_BYTES),
    )  # fmt: skip


def _until(buffer: NDArray[np.uint8], start: Positions, stop: Positions, mark: int) -> Positions:
    """Return the first position of `mark` in the first ten bytes of [start, stop), else stop."""
    result = stop.copy()
    for j in range(9, 0, -1):
        at = start + j
        result = np.where((at < stop) & (buffer[at] == mark), at, result)
    return result
