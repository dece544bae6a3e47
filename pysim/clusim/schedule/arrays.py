"""A schedule as flat arrays and back, for HDF5: one array per column, named ``table/column``.

Integers are int64 and strings fixed-length UTF-8 bytes. A tuple of integers or strings becomes the
column and ``column_off``, where row `i` has elements ``off[i] .. off[i+1]-1``. The primitives of
all templates lie in one table.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import Field, fields
from itertools import pairwise
from typing import Any

import numpy as np

from clusim.base.arrays import Array
from clusim.base.errors import ScheduleError
from clusim.schedule.ir import (
    CollectiveCall,
    Connection,
    Instance,
    Prim,
    Schedule,
    Task,
    Template,
)

VERSION = 2
"""Version of the array form."""


_NO_TARGET = -(2**31)
"""Value of an absent `Prim.dst_base`."""

_TABLES: dict[str, type[Any]] = {
    "calls": CollectiveCall,
    "connections": Connection,
    "instances": Instance,
    "tasks": Task,
}
_NUMBERS = {
    "int": np.int64,
    "bool": np.int64,
    "float": np.float64,
    "int | None": np.int64,
}
"""Types of the columns of fields by annotation; others are strings."""


def _column(values: Sequence[Any], kind: str) -> Array:
    if kind in _NUMBERS:
        return np.array(
            [_NO_TARGET if v is None else v for v in values], _NUMBERS[kind]
        )
    encoded = [value.encode() for value in values]
    return np.array(encoded, f"S{max(1, *map(len, encoded))}" if encoded else "S1")


def _list_kind(item: Field[Any]) -> str:
    """Return the annotation of the elements of a tuple; empty for other fields."""
    return (
        str(item.type).removeprefix("tuple[").partition(",")[0]
        if "tuple" in item.type
        else ""
    )


def _put(
    arrays: dict[str, Array], table: str, rows: Sequence[Any], kind: type[Any]
) -> None:
    for item in fields(kind):
        name, values = (
            f"{table}/{item.name}",
            [getattr(row, item.name) for row in rows],
        )
        of_list = _list_kind(item)
        if of_list:
            arrays[name] = _column(
                [element for value in values for element in value], of_list
            )
            arrays[f"{name}_off"] = np.cumsum([0, *map(len, values)], dtype=np.int64)
        else:
            arrays[name] = _column(values, str(item.type))


def to_arrays(schedule: Schedule) -> dict[str, Array]:
    """Return all columns of a schedule by name."""
    arrays: dict[str, Array] = {
        "version": np.array([VERSION], np.int64),
        "num_ranks": np.array([schedule.num_ranks], np.int64),
        "name": _column([schedule.name], "str"),
    }
    for table, kind in _TABLES.items():
        _put(arrays, table, getattr(schedule, table), kind)
    templates = schedule.templates
    arrays["templates/name"] = _column([item.name for item in templates], "str")
    arrays["templates/mode"] = _column([item.mode for item in templates], "str")
    arrays["templates/nchunks"] = _column(
        [item.nchunks for item in templates], "int"
    )
    lengths = [len(item.prims) for item in templates]
    arrays["templates/prim_off"] = np.cumsum([0, *lengths], dtype=np.int64)
    _put(arrays, "prims", [prim for item in templates for prim in item.prims], Prim)
    return arrays


def _plain(values: Array) -> list[Any]:
    items: list[Any] = values.tolist()
    return [value.decode() for value in items] if values.dtype.kind == "S" else items


def _read(
    arrays: Mapping[str, Array], table: str, kind: type[Any]
) -> tuple[Any, ...]:
    columns: dict[str, list[Any]] = {}
    for item in fields(kind):
        values = _plain(arrays[f"{table}/{item.name}"])
        if _list_kind(item):
            off = _plain(arrays[f"{table}/{item.name}_off"])
            values = [tuple(values[low:high]) for low, high in pairwise(off)]
        elif item.type == "bool":
            values = [bool(value) for value in values]
        elif item.type == "int | None":
            values = [None if value == _NO_TARGET else value for value in values]
        columns[item.name] = values
    rows = zip(*columns.values(), strict=True)
    return tuple(kind(**dict(zip(columns, row, strict=True))) for row in rows)


def from_arrays(arrays: Mapping[str, Array]) -> Schedule:
    """Return the schedule that `to_arrays` wrote; raises `ScheduleError` if columns are missing or do not fit."""
    try:
        if int(arrays["version"][0]) != VERSION:
            raise ScheduleError(
                f"schedule arrays: version {arrays['version'][0]}; this reads {VERSION}"
            )
        prims = _read(arrays, "prims", Prim)
        tables = {
            table: _read(arrays, table, kind) for table, kind in _TABLES.items()
        }
        off = _plain(arrays["templates/prim_off"])
        columns = [
            _plain(arrays[f"templates/{name}"])
            for name in ("name", "nchunks", "mode")
        ]
        templates = (
            Template(name, prims[off[index] : off[index + 1]], nchunks, mode)
            for index, (name, nchunks, mode) in enumerate(zip(*columns, strict=True))
        )
        return Schedule(
            name=_plain(arrays["name"])[0],
            num_ranks=int(arrays["num_ranks"][0]),
            templates=tuple(templates),
            **tables,
        )
    except (KeyError, IndexError, ValueError, TypeError) as error:
        raise ScheduleError(
            f"schedule arrays: damaged ({error}); write them with to_arrays"
        ) from error
