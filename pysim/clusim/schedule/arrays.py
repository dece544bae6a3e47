"""A schedule as flat arrays and back, for HDF5: one array per column, named ``table/column``.

Integers are int64 and strings fixed-length UTF-8 bytes. A tuple of integers or strings becomes the
column and ``column_off``, where row `i` has elements ``off[i] .. off[i+1]-1``. The primitives of
all templates lie in one table.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clusim.base.errors import ScheduleError
from clusim.schedule.ir import CollectiveCall, Connection, Instance, Prim, Schedule, Task, Template

VERSION = 2
"""Version of the array form."""

Array = NDArray[Any]

_NO_TARGET = -(2**31)
"""Value of an absent `Prim.dst_base`."""

_TABLES: dict[str, type[Any]] = {
    "calls": CollectiveCall,
    "connections": Connection,
    "instances": Instance,
    "tasks": Task,
}
_TUPLES: dict[str, dict[str, type[Any]]] = {
    "calls": {"ranks": int},
    "connections": {"members": int, "path": str},
    "instances": {"connections": int},
    "tasks": {"deps": int},
}


def _strings(values: Sequence[str]) -> Array:
    encoded = [value.encode() for value in values]
    return np.array(encoded, f"S{max(1, *map(len, encoded))}" if encoded else "S1")


def _column(values: Sequence[Any]) -> Array:
    if values and isinstance(values[0], str):
        return _strings(values)
    return np.array(values, np.int64)


def _put(arrays: dict[str, Array], table: str, rows: Sequence[Any], kind: type[Any]) -> None:
    for item in fields(kind):
        name, values = item.name, [getattr(row, item.name) for row in rows]
        lists = _TUPLES.get(table, {})
        if name in lists:
            flat = [element for value in values for element in value]
            arrays[f"{table}/{name}"] = (
                _strings(flat) if lists[name] is str else np.array(flat, np.int64)
            )
            arrays[f"{table}/{name}_off"] = np.cumsum([0, *map(len, values)], dtype=np.int64)
        elif item.type == "str" or item.type in _ENUMS:
            arrays[f"{table}/{name}"] = _strings(values)
        else:
            number = np.float64 if item.type == "float" else np.int64
            arrays[f"{table}/{name}"] = np.array(values, number)


_ENUMS = ("Buffer", "Mode", "ConnectionKind", "Policy", "TaskKind")


def to_arrays(schedule: Schedule) -> dict[str, Array]:
    """Return all columns of a schedule by name."""
    arrays: dict[str, Array] = {
        "version": np.array([VERSION], np.int64),
        "num_ranks": np.array([schedule.num_ranks], np.int64),
        "name": _strings([schedule.name]),
    }
    for table, kind in _TABLES.items():
        _put(arrays, table, getattr(schedule, table), kind)
    templates = schedule.templates
    arrays["templates/name"] = _strings([item.name for item in templates])
    arrays["templates/mode"] = _strings([item.mode for item in templates])
    arrays["templates/nchunks"] = np.array([item.nchunks for item in templates], np.int64)
    arrays["templates/prim_off"] = np.cumsum(
        [0, *(len(item.prims) for item in templates)], dtype=np.int64
    )
    _put_prims(arrays, [prim for item in templates for prim in item.prims])
    return arrays


def _put_prims(arrays: dict[str, Array], prims: Sequence[Prim]) -> None:
    for item in fields(Prim):
        values = [getattr(prim, item.name) for prim in prims]
        if item.name == "dst_base":
            values = [_NO_TARGET if value is None else value for value in values]
        text = item.type == "str" or item.type in _ENUMS
        arrays[f"prims/{item.name}"] = _strings(values) if text else np.array(values, np.int64)


def _plain(values: Array) -> list[Any]:
    if values.dtype.kind == "S":
        return [value.decode() for value in values.tolist()]
    items: list[Any] = values.tolist()
    return items


def _rows(arrays: Mapping[str, Array], table: str, kind: type[Any]) -> Iterable[dict[str, Any]]:
    columns: dict[str, list[Any]] = {}
    for item in fields(kind):
        values = _plain(arrays[f"{table}/{item.name}"])
        if item.name in _TUPLES.get(table, {}):
            off = _plain(arrays[f"{table}/{item.name}_off"])
            values = [tuple(values[low:high]) for low, high in pairwise(off)]
        elif item.type == "bool":
            values = [bool(value) for value in values]
        columns[item.name] = values
    names = list(columns)
    return [dict(zip(names, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def from_arrays(arrays: Mapping[str, Array]) -> Schedule:
    """Return the schedule that `to_arrays` wrote; raises `ScheduleError` if columns are missing or do not fit."""
    try:
        if int(arrays["version"][0]) != VERSION:
            raise ScheduleError(
                f"schedule arrays: version {arrays['version'][0]}; this reads {VERSION}"
            )
        prims = []
        for row in _rows(arrays, "prims", Prim):
            target = None if row["dst_base"] == _NO_TARGET else row["dst_base"]
            prims.append(Prim(**{**row, "dst_base": target}))
        tables = {
            table: tuple(kind(**row) for row in _rows(arrays, table, kind))
            for table, kind in _TABLES.items()
        }
        return Schedule(
            name=_plain(arrays["name"])[0],
            num_ranks=int(arrays["num_ranks"][0]),
            templates=tuple(_templates(arrays, prims)),
            **tables,
        )
    except (KeyError, IndexError, ValueError, TypeError) as error:
        raise ScheduleError(
            f"schedule arrays: damaged ({error}); write them with to_arrays"
        ) from error


def _templates(arrays: Mapping[str, Array], prims: Sequence[Prim]) -> Iterable[Template]:
    columns = (_plain(arrays[f"templates/{name}"]) for name in ("name", "nchunks", "mode"))
    off = _plain(arrays["templates/prim_off"])
    for index, (name, nchunks, mode) in enumerate(zip(*columns, strict=True)):
        yield Template(name, tuple(prims[off[index] : off[index + 1]]), nchunks, mode)
