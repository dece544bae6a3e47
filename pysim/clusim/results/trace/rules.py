"""Rules of every column of a trace: kind, length, range of values, targets of indices.

Columns of the engine's input, in /image, are not here: their ranges are those of `clusim.engine.ranges`.
"""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass, replace

from clusim.base.terms.algorithms import PROTOCOL_NAMES
from clusim.engine.abi import NONE
from clusim.engine.ranges import TIME_END_PS
from clusim.results.bins import COLUMNS
from clusim.results.trace.layout import WIRE_TOTALS

AMOUNT_END = 1 << 62
"""Counts, sizes and times of counters are below this, so that two of them add up to a number of 63 bits."""


@dataclass(frozen=True, slots=True)
class Rule:
    """Legal content of a column.

    Attributes
    ----------
    kind : str
        ``int``, ``float`` or ``text``; empty for any of them.
    rows : str
        Column that has as many rows; empty for any number.
    low, high : int
        Its values are at least `low` and below `high`.
    into : str
        Column whose rows its values number; then `high` is the number of those rows.
    absent : int or None
        Value that is legal besides.
    words : tuple of str
        The only texts it may have; empty for any text without control characters.
    ascending : bool
        Whether no value is less than the one before it.
    extra : int
        Rows it has more than `rows`.
    ends : str
        Column whose length its last value is: it divides that column among the rows of `rows`.
    free : bool
        Whether its texts may have control characters.
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
"""Rules of columns by name; those of other columns of the schedule follow from their table."""
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
"""Rules of what pauses stand for; `clusim.results.trace.reader` checks what goes beyond single columns."""

_FIRST = {
    "calls": _CALLS,
    "connections": "/schedule/connections/kind",
    "instances": "/schedule/instances/task",
    "prims": "/schedule/prims/op",
    "tasks": _TASKS,
    "templates": "/schedule/templates/mode",
}
"""Column of each table of the schedule that says how many rows it has."""
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
"""Rules of attributes that are no plain text."""


def rule_of(name: str, columns: Container[str]) -> Rule:
    """Return the rule of a column; `columns` are those of the trace."""
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
