"""Growing columns of integers in the smallest type that holds them, plain or compressed.

Compressed columns store equal values once, and counters as small offsets. A job repeats the same calls. Each call is
stored as the index of its kind, and its number, line and time relative to the smallest of its part: 6 bytes, or 10
with times.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

NONE = -1
"""Missing value in a column."""

Column = NDArray[np.integer]

PART_ROWS = 1 << 15
"""Number of rows that are compressed together."""


def small(values: NDArray[np.integer]) -> NDArray[np.integer]:
    """Return `values` in the smallest integer type that holds them all."""
    if len(values) == 0:
        return values.astype(np.int8)
    low, high = int(values.min()), int(values.max())
    return values.astype(np.promote_types(np.min_scalar_type(low), np.min_scalar_type(high)))


def translated(values: NDArray[np.integer], to: Mapping[int, int]) -> NDArray[np.integer]:
    """Return `values` with the keys of `to` replaced by their values."""
    old = np.array(sorted(to), np.int64)
    new = np.array([to[key] for key in old.tolist()], np.int64)
    changed = values.astype(np.int64)
    at = np.minimum(np.searchsorted(old, changed), len(old) - 1)
    return small(np.where(old[at] == changed, new[at], changed))


_FACTOR = np.uint64(0x9E3779B97F4A7C15)


def row_hash(*keys: NDArray[np.integer]) -> NDArray[np.uint64]:
    """Return one hash for each row of keys."""
    value = np.zeros(len(keys[0]), np.uint64)
    for key in keys:
        value = (value ^ key.astype(np.uint64)) * _FACTOR
        value ^= value >> np.uint64(29)
    return value


def ordinals(*keys: NDArray[np.integer]) -> NDArray[np.int64]:
    """Return for each row the number of earlier rows with the same keys."""
    value = row_hash(*keys)
    n = len(value)
    order = np.argsort(value, kind="stable")
    value = value[order]
    starts = np.flatnonzero(np.concatenate(([True], value[1:] != value[:-1]))) if n else order
    result = np.empty(n, np.int64)
    result[order] = np.arange(n) - np.repeat(starts, np.diff(starts, append=n))
    return result


class _Growing:
    """Columns to which rows and arrays are added."""

    def __init__(self, *names: str) -> None:
        self.names = names
        self._rows = array("q")
        self._length = 0

    def __len__(self) -> int:
        """Return the number of rows."""
        return self._length + len(self._rows) // len(self.names)

    def append(self, *rows: int) -> None:
        """Add rows, a value for each column."""
        self._rows.extend(rows)
        if len(self._rows) >= PART_ROWS * len(self.names):
            self._flush()

    def add(self, part: Mapping[str, Column]) -> None:
        """Add rows; `part` has an array for every column, all of one length."""
        self._flush()
        self._store(part)

    def _store(self, part: Mapping[str, Column]) -> None:
        rows = len(part[self.names[0]])
        if rows:
            self._length += rows
            self._pack(part)

    def _flush(self) -> None:
        """Pack the rows that were added one at a time."""
        if self._rows:
            table = np.array(self._rows, np.int64).reshape(-1, len(self.names))
            self._rows = array("q")
            self._store(dict(zip(self.names, table.T, strict=True)))

    def _pack(self, part: Mapping[str, Column]) -> None:
        raise NotImplementedError


class Columns(_Growing):
    """Columns of integers, each part in the smallest types that hold it."""

    def __init__(self, *names: str) -> None:
        """Start empty, with these columns."""
        super().__init__(*names)
        self._parts: list[dict[str, Column]] = []

    def _pack(self, part: Mapping[str, Column]) -> None:
        self._parts.append({name: small(part[name]) for name in self.names})

    def replace(self, name: str, values: Mapping[int, int]) -> None:
        """Replace the keys of `values` by their values in one column."""
        self._flush()
        for part in self._parts:
            part[name] = translated(part[name], values)

    def columns(self) -> dict[str, Column]:
        """Return the columns, and release the arrays that were appended."""
        self._flush()
        whole: dict[str, Column] = {}
        for name in self.names:
            parts = [part.pop(name) for part in self._parts]
            whole[name] = np.concatenate(parts) if parts else np.zeros(0, np.int64)
        self._parts = [whole] if self._length else []
        return dict(whole)


class OwnedRows:
    """Rows of columns grouped by owner; access to an owner's rows does not read the others."""

    def __init__(
        self, owners: NDArray[np.integer], columns: Mapping[str, NDArray[np.integer]]
    ) -> None:
        """Group by owners, numbers from 0; rows with negative owners are dropped."""
        self._columns = columns
        self._order = np.argsort(owners, kind="stable")
        most = int(owners.max()) if len(owners) else NONE
        self._starts = np.searchsorted(owners[self._order], np.arange(most + 2)).tolist()

    def rows(self, owner: int, names: Iterable[str]) -> Iterable[tuple[int, ...]]:
        """Return the rows of an owner, in order, with the values of these columns."""
        if not 0 <= owner < len(self._starts) - 1:
            return ()
        rows = self._order[self._starts[owner] : self._starts[owner + 1]]
        return zip(*(self._columns[name][rows].tolist() for name in names), strict=True)


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


class Repeating(_Growing):
    """Columns of a few distinct rows.

    Values of `running` columns are close to each other; the other columns have few distinct values.
    """

    def __init__(self, *names: str, running: tuple[str, ...]) -> None:
        """Start empty, with these columns."""
        super().__init__(*names)
        self._running = running
        self._alike = tuple(name for name in names if name not in running)
        self._parts: list[RepeatingPart] = []

    def __getitem__(self, name: str) -> Column:
        """Return a column in full."""
        parts = [part.column(name) for part in self.parts()]
        return small(np.concatenate(parts)) if parts else np.zeros(0, np.int64)

    def parts(self) -> list[RepeatingPart]:
        """Return all rows, in order."""
        self._flush()
        return self._parts

    def replace(self, name: str, values: Mapping[int, int]) -> None:
        """Replace the keys of `values` by their values in a column of few values."""
        for part in self.parts():
            part.kinds[name] = translated(part.kinds[name], values)

    def tally(self, *names: str) -> NDArray[np.int64]:
        """Return the distinct rows of some columns of few values, with counts as last column."""
        result = []
        for part in self.parts():
            times = np.bincount(part.which, minlength=len(part.kinds[names[0]]))
            result.append(
                counted(
                    np.stack((*(part.kinds[name].astype(np.int64) for name in names), times), 1)
                )
            )
        none = np.zeros((0, len(names) + 1), np.int64)
        return counted(np.concatenate(result)) if result else none

    @property
    def kept_bytes(self) -> int:
        """Memory of the rows [B]."""
        arrays = [
            array
            for part in self.parts()
            for array in (part.which, *part.kinds.values(), *(x for _, x in part.running.values()))
        ]
        return sum(0 if 0 in array.strides else array.nbytes for array in arrays)

    def _pack(self, part: Mapping[str, Column]) -> None:
        rows = {name: part[name].astype(np.int64) for name in self.names}
        _, first, which = np.unique(
            row_hash(*(rows[name] for name in self._alike)), return_index=True, return_inverse=True
        )
        kinds = {name: small(rows[name][first]) for name in self._alike}
        running = {name: _offsets(rows[name]) for name in self._running}
        self._parts.append(RepeatingPart(kinds, _narrow(which), running))


def counted(table: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the rows that differ before the last column, with sums of the last column."""
    _, first, which = np.unique(row_hash(*table.T[:-1]), return_index=True, return_inverse=True)
    result = table[first]
    result[:, -1] = np.bincount(which, table[:, -1], len(first)).astype(np.int64)
    return result


def _offsets(values: Column) -> tuple[int, Column]:
    low = int(values.min())
    return low, _narrow(values - low)


def _narrow(values: Column) -> Column:
    """Return integers from 0 in the smallest type that holds them; all zeros need no memory."""
    top = int(values.max())
    if top == 0:
        return np.broadcast_to(np.zeros(1, np.uint8), len(values))
    return values.astype(np.min_scalar_type(top))
