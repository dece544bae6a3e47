"""Tables of a trace, read separately in blocks of rows, without loading the complete file."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from clusim.base.arrays import Array
from clusim.base.errors import InputError
from clusim.results.bins import COLUMNS
from clusim.results.flows import FLOW_COLUMNS
from clusim.results.trace.reader import open_trace, progress
from clusim.results.trace.rules import length, read
from clusim.results.trace.structure import Opened

PIECE_ROWS = 1 << 18
"""Rows in a block of `iterate_table`."""

_FIRST = {
    name: i
    for i, name in enumerate(
        (
            "wire",
            "endpoint",
            "flow",
            "name",
            "rank",
            "stream",
            "time",
            "start",
            "end",
        )
    )
}


_HISTORIES = {
    "history": "/wires/wire",
    "hbm": "/hbm/endpoint",
    "flows": "/flows/flow",
}
"""Tables of histories, and the columns that they repeat for each bin."""


def table_names(path: str | Path) -> dict[str, list[str]]:
    """Return the tables of a trace and the columns of each."""
    with open_trace(path) as file:
        return {name: list(columns) for name, columns in _tables(file).items()}


def iterate_table(path: str | Path, name: str) -> Iterator[dict[str, Array]]:
    """Yield a table in blocks of complete rows, column by column; texts as str."""
    with open_trace(path) as file:
        tables = _tables(file)
        if name not in tables:
            table_names = ", ".join(tables)
            raise InputError(f"table {name!r}: not in {path}; it has {table_names}")
        if name in _HISTORIES:
            yield from _history_rows(file, name)
            return
        columns = tables[name]
        rows = _length(file, columns)
        if name == "primitives":
            rows = progress(file)[2]
        for low in range(0, max(1, rows), PIECE_ROWS):
            high = min(rows, low + PIECE_ROWS)
            yield {
                column: _plain(read(file, where, low, high))
                for column, where in columns.items()
            }


def _tables(file: Opened) -> dict[str, dict[str, str]]:
    """Return table -> column -> dataset; a table's columns are of one length."""
    tables: dict[str, dict[str, str]] = {"wires": {"wire": "/wires/wire"}}
    fabric = (name for name in file.columns("/fabric") if _fits(file, name))
    tables["wires"] |= {name: f"/fabric/{name}" for name in fabric}
    tables["wires"] |= {
        name: f"/wires/total/{name}" for name in file.columns("/wires/total")
    }
    tables["history"] = {"wire": "/wires/wire", "time": "/wires/time"}
    tables["history"] |= {
        name: f"/wires/{name}" for name in COLUMNS if f"/wires/{name}" in file
    }
    tables["hbm"] = {
        "endpoint": "/hbm/endpoint",
        "time": "/wires/time",
        "bytes": "/hbm/bytes",
    }
    if "/flows" in file:
        tables["flows"] = {"flow": "/flows/flow", "time": "/flows/time"}
        tables["flows"] |= {name: f"/flows/{name}" for name in FLOW_COLUMNS}
    schedule = {
        name.partition("/")[0] for name in file.columns("/schedule") if "/" in name
    }
    groups = (
        "tasks",
        "primitives",
        "messages",
        *(f"schedule/{name}" for name in sorted(schedule)),
    )
    tables |= {
        name: _columns(file, f"/{name}") for name in groups if f"/{name}" in file
    }
    if "tasks" in tables and "schedule/tasks" in tables:
        # The rank and stream of a task are more useful beside its times than its number.
        extra = {
            n: w
            for n, w in tables["schedule/tasks"].items()
            if n not in tables["tasks"]
        }
        tables["tasks"] |= {
            n: w
            for n, w in extra.items()
            if length(file, w) == _length(file, tables["tasks"])
        }
    return {
        name: _sort_columns(columns) for name, columns in tables.items() if columns
    }


def _sort_columns(columns: dict[str, str]) -> dict[str, str]:
    """Return the columns with those that identify a row first."""
    return dict(
        sorted(columns.items(), key=lambda item: _FIRST.get(item[0], len(_FIRST)))
    )


def _fits(file: Opened, name: str) -> bool:
    return length(file, f"/fabric/{name}") == length(file, "/wires/wire")


def _length(file: Opened, columns: dict[str, str]) -> int:
    return length(file, next(iter(columns.values())))


def _columns(file: Opened, group: str) -> dict[str, str]:
    """Return the columns of the most common length.

    Lists stored beside a table (dependencies, paths) have other lengths and are not columns of the table.
    """
    lengths = {name: length(file, f"{group}/{name}") for name in file.columns(group)}
    lists = {name.removesuffix("_off") for name in lengths if name.endswith("_off")}
    column_names = [n for n in lengths if n not in lists and not n.endswith("_off")]
    if not column_names:
        return {}
    usual = max(
        (lengths[name] for name in column_names),
        key=[lengths[n] for n in column_names].count,
    )
    return {
        name: f"{group}/{name}" for name in column_names if lengths[name] == usual
    }


def _history_rows(file: Opened, name: str) -> Iterator[dict[str, Array]]:
    """Yield a history as rows of (wire, endpoint or flow, time, values)."""
    names = _HISTORIES[name]
    key = names.rpartition("/")[2]
    who = _plain(read(file, names))
    values = {
        c: where
        for c, where in _tables(file)[name].items()
        if c not in (key, "time")
    }
    bins = progress(file)[1]
    time = read(file, "/wires/time", 0, bins)
    block_rows = max(1, PIECE_ROWS // max(1, bins))
    for low in range(0, len(who), block_rows):
        part = who[low : low + block_rows]
        yield {
            key: np.repeat(part, bins),
            "time": np.tile(time, len(part)),
            **{
                column: read(file, where, low, low + block_rows, bins=bins).ravel()
                for column, where in values.items()
            },
        }


def _plain(values: Array) -> Array:
    """Return a column with its texts as str."""
    if values.dtype.kind == "S":
        return np.array([value.decode() for value in values.tolist()], object)
    return values
