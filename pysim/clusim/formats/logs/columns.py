"""Growing columns of integers in the smallest type that holds them, plain or compressed.

Compressed columns store equal values once, and counters as small offsets. A job repeats the same calls. Each call is
stored as the index of its kind, and its number, line and time relative to the smallest: 6 to 10 bytes, or 18 with
times.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from clusim.base.match import row_hash

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
    ends = (
        (low, high) if low >= 0 else (low, -1 - high)
    )  # signed types have one more negative value
    return values.astype(np.result_type(*map(np.min_scalar_type, ends)))


def translate_keys(
    values: NDArray[np.integer], to: Mapping[int, int]
) -> NDArray[np.integer]:
    """Return `values` with the keys of `to` replaced by their values."""
    old = np.array(sorted(to), np.int64)
    new = np.array([to[key] for key in old.tolist()], np.int64)
    changed = values.astype(np.int64)
    at = np.minimum(np.searchsorted(old, changed), len(old) - 1)
    return small(np.where(old[at] == changed, new[at], changed))


class _Growing(ABC):
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

    @abstractmethod
    def _pack(self, part: Mapping[str, Column]) -> None:
        """Store a part."""


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
            part[name] = translate_keys(part[name], values)

    def columns(self) -> dict[str, Column]:
        """Return the columns, and release the arrays that were appended."""
        self._flush()
        merged: dict[str, Column] = {}
        for name in self.names:
            merged[name] = _concatenate([part.pop(name) for part in self._parts])
        self._parts = [merged] if self._length else []
        return dict(merged)


class OwnedRows:
    """Rows of columns grouped by owner; access to an owner's rows does not read the others."""

    def __init__(
        self, owners: NDArray[np.integer], columns: Mapping[str, NDArray[np.integer]]
    ) -> None:
        """Group by owners, numbers from 0; rows with negative owners are dropped."""
        self._columns = columns
        self._order = np.argsort(owners, kind="stable")
        last_owner = int(owners.max()) if len(owners) else NONE
        self._starts = np.searchsorted(
            owners[self._order], np.arange(last_owner + 2)
        ).tolist()

    def rows(self, owner: int, names: Iterable[str]) -> Iterable[tuple[int, ...]]:
        """Return the rows of an owner, in order, with the values of these columns."""
        if not 0 <= owner < len(self._starts) - 1:
            return ()
        rows = self._order[self._starts[owner] : self._starts[owner + 1]]
        return zip(
            *(self._columns[name][rows].tolist() for name in names), strict=True
        )


class Repeating(_Growing):
    """Columns of a few distinct rows.

    Values of `running` columns are close to each other; the other columns have few distinct values: rows that differ
    in them are stored once, as `kinds`, and `which` has the kind of each row.
    """

    def __init__(self, *names: str, running: tuple[str, ...]) -> None:
        """Start empty, with these columns."""
        super().__init__(*names)
        self._of_kind = tuple(name for name in names if name not in running)
        self._running = running
        self._parts: list[tuple[dict[str, Column], Column, dict[str, _Offsets]]] = []

    @property
    def kinds(self) -> dict[str, Column]:
        """Values of the columns by kind of row."""
        return self._merge_parts()[0]

    @property
    def which(self) -> Column:
        """Kind of each row."""
        return self._merge_parts()[1]

    def __getitem__(self, name: str) -> Column:
        """Return a column in full."""
        return small(self.column(name))

    def column(
        self, name: str, rows: NDArray[np.int64] | slice = slice(None)
    ) -> Column:
        """Return the values of some rows in a column."""
        kinds, which, running = self._merge_parts()
        if name in running:
            return running[name].values(rows)
        values: Column = kinds[name][which[rows]]
        return values

    def windows(self) -> Iterator[slice]:
        """Yield slices of all rows, in order."""
        yield from (
            slice(at, at + PART_ROWS) for at in range(0, len(self), PART_ROWS)
        )

    def replace(self, name: str, values: Mapping[int, int]) -> None:
        """Replace the keys of `values` by their values in a column of few values."""
        self.kinds[name] = translate_keys(self.kinds[name], values)

    def tally(self, *names: str) -> NDArray[np.int64]:
        """Return the distinct rows of some columns of few values, with counts as last column."""
        times = np.bincount(self.which, minlength=len(self.kinds[names[0]]))
        columns = [self.kinds[name].astype(np.int64) for name in names]
        return count_rows(np.stack((*columns, times), 1))

    @property
    def kept_bytes(self) -> int:
        """Memory of the rows [B]."""
        kinds, which, running = self._merge_parts()
        arrays = [
            which,
            *kinds.values(),
            *(column.above for column in running.values()),
        ]
        return sum(0 if 0 in array.strides else array.nbytes for array in arrays)

    def _pack(self, part: Mapping[str, Column]) -> None:
        rows = {name: part[name].astype(np.int64) for name in self.names}
        _, first, which = np.unique(
            row_hash(*(rows[name] for name in self._of_kind)),
            return_index=True,
            return_inverse=True,
        )
        kinds = {name: small(rows[name][first]) for name in self._of_kind}
        running = {name: _Offsets.of(rows[name]) for name in self._running}
        self._parts.append((kinds, _narrow(which), running))

    def _merge_parts(self) -> tuple[dict[str, Column], Column, dict[str, _Offsets]]:
        """Merge and return the parts."""
        self._flush()
        if len(self._parts) != 1:
            kinds, which, running = (
                zip(*self._parts, strict=True) if self._parts else ((), (), ())
            )
            starts = np.cumsum(
                [0, *(len(part[self._of_kind[0]]) for part in kinds)]
            ).tolist()
            self._parts = [
                (
                    {
                        name: _concatenate([part[name] for part in kinds])
                        for name in self._of_kind
                    },
                    _narrow(
                        _concatenate(
                            [
                                part.astype(np.int64) + at
                                for part, at in zip(which, starts, strict=False)
                            ]
                        )
                    ),
                    {
                        name: _Offsets.of(
                            _concatenate([part[name].values() for part in running])
                        )
                        for name in self._running
                    },
                )
            ]
        return self._parts[0]


class _Offsets(NamedTuple):
    """Values of a column as the smallest value, and the others above it."""

    low: int
    above: Column

    @classmethod
    def of(cls, values: Column) -> _Offsets:
        """Store values."""
        low = int(values.min()) if len(values) else 0
        return cls(low, _narrow(values - low))

    def values(self, rows: NDArray[np.int64] | slice = slice(None)) -> Column:
        """Return the values of some rows."""
        return self.above[rows].astype(np.int64) + self.low


def _concatenate(parts: Sequence[Column]) -> Column:
    return np.concatenate(parts) if parts else np.zeros(0, np.int64)


def count_rows(table: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the rows that differ before the last column, with sums of the last column."""
    _, first, which = np.unique(
        row_hash(*table.T[:-1]), return_index=True, return_inverse=True
    )
    result = table[first]
    result[:, -1] = np.bincount(which, table[:, -1], len(first)).astype(np.int64)
    return result


def _narrow(values: Column) -> Column:
    """Return integers from 0 in the smallest type that holds them; all zeros need no memory."""
    top = int(values.max()) if len(values) else 0
    if top == 0:
        return np.broadcast_to(np.zeros(1, np.uint8), len(values))
    return values.astype(np.min_scalar_type(top))
