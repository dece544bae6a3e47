"""Registry of the calibration rows of every calibrated parameter.

These rows must not be scored as predictions. A figure marked ``calibrated`` names the measurement sets
that it was taken from or fitted to. A set selects rows of a table of collectives by columns, so that
`clusim validate` can score them separately; other measurements (a data sheet's benchmark, timings of
single primitives) have no selector. Sets are conservative: if any size of a curve was inspected, the
complete curve is calibration. The file is ``row_sets.yaml``.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from clusim.base.datafiles import read
from clusim.base.records import dataclass

Value = str | int
"""Value of a column of a measurement."""


_CAMPAIGN = ("source", "plugin")
"""Columns that distinguish campaigns of measurements of one system."""


@dataclass(frozen=True, slots=True)
class Selector:
    """Filter of rows; every named column must have one of the listed values.

    Attributes
    ----------
    columns : mapping
        Column -> values; `source` matches each of the names joined by ``+``.
    sizes : (int, int)
        Least and greatest size [bytes].
    """

    columns: Mapping[str, tuple[Value, ...]]
    sizes: tuple[int, int] = (0, 1 << 62)

    def matches_source(self, row: Mapping[str, Value]) -> bool:
        """Return True if a row is of the selector's source and plugin; without a source, if its columns match."""
        names = _CAMPAIGN if "source" in self.columns else self.columns
        return all(
            _holds(n, self.columns[n], row) for n in names if n in self.columns
        )

    def matches(self, row: Mapping[str, Value]) -> bool:
        """Return True if the selector matches a row with its columns and `size_bytes`."""
        low, high = self.sizes
        return low <= int(row["size_bytes"]) <= high and all(
            _holds(name, values, row) for name, values in self.columns.items()
        )


def _holds(name: str, values: tuple[Value, ...], row: Mapping[str, Value]) -> bool:
    result = row.get(name, "")
    if name == "source":
        return any(part in values for part in str(result).split("+"))
    return result in values


@dataclass(frozen=True, slots=True)
class RowSet:
    """Set of measurements used to calibrate figures.

    Attributes
    ----------
    text : str
        Description.
    selectors : tuple of Selector
        Selectors of rows in a table of collectives; empty selects no rows.
    spread : float
        Median relative error of the simulation on these rows; 0 if not scored.
    """

    name: str
    text: str
    selectors: tuple[Selector, ...] = ()
    spread: float = 0.0

    def has(self, row: Mapping[str, Value]) -> bool:
        """Return True if a row of a table belongs to the set, by its columns."""
        return any(selector.matches(row) for selector in self.selectors)

    def has_source(self, row: Mapping[str, Value]) -> bool:
        """Return True if the set has rows of the campaign (source and plugin) of a row of a table."""
        return any(selector.matches_source(row) for selector in self.selectors)

    def has_system(self, row: Mapping[str, Value]) -> bool:
        """Return True if the set has rows of the system of a row of a table."""
        systems = (selector.columns.get("system") for selector in self.selectors)
        return any(values is None or row["system"] in values for values in systems)


def _selector(row: dict[str, Any]) -> Selector:
    """Return the selector of a row of the file; ``from_bytes`` and ``to_bytes`` are inclusive."""
    sizes = row.pop("from_bytes", 0), row.pop("to_bytes", 1 << 62)
    columns = {
        name: tuple(v) if isinstance(v, list) else (v,) for name, v in row.items()
    }
    return Selector(columns, sizes)


ROW_SETS: dict[str, RowSet] = {
    name: RowSet(
        name,
        entry["text"],
        tuple(map(_selector, entry.get("rows", ()))),
        spread=entry.get("median_pct", 0.0) / 100,
    )
    for name, entry in read(Path(__file__).with_name("row_sets.yaml")).items()
}
"""Sets of measurements by name."""


def row_sets_of(row: Mapping[str, Value]) -> tuple[str, ...]:
    """Return the names of the sets that a row of a table, by its columns, belongs to."""
    return tuple(item.name for item in ROW_SETS.values() if item.has(row))
