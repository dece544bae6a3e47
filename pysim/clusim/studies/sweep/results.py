"""The table of a sweep: a row per point, kept in one Parquet file that is replaced as a whole."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from clusim.base.errors import InputError
from clusim.base.files import replacing
from clusim.studies.sweep.points import Cell

Row = dict[str, Cell]

KEYS = {"point", "kind", "clusim", "files"}
"""Columns that every such table has."""


def _pyarrow() -> tuple[Any, Any]:
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError:
        raise InputError("sweep: needs pyarrow; pip install 'clusim-net[parquet]'") from None
    return pyarrow, parquet


def read_rows(path: Path) -> list[Row]:
    """Return the rows of a sweep before, none if there is no such file.

    Raises
    ------
    InputError
        The file is something else, and would be written over.
    """
    pyarrow, parquet = _pyarrow()
    if not path.exists():
        return []
    try:
        table = parquet.read_table(path)
    except (OSError, pyarrow.ArrowException):
        raise InputError(
            f"{path}: is no Parquet file and would be replaced; give another file"
        ) from None
    if not set(table.column_names) >= KEYS:
        raise InputError(f"{path}: is no table of a sweep and would be replaced; give another file")
    rows: list[Row] = table.to_pylist()
    return [{name: value for name, value in row.items() if value is not None} for row in rows]


def write_rows(path: Path, rows: Sequence[Row]) -> None:
    """Write the table, in place of what was there."""
    pyarrow, parquet = _pyarrow()
    names = list(dict.fromkeys(name for row in rows for name in row))
    last = [name for name in names if name in KEYS | {"simulated_in_s", "error"}]
    ordered = [*(name for name in names if name not in last), *last]
    columns = {name: _alike(row.get(name) for row in rows) for name in ordered}
    with replacing(path) as out:
        parquet.write_table(pyarrow.table(columns), out, compression="zstd")


def _alike(values: Iterable[Cell]) -> list[Cell]:
    """Return values of one type: what is both text and number, or both flag and number, is text."""
    found = list(values)
    kinds = {type(value) for value in found if value is not None}
    if len(kinds) < 2 or kinds == {int, float}:
        return [float(v) if float in kinds and v is not None else v for v in found]
    return [None if value is None else str(value) for value in found]
