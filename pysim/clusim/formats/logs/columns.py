"""Growing columns of integers in the smallest type that holds them."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping

import numpy as np
from numpy.typing import NDArray

NONE = -1
"""Missing value in a column."""


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


class Rows:
    """Rows of a few integers, added one at a time."""

    def __init__(self, *names: str) -> None:
        """Start empty, with these columns."""
        self.names = names
        self._flat = array("q")

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self._flat) // len(self.names)

    def add(self, *row: int) -> None:
        """Add one row, a value for each column."""
        self._flat.extend(row)

    def add_table(self, table: NDArray[np.int64]) -> None:
        """Add many rows, a column of `table` for each column."""
        self._flat.frombytes(np.ascontiguousarray(table, np.int64).tobytes())

    def clear(self) -> None:
        """Forget all rows."""
        self._flat = array("q")

    def replace(self, name: str, values: Mapping[int, int]) -> None:
        """Replace the keys of `values` by their values in one column."""
        at = self.names.index(name)
        for i in range(at, len(self._flat), len(self.names)):
            self._flat[i] = values.get(self._flat[i], self._flat[i])

    def columns(self) -> dict[str, NDArray[np.int64]]:
        """Return a copy of the columns."""
        table = np.array(self._flat, np.int64).reshape(-1, len(self.names))
        return {name: table[:, i].copy() for i, name in enumerate(self.names)}


class Columns:
    """Columns to which arrays are appended."""

    def __init__(self, *names: str) -> None:
        """Start empty, with these columns."""
        self.names = names
        self._parts: list[dict[str, NDArray[np.integer]]] = []
        self._length = 0

    def __len__(self) -> int:
        """Return the number of rows."""
        return self._length

    def add(self, part: Mapping[str, NDArray[np.integer]]) -> None:
        """Add rows; `part` has an array for every column, all of one length."""
        self._parts.append({name: small(part[name]) for name in self.names})
        self._length += len(part[self.names[0]])

    def replace(self, name: str, values: Mapping[int, int]) -> None:
        """Replace the keys of `values` by their values in one column."""
        for part in self._parts:
            part[name] = translated(part[name], values)

    def columns(self) -> dict[str, NDArray[np.integer]]:
        """Return the columns, and release the arrays that were appended."""
        whole: dict[str, NDArray[np.integer]] = {}
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
        own = self._order[self._starts[owner] : self._starts[owner + 1]]
        return zip(*(self._columns[name][own].tolist() for name in names), strict=True)
