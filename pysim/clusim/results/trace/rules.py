"""Rules of every column of a trace: kind, length, range of values, targets of indices.

Columns of the engine's input, in /image, have their ranges in `clusim.engine.ranges`. Each read is checked against
its rule, so callers may trust the values, no column is read twice, and a table of any size is checked block by block.
"""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clusim.base.errors import TraceError
from clusim.base.terms.operations import PROTOCOL_NAMES
from clusim.engine.abi import NONE
from clusim.engine.ranges import TIME_END_PS
from clusim.results.bins import COLUMNS
from clusim.results.trace.layout import UNITS, WIRE_TOTALS
from clusim.results.trace.structure import Opened, dtype_of

AMOUNT_END = 1 << 62
"""Upper limit of counts, sizes and times of counters: any two add up to at most 63 bits."""


@dataclass(frozen=True, slots=True)
class Rule:
    """Legal content of a column.

    Attributes
    ----------
    kind : str
        ``int``, ``float`` or ``text``; empty for any of them.
    rows : str
        Column with the same number of rows; empty for any number.
    low, high : int
        Values are at least `low` and below `high`.
    into : str
        Column whose rows the values index; then `high` is its number of rows.
    absent : int or None
        Additional legal value.
    words : tuple of str
        The only legal texts; empty for any text without control characters.
    ascending : bool
        True if no value may be less than the previous value.
    extra : int
        Number of rows in addition to `rows`.
    ends : str
        Column whose length is the last value: the offsets divide it among the rows of `rows`.
    free : bool
        True if texts may have control characters.
    """

    kind: str = "int"
    rows: str = ""
    low: int = 0
    high: int = AMOUNT_END
    into: str = ""
    absent: int | None = None
    words: tuple[str, ...] = ()
    ascending: bool = False
    extra: int = 0
    ends: str = ""
    free: bool = False


_FREE = Rule("", low=-(1 << 63), high=1 << 63)
_TEXT = Rule("text")
_WIRES, _ENDPOINTS, _NODES, _BINS = "/wires/wire", "/hbm/endpoint", "/fabric/node", "/wires/time"
_TASKS, _SLICES, _MESSAGES = "/tasks/name", "/primitives/time", "/messages/source"
_CALLS, _RANKS = "/schedule/calls/operation", "/fabric/rank_endpoint"
_TIME = Rule(high=TIME_END_PS)
_LATE = Rule(low=-1, high=TIME_END_PS)
_INDEX_END = 1 << 32

RULES: dict[str, Rule] = {
    "/meta/fabric_text": replace(_TEXT, free=True),
    "/meta/schedule_text": replace(_TEXT, free=True),
    "/meta/faults": _TEXT,
    "/meta/notes": _TEXT,
    "/meta/verdict": _TEXT,
    "/meta/progress": _TIME,
    "/wires/wire": _TEXT,
    "/wires/time": replace(_TIME, ascending=True),
    "/fabric/wire_class": replace(_TEXT, rows=_WIRES),
    "/fabric/rate": Rule("float", _WIRES),
    "/fabric/from_endpoint": Rule(rows=_WIRES, high=2),
    "/fabric/node": _TEXT,
    "/fabric/node_kind": replace(_TEXT, rows=_NODES),
    "/fabric/node_tier": replace(_TEXT, rows=_NODES),
    "/fabric/node_zone": Rule(rows=_NODES, low=-1, high=_INDEX_END),
    "/fabric/rank_endpoint": Rule(into=_ENDPOINTS),
    "/hbm/endpoint": Rule(into=_ENDPOINTS),
    "/hbm/time": replace(_TIME, ascending=True),
    "/hbm/bytes": Rule(rows=_ENDPOINTS),
    "/tasks/name": _TEXT,
    "/tasks/start": replace(_LATE, rows=_TASKS),
    "/tasks/end": replace(_LATE, rows=_TASKS),
    "/messages/source": Rule(into=_ENDPOINTS),
    "/messages/destination": Rule(rows=_MESSAGES, into=_ENDPOINTS),
    "/messages/bytes": Rule(rows=_MESSAGES),
    "/messages/start": replace(_TIME, rows=_MESSAGES),
    "/messages/end": replace(_LATE, rows=_MESSAGES),
    "/primitives/time": replace(_TIME, ascending=True),
    "/primitives/gate": replace(_TIME, rows=_SLICES),
    "/primitives/instance": Rule(rows=_SLICES, into="/image/instances"),
    "/primitives/seq": Rule(rows=_SLICES, high=_INDEX_END),
    "/primitives/wire": Rule(rows=_SLICES, into="/image/wires", absent=NONE),
    "/primitives/cause": Rule(rows=_SLICES, high=3),
    "/schedule/num_ranks": Rule(low=1, high=_INDEX_END),
    "/schedule/tasks/kind": Rule("text", _TASKS, words=("program", "kernel", "delay", "marker")),
    "/schedule/tasks/rank": Rule(rows=_TASKS, into=_RANKS),
    "/schedule/tasks/call": Rule(rows=_TASKS, into=_CALLS, absent=-1),
    "/schedule/tasks/deps": Rule(into=_TASKS),
    "/schedule/calls/ranks": Rule(into=_RANKS),
    "/schedule/calls/root": Rule(rows=_CALLS, into=_RANKS, absent=-1),
    "/schedule/calls/bytes": Rule(rows=_CALLS),
    "/schedule/calls/channels": Rule(rows=_CALLS, high=1 << 16),
    "/schedule/calls/protocol": Rule("text", _CALLS, words=PROTOCOL_NAMES),
    "/schedule/templates/prim_off": Rule(
        rows="/schedule/templates/mode", extra=1, ascending=True, ends="/schedule/prims/op"
    ),
    "/schedule/instances/task": Rule(into=_TASKS),
    "/schedule/instances/channel": Rule(rows="/schedule/instances/task", high=1 << 16),
}
"""Rules of columns by name; other columns of the schedule use the rule of their table."""
RULES |= {f"/wires/{name}": Rule(rows=_WIRES) for name in COLUMNS}
RULES |= {f"/wires/total/{name}": Rule(rows=_WIRES) for name in WIRE_TOTALS}

_PARTS, _PLACES = "/folded/parts/ranks", "/folded/places/part"
_DONE, _AT, _USED = "/folded/tasks/slot", "/folded/ranks/rank", "/folded/wires/wire"
_ASKED = "/folded/calls/operation"


def _off(rows: str, ends: str) -> Rule:
    return Rule(rows=rows, extra=1, ascending=True, ends=ends)


RULES |= {
    "/folded/stream": _TEXT,
    "/folded/name": _TEXT,
    _PARTS: Rule(high=_INDEX_END),
    "/folded/parts/tasks_off": _off(_PARTS, _DONE),
    "/folded/parts/calls_off": _off(_PARTS, _ASKED),
    _DONE: Rule(high=_INDEX_END),
    "/folded/tasks/kind": Rule(rows=_DONE, high=4),
    "/folded/tasks/stream": Rule(rows=_DONE, into="/folded/stream"),
    "/folded/tasks/name": Rule(rows=_DONE, into="/folded/name", absent=-1),
    **{f"/folded/tasks/{name}": replace(_TIME, rows=_DONE) for name in ("start", "moves", "end")},
    "/folded/tasks/call": Rule(rows=_DONE, low=-1, high=_INDEX_END),
    "/folded/tasks/memory": Rule(rows=_DONE),
    _ASKED: _TEXT,
    **{
        f"/folded/calls/{name}": replace(_TEXT, rows=_ASKED)
        for name in ("algorithm", "dtype", "redop")
    },
    "/folded/calls/root": Rule(rows=_ASKED, low=-1, high=_INDEX_END),
    "/folded/calls/protocol": Rule("text", _ASKED, words=PROTOCOL_NAMES),
    "/folded/calls/bytes": Rule(rows=_ASKED),
    "/folded/calls/channels": Rule(rows=_ASKED, high=1 << 16),
    "/folded/calls/ranks": Rule(rows=_ASKED, low=1, high=_INDEX_END),
    _PLACES: Rule(into=_PARTS),
    "/folded/places/ranks_off": _off(_PLACES, _AT),
    "/folded/places/wires_off": _off(_PLACES, _USED),
    _AT: Rule(into=_RANKS),
    "/folded/ranks/endpoint": Rule(rows=_AT, into=_ENDPOINTS),
    "/folded/ranks/hbm": Rule(rows=_AT),
    _USED: Rule(into=_WIRES),
    **{f"/folded/wires/{name}": Rule(rows=_USED) for name in WIRE_TOTALS},
    "/folded/blocks/place": Rule(into=_PLACES),
    "/folded/pauses/task": Rule(into=_TASKS),
}
"""Rules of replicated blocks; `clusim.results.trace.reader` checks across columns."""

_FIRST = {
    "calls": _CALLS,
    "connections": "/schedule/connections/kind",
    "instances": "/schedule/instances/task",
    "prims": "/schedule/prims/op",
    "tasks": _TASKS,
    "templates": "/schedule/templates/mode",
}
"""Column of each table of the schedule that defines its number of rows."""
_BY_TABLE = {table: replace(_FREE, rows=rows) for table, rows in _FIRST.items()}

ATTRIBUTES: dict[str, Rule] = {
    "clusim_format": Rule(low=1, high=_INDEX_END),
    "complete": Rule(high=2),
    "cut": Rule(high=2),
    "time_ps": _TIME,
    "wall_s": Rule("float"),
    "error_bound": Rule("float"),
    "launch_ps": _TIME,
    "host_ps": _TIME,
    "edge_ps": _TIME,
    "iterations": Rule(high=_INDEX_END),
    "model_us": Rule("float"),
    "seed": Rule(high=1 << 64),
    "burst_packets": Rule(high=_INDEX_END),
    "call_size_bytes": Rule(),
    "call_ranks": Rule(low=1, high=_INDEX_END),
    "call_channels": Rule(high=1 << 16),
    "call_root": Rule(low=-1, high=_INDEX_END),
    "call_protocol": Rule("text", words=PROTOCOL_NAMES),
    "command": replace(_TEXT, free=True),
}
"""Rules of attributes other than plain text."""


def rule_of(name: str, columns: Container[str]) -> Rule:
    """Return the rule of a column; `columns` are the columns of the trace."""
    if name in RULES:
        return RULES[name]
    table = name.removeprefix("/schedule/").partition("/")[0]
    if not name.startswith("/schedule/") or table not in _FIRST:
        return _FREE
    rows = _FIRST[table]
    if name.endswith("_off"):
        return Rule(rows=rows, extra=1, ascending=True, ends=name.removesuffix("_off"))
    if f"{name}_off" in columns:
        return _FREE
    return _BY_TABLE[table]


Array = NDArray[Any]

_KINDS = {"int": "iu", "float": "f", "text": "S", "": "iufSV"}
_NAMES = {"int": "whole numbers", "float": "numbers", "text": "texts", "": "values"}
_TEXT_BYTES = 1 << 16
"""Longest attribute [bytes]."""


def length(file: Opened, name: str) -> int:
    """Return the number of rows of a column; raises `TraceError` if it is missing."""
    shape = file.shape(name)
    if not shape:
        raise TraceError(f"{file.filename}: {name}: a single value; must be a column")
    return int(shape[0])


def read(
    file: Opened, name: str, low: int = 0, high: int | None = None, *, bins: int | None = None
) -> Array:
    """Return a column, or its rows from `low` to `high`; for a history the first `bins` bins.

    Raises
    ------
    TraceError
        The column is missing, or violates its rule.
    """
    rows = length(file, name)
    rule = rule_of(name, file)
    where = f"{file.filename}: {name}"
    _check_form(file, name, rule, where, bins)
    end = rows if high is None else min(high, rows)
    if bins is not None:
        values = np.asarray(file[name][low:end, :bins])
    else:
        values = file.values(name) if (low, end) == (0, rows) else np.asarray(file[name][low:end])
    if values.dtype.kind == "S":
        _check_texts(values, rule, where)
    elif values.dtype.kind != "V":
        _check_numbers(values, rule, length(file, rule.into) if rule.into else rule.high, where)
        values = _usual(values, rule)
    if rule.ends:
        _check_division(values, length(file, rule.ends), where)
    return values


def read_texts(file: Opened, name: str) -> list[str]:
    """Return a column of texts; raises `TraceError` like `read`."""
    values = read(file, name)
    if values.dtype.kind != "S":
        raise TraceError(f"{file.filename}: {name}: values of type {values.dtype}; must be texts")
    return [value.decode() for value in values.tolist()]


def attribute(file: Opened, group: str, name: str, default: Any = None) -> Any:
    """Return an attribute as int, float or str; `default`, if given, replaces a missing one."""
    where = f"{file.filename}: {group}: attribute {name}"
    held = file.attribute(group, name)
    if held is None:
        if default is None:
            raise TraceError(f"{where} is missing; is the file complete?")
        return default
    dtype = dtype_of(held.get_type())
    if dtype.kind not in "iufSb" or held.shape != () or dtype.itemsize > _TEXT_BYTES:
        raise TraceError(f"{where}: must be one number or one text")
    value, rule = np.empty((), dtype), ATTRIBUTES.get(name, Rule("text"))
    held.read(value)
    if value.dtype.kind == "b":
        value = value.astype(np.int8)
    if value.dtype.kind not in _KINDS[rule.kind]:
        raise TraceError(f"{where}: of type {value.dtype}; must be one of {_NAMES[rule.kind]}")
    if rule.kind == "text":
        _check_texts(value.reshape(1), rule, where)
        return bytes(value.item()).decode()
    _check_numbers(value.reshape(1), rule, rule.high, where)
    return value.item()


def _check_form(file: Opened, name: str, rule: Rule, where: str, bins: int | None) -> None:
    """Check type, unit and shape of a column before it is read."""
    shape, dtype = file.shape(name), file.dtype(name)
    if dtype.kind not in _KINDS[rule.kind]:
        raise TraceError(f"{where}: values of type {dtype}; must be {_NAMES[rule.kind]}")
    unit = UNITS.get(name, ("", ""))[0]
    given = attribute(file, name, "units", "") if unit not in ("", "1") else unit
    if given not in ("", "1", unit):
        raise TraceError(f"{where}: in {given!r}; must be in {unit!r}")
    wanted = 1 if bins is None else 2
    if len(shape) != wanted or (bins is not None and shape[1] < bins):
        given = " x ".join(map(str, shape))
        raise TraceError(f"{where}: {given} values; must be a column{' of bins' * (wanted - 1)}")
    if rule.rows:
        expected = length(file, rule.rows) + rule.extra
        if shape[0] != expected:
            raise TraceError(f"{where}: {shape[0]} rows; must be {expected}, by {rule.rows}")


def _usual(values: Array, rule: Rule) -> Array:
    """Return integers in a type that is safe for arithmetic; files may have narrow types."""
    usual = values.dtype.isnative and values.dtype in (np.int64, np.int32, np.uint32)
    if values.dtype.kind not in "iu" or usual or rule.high > 1 << 63:
        return values
    return values.astype(np.int64)


def _check_numbers(values: Array, rule: Rule, high: int, where: str) -> None:
    """Check that numbers are in their range, and in order."""
    if not values.size:
        return
    if values.dtype.kind == "f" and not np.isfinite(values).all():
        raise TraceError(f"{where}: not a number; must be {rule.low} to {high - 1}")
    kept = values if rule.absent is None else values[values != rule.absent]
    if kept.size and not (rule.low <= kept.min() and kept.max() < high):
        wrong = kept.min() if kept.min() < rule.low else kept.max()
        raise TraceError(f"{where}: a value of {wrong}; must be {rule.low} to {high - 1}")
    if rule.ascending and (values[1:] < values[:-1]).any():
        raise TraceError(f"{where}: a value below the one before it; must ascend")


def _check_texts(values: Array, rule: Rule, where: str) -> None:
    """Check that texts are such as a trace has."""
    if not values.size:
        return
    if not rule.free:
        letters = np.ascontiguousarray(values).view(np.uint8)
        if ((letters < 32) & (letters != 0)).any() or (letters == 127).any():
            raise TraceError(f"{where}: a text with control characters; must be without")
    if rule.words:
        unknown = set(values.tolist()) - {word.encode() for word in rule.words}
        if unknown:
            raise TraceError(f"{where}: {min(unknown)!r}; must be one of {', '.join(rule.words)}")
    else:
        try:
            for value in values.tolist():
                value.decode()
        except UnicodeDecodeError:
            raise TraceError(f"{where}: a text that is not UTF-8") from None


def _check_division(values: Array, total: int, where: str) -> None:
    """Check that offsets divide a column of `total` rows."""
    if not len(values) or values[0] != 0 or values[-1] != total:
        raise TraceError(f"{where}: offsets that are not from 0 to {total}")
