"""Compressed columns of many rows: equal values stored once, counters as small offsets.

A job repeats the same calls. Each call is stored as the index of its kind, and its number, line and time
relative to the smallest of its part: 6 bytes, or 10 with times.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from clusim.formats.logs.columns import row_hash, small, translated

Column = NDArray[np.integer]

PART_ROWS = 1 << 15
"""Number of rows that are compressed together."""


class RepeatingPart(NamedTuple):
    """Some rows: `kinds` has the columns' values by kind of row, `which` the kind of each row.

    `running` has the other columns: the smallest value, and the offset of each row from it.
    """

    kinds: dict[str, Column]
    which: Column
    running: dict[str, tuple[int, Column]]

    def column(self, name: str, rows: NDArray[np.int64] | slice = slice(None)) -> Column:
        """Return the values of some rows in a column."""
        if name in self.kinds:
            values: Column = self.kinds[name][self.which[rows]]
            return values
        low, more = self.running[name]
        counted: Column = more[rows].astype(np.int64) + low
        return counted


class Repeating:
    """Columns to which arrays are appended.

    Values of `running` columns are close to each other; the other columns have few distinct values.
    """

    def __init__(self, *names: str, running: tuple[str, ...]) -> None:
        """Start empty, with these columns."""
        self.names = names
        self._running = running
        self._alike = tuple(name for name in names if name not in running)
        self._parts: list[RepeatingPart] = []
        self._new: list[Mapping[str, Column]] = []
        self._length = self._waiting = 0

    def __len__(self) -> int:
        """Return the number of rows."""
        return self._length

    def __getitem__(self, name: str) -> Column:
        """Return a column in full."""
        found = [part.column(name) for part in self.parts()]
        return small(np.concatenate(found)) if found else np.zeros(0, np.int64)

    def add(self, part: Mapping[str, Column]) -> None:
        """Add rows; `part` has an array for every column, all of one length."""
        rows = len(part[self.names[0]])
        if rows == 0:
            return
        self._new.append(part)
        self._length += rows
        self._waiting += rows
        if self._waiting >= PART_ROWS:
            self._pack()

    def parts(self) -> list[RepeatingPart]:
        """Return all rows, in order."""
        self._pack()
        return self._parts

    def replace(self, name: str, values: Mapping[int, int]) -> None:
        """Replace the keys of `values` by their values in a column of few values."""
        for part in self.parts():
            part.kinds[name] = translated(part.kinds[name], values)

    def tally(self, *names: str) -> NDArray[np.int64]:
        """Return the distinct rows of some columns of few values, with counts as last column."""
        found = []
        for part in self.parts():
            times = np.bincount(part.which, minlength=len(part.kinds[names[0]]))
            found.append(
                counted(
                    np.stack((*(part.kinds[name].astype(np.int64) for name in names), times), 1)
                )
            )
        none = np.zeros((0, len(names) + 1), np.int64)
        return counted(np.concatenate(found)) if found else none

    @property
    def kept_bytes(self) -> int:
        """Memory of the rows [B]."""
        arrays = [
            array
            for part in self.parts()
            for array in (part.which, *part.kinds.values(), *(x for _, x in part.running.values()))
        ]
        return sum(0 if 0 in array.strides else array.nbytes for array in arrays)

    def _pack(self) -> None:
        if not self._new:
            return
        rows = {
            name: np.concatenate([part[name].astype(np.int64) for part in self._new])
            for name in self.names
        }
        self._new, self._waiting = [], 0
        key = row_hash(*(rows[name] for name in self._alike))
        _, first, which = np.unique(key, return_index=True, return_inverse=True)
        kinds = {name: small(rows[name][first]) for name in self._alike}
        running = {name: _steps(rows[name]) for name in self._running}
        self._parts.append(RepeatingPart(kinds, _narrow(which), running))


def counted(table: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the rows that differ before the last column, with sums of the last column."""
    _, first, which = np.unique(row_hash(*table.T[:-1]), return_index=True, return_inverse=True)
    found = table[first]
    found[:, -1] = np.bincount(which, table[:, -1], len(first)).astype(np.int64)
    return found


def _steps(values: Column) -> tuple[int, Column]:
    low = int(values.min())
    return low, _narrow(values - low)


def _narrow(values: Column) -> Column:
    """Return integers from 0 in the smallest type that holds them; all zeros need no memory."""
    top = int(values.max())
    if top == 0:
        return np.broadcast_to(np.zeros(1, np.uint8), len(values))
    return values.astype(np.min_scalar_type(top))
