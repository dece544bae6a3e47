"""Tables of sweeps: one row per point in a CSV or Parquet file, which is always replaced completely.

In CSV, numbers and truth values are as in JSON, and absent values are empty. Text is plain, or a JSON string if it
would be read as another type or begin a formula.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from clusim.base.errors import InputError
from clusim.base.files import guard_inputs, replacing, text_of, write_csv
from clusim.base.limits import read_text
from clusim.studies.sweep.keys import Cell

Row = dict[str, Cell]

KEYS = {"point", "kind", "clusim", "files"}
"""Columns of every table."""

PARQUET = ".parquet"
"""Ending of the names of Parquet tables; all others are CSV."""

_FORMULA = tuple("=+-@\t\r")
"""Starts of texts that spreadsheets read as formulas."""


def read_rows(path: Path) -> list[Row]:
    """Return the rows of an earlier sweep; empty if the file does not exist.

    Raises
    ------
    InputError
        The file is not the table of a sweep, and would be overwritten, or pyarrow is missing.
    """
    read = _read_parquet if path.suffix == PARQUET else _read_csv
    if path.suffix == PARQUET:
        _pyarrow()
    if not path.exists():
        return []
    with guard_inputs():  # the table is continued: it may be replaced
        names, rows = read(path)
    if not set(names) >= KEYS:
        raise InputError(
            f"{path}: not a table of a sweep and would be replaced; choose another file"
        )
    return [
        {name: value for name, value in row.items() if value is not None}
        for row in rows
    ]


def write_rows(path: Path, rows: Sequence[Row]) -> None:
    """Write the table, replacing an existing file."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    last = [name for name in names if name in KEYS | {"simulated_in_s", "error"}]
    ordered = [*(name for name in names if name not in last), *last]
    if path.suffix == PARQUET:
        pyarrow, parquet = _pyarrow()
        columns = {name: _alike(row.get(name) for row in rows) for name in ordered}
        with replacing(path) as out:
            parquet.write_table(pyarrow.table(columns), out, compression="zstd")
        return
    with replacing(path) as file, text_of(file) as text:
        write_csv(
            text,
            [ordered, *([_cell(row.get(name)) for name in ordered] for row in rows)],
        )


def _pyarrow() -> tuple[Any, Any]:
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError:
        raise InputError(
            "sweep: Parquet needs pyarrow; pip install 'clusim-net[parquet]', or use -o NAME.csv"
        ) from None
    return pyarrow, parquet


def _read_parquet(path: Path) -> tuple[list[str], list[Row]]:
    pyarrow, parquet = _pyarrow()
    try:
        table = parquet.read_table(path)
    except (OSError, pyarrow.ArrowException):
        raise InputError(
            f"{path}: not a Parquet file and would be replaced; choose another file"
        ) from None
    return table.column_names, table.to_pylist()


def _read_csv(path: Path) -> tuple[list[str], list[Row]]:
    reader = csv.DictReader(io.StringIO(read_text(path, strict=False), newline=""))
    try:
        rows = [
            {str(name): _value(str(text or "")) for name, text in row.items()}
            for row in reader
        ]
    except csv.Error as error:
        raise InputError(
            f"{path}: not CSV ({error}) and would be replaced; choose another file"
        ) from None
    return list(reader.fieldnames or ()), rows


def _cell(value: Cell) -> Cell:
    """Return the form of a value in CSV."""
    if isinstance(value, bool):
        return json.dumps(value)
    if not isinstance(value, str):
        return value
    changes = _value(value) != value or value.startswith(_FORMULA)
    return json.dumps(value) if changes else value


def _value(text: str) -> Cell:
    """Return the value of a form in CSV."""
    if not text:
        return None
    with suppress(ValueError):
        parsed = json.loads(text)
        if isinstance(parsed, str | int | float):
            return parsed
    return text


def _alike(values: Iterable[Cell]) -> list[Cell]:
    """Return values of one type: text for mixed columns, float for integers with floats."""
    result = list(values)
    kinds = {type(value) for value in result if value is not None}
    if len(kinds) < 2 or kinds == {int, float}:
        return [float(v) if float in kinds and v is not None else v for v in result]
    return [None if value is None else str(value) for value in result]
