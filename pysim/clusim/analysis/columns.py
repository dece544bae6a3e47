"""Table that every analysis returns: columns of equal length, with units in their names."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from clusim.base.display import Columns, Shown, Summary
from clusim.base.files import write_csv


def _plain(value: Any) -> Any:
    """Return a NumPy scalar as the Python value of its kind."""
    return value.item() if isinstance(value, np.generic) else value


@dataclass(frozen=True, slots=True, repr=False)
class ColumnTable(Shown):
    """Rows of an analysis.

    Attributes
    ----------
    columns : dict of list
        Column name -> values, of equal length. Units are in the names: ``busy_ps``, ``rate_Bps``.
    facts : dict
        Totals, such as the time that the rows add up to.
    notes : list of str
        Remarks for the user, the most important first.
    """

    columns: dict[str, list[Any]]
    facts: dict[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    @classmethod
    def of(
        cls,
        names: Sequence[str],
        rows: Iterable[Sequence[Any]],
        facts: Mapping[str, Any] | None = None,
        notes: Iterable[str] = (),
    ) -> ColumnTable:
        """Return a table of `rows`, each with a value for each of `names`."""
        table: dict[str, list[Any]] = {name: [] for name in names}
        for row in rows:
            for name, value in zip(names, row, strict=True):
                table[name].append(_plain(value))
        return cls(table, {k: _plain(v) for k, v in (facts or {}).items()}, list(notes))

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(next(iter(self.columns.values()), []))

    def rows(self) -> list[dict[str, Any]]:
        """Return the rows as dictionaries."""
        names = list(self.columns)
        values = zip(*self.columns.values(), strict=True)
        return [dict(zip(names, row, strict=True)) for row in values]

    def top(self, count: int | None) -> ColumnTable:
        """Return the first `count` rows; all for None."""
        if count is None:
            return self
        cut = {name: values[:count] for name, values in self.columns.items()}
        return ColumnTable(cut, self.facts, self.notes)

    def summary(self) -> Summary:
        """Return the columns, the number of rows, and notes."""
        return Summary(", ".join(self.columns), (f"{len(self):,} rows",), " ".join(self.notes))

    def tables(self) -> Mapping[str, Callable[[], Columns]]:
        """Return the rows."""
        return {"rows": lambda: self.columns}

    def to_json(self) -> dict[str, Any]:
        """Return facts, notes and rows for `json.dumps`."""
        return {**self.facts, "notes": self.notes, "rows": self.rows()}

    def to_csv(self) -> str:
        """Return the rows as CSV with a header line."""
        out = io.StringIO()
        write_csv(out, [self.columns, *zip(*self.columns.values(), strict=True)])
        return out.getvalue()
