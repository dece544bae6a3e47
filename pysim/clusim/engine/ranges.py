"""Legal ranges of all numbers of an image, in one place.

`RANGES` has the lowest and highest legal value of every number of an image, from ``ranges.yaml``; `ROWS` the number
of rows of its tables. The C engine's check loops over a copy of both (`csrc/ranges.h`, written by
`csrc/bindings/write_ranges.py`); `first_illegal` is the same check over NumPy columns. Inside the ranges no
sum or product of one step of an engine leaves its type, given the checks across several fields
(`csrc/model_check_sizes.c`, `model_check_bounds.c`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clusim.base.datafiles import read
from clusim.base.records import dataclass
from clusim.engine import abi
from clusim.engine.abi import NONE

TIME_END_PS = 1 << 62
"""Exclusive limit of simulated time [ps]: 53 days. A run that reaches it is refused."""

DURATION_END_PS = 1 << 61
"""Every duration and start in an image is below this [ps]."""

LATENCY_END_PS = 1 << 56
"""Exclusive limit of a latency or timer [ps], 20 hours: packets add several to a time."""

PACKETS_END = 1 << 32
"""A transfer has fewer packets (or bursts) than this."""

WIRE_BYTES_END = 1 << 29
"""A packet (or burst) has fewer bytes than this on any wire, headers included."""

OFFSET_END_BYTES = 1 << 62
"""Every place of a chunk in a buffer is below this [bytes]."""

SLICES_END = 1 << 32
"""An instance has fewer slices than this."""

OWED_256_END = 1 << 62
"""Exclusive limit of control bytes owed by a wire [1/256 byte].

A run that reaches it is refused.
"""

MEM_BYTES_256_END = 1 << 64
"""Exclusive limit of a memory's communication bytes [1/256 byte].

A run that reaches it is refused.
"""

ANY32 = 0xFFFFFFFF
MOST_BYTES = 1 << 52
"""Largest message, length or offset [bytes]: 4 PiB."""


def packets_refused(size_bytes: int, packet_bytes: int) -> str:
    """Return the error of a transfer with too many packets; empty if it is legal."""
    packets = -(-size_bytes // packet_bytes)
    if packets < PACKETS_END:
        return ""
    return f"{packets} packets; at most 2^32-1: larger packets or bursts"


TABLES = tuple(abi.TABLES)
"""The tables in the order of their checks; ``op_flags`` belongs to the engine."""

OFFSETS = {
    "group_off": "group_wires",
    "path_off": "path_wires",
    "mgroup_off": "mgroup_members",
}
"""Tables of offsets, ascending strictly from 0 to the length of the table that they cut."""


@dataclass(frozen=True, slots=True)
class Range:
    """Legal range of one field.

    Attributes
    ----------
    lo, hi : int
        Lowest and highest value. For an index `hi` is only the highest that any image may have.
    why : str
        Reason of the bounds.
    into : str
        The table that an index points into; empty for a number.
    none : bool
        True if `NONE` is legal in addition.
    end : bool
        True if the index may also be the table's length, as the end of a range of its rows.
    """

    lo: int
    hi: int
    why: str
    into: str = ""
    none: bool = False
    end: bool = False


_NAMED = {
    "cost": Range(
        0, 1 << 38, "a quarter of a second; times slow_1024 fits in 63 bits"
    ),
    "latency": Range(
        1, LATENCY_END_PS - 1, "without delay, an effect could precede its cause"
    ),
    "delay": Range(0, LATENCY_END_PS - 1, "added to a time"),
    "duration": Range(
        0, DURATION_END_PS - 1, "a time of a run plus this fits in 63 bits"
    ),
    "buffer": Range(0, (1 << 40) - 1, "a terabyte holds all data in flight"),
    "rate": Range(1, (1 << 30) - 1, "bytes times a term of a rate fit in 62 bits"),
    "flow rate": Range(
        0, (1 << 40) - 1, "a rate of 2^40 bytes per 2^30 ps is a petabyte a second"
    ),
    "flag": Range(0, 1, "a flag"),
    "any": Range(0, ANY32, "anything"),
    "any16": Range(0, 0xFFFF, "anything"),
    "sms": Range(0, 1 << 20, "the sum over 256 CTA slots fits in 32 bits"),
    "charge": Range(0, 1 << 16, "bytes of memory per byte of payload, times 256"),
    "packet": Range(
        0, 1 << 28, "bytes of a packet or burst; also bounds their product"
    ),
    "chunk": Range(
        -(1 << 24), 1 << 24, "products of two chunks and a repeat fit in 63 bits"
    ),
    "place": Range(
        0, (1 << 63) - 1, "the end of all chunks is checked to be below 2^62"
    ),
    "size": Range(
        0, MOST_BYTES, "a size in bytes times its expansion fits in 64 bits"
    ),
}
_INDEX = re.compile(r"(row of|end in) (\w+)( or NONE)?")


def _number(text: int | str) -> int:
    """Return an integer, ``2^20`` or ``2^20-1``."""
    power, _, less = str(text).partition("^")[2].partition("-")
    return (1 << int(power)) - int(less or 0) if power else int(text)


def _range(rule: Any) -> Range:
    """Return the range of a rule of the file."""
    if isinstance(rule, list):
        low, high, why = rule
        return Range(_number(low), _number(high), why)
    if match := _INDEX.fullmatch(rule):
        end = match[1] == "end in"
        return Range(0, NONE - 1, rule, match[2], none=match[3] is not None, end=end)
    name = rule.removeprefix("bits of ")
    if name in _NAMED:
        return _NAMED[name]
    kinds = getattr(abi, name)
    return Range(0, max(kinds) if name == rule else sum(kinds), rule)


RANGES: dict[str, dict[str, Range]] = {
    table: {field: _range(rule) for field, rule in rules.items()}
    for table, rules in read(Path(__file__).with_name("ranges.yaml")).items()
}
"""Range of every field of every table; the field of a table of plain numbers is called ''."""

_EVENT_NUMBERS = (1 << 24) - 1  # the subject of an event has 25 bits
ROWS = {name: (0, NONE - 1) for name in TABLES} | {
    "op_flags": (0, abi.OPCODE_SLOTS),
    "nodes": (0, _EVENT_NUMBERS),
    "wires": (0, _EVENT_NUMBERS),
    "units": (0, _EVENT_NUMBERS),
    "faults": (0, _EVENT_NUMBERS),
    "conns": (0, (1 << 31) - 1),  # with the sources they number flows
    "sources": (0, (1 << 31) - 1),
    **{name: (1, NONE - 1) for name in OFFSETS},
}
"""Least and most rows of a table: ids have 32 bits, and the last value is NONE."""

NVC = (1, 8)
"""Least and most virtual channels."""

Columns = Mapping[str, NDArray[Any]]


def lengths(tables: Columns, nvc: int) -> dict[str, int]:
    """Return the number of rows of everything that indices point into."""
    rows = {name: len(table) for name, table in tables.items()}
    parts = {name.removesuffix("_off") + "s": rows[name] - 1 for name in OFFSETS}
    return rows | parts | {"vcs": nvc}


def first_illegal(tables: Columns, nvc: int) -> str | None:
    """Return one line on the first number of an image outside its range, or None.

    Parameters
    ----------
    tables : mapping of str to ndarray
        All of `TABLES`, structured as in ``clusim.engine.abi.TABLES``.
    nvc : int
        Virtual channels.
    """
    return next(_illegal(tables, nvc), None)


def _illegal(tables: Columns, nvc: int) -> Iterator[str]:
    if not NVC[0] <= nvc <= NVC[1]:
        yield f"nvc: {nvc}; must be {NVC[0]} to {NVC[1]}"
    for name in TABLES:
        lo, hi = ROWS[name]
        if not lo <= len(tables[name]) <= hi:
            yield f"{name}: {len(tables[name])} rows; must be {lo} to {hi}"
    for name, cut in OFFSETS.items():
        yield from _offsets_illegal(name, tables[name], cut, len(tables[cut]))
    sizes = lengths(tables, nvc)
    for name in TABLES:
        for field, legal in RANGES[name].items():
            yield from _field_illegal(name, field, tables[name], legal, sizes)


def _offsets_illegal(
    name: str, off: NDArray[Any], cut: str, total: int
) -> Iterator[str]:
    if off[0] != 0:
        yield f"{name}[0]: {off[0]}; must be 0"
    falls = np.flatnonzero(off[1:] <= off[:-1])
    if len(falls):
        row = int(falls[0]) + 1
        yield f"{name}[{row}]: {off[row]}; must be greater than {off[row - 1]} before it"
    if off[-1] != total:
        yield f"{name}[{len(off) - 1}]: {off[-1]}; must be {total}, the length of {cut}"


def _field_illegal(
    name: str,
    field: str,
    table: NDArray[Any],
    legal: Range,
    sizes: Mapping[str, int],
) -> Iterator[str]:
    column = table[field] if field else table
    if not len(column):
        return
    hi = legal.hi
    if legal.into:
        hi = min(hi, sizes[legal.into] - (not legal.end))
    wrong = np.full(column.shape, hi < legal.lo)
    if hi >= legal.lo:
        wrong = (column < legal.lo) | (column > hi)
    if legal.none:
        wrong &= column != NONE
    rows = np.flatnonzero(wrong.reshape(len(column), -1).any(axis=1))
    if not len(rows):
        return
    row = int(rows[0])
    value = int(np.atleast_1d(column[row])[np.atleast_1d(wrong[row])][0])
    where = f"{name}[{row}]" + (f".{field}" if field else "")
    if hi < legal.lo:
        yield f"{where}: {value}; there are no {legal.into}"
    yield f"{where}: {value}; must be {legal.lo} to {hi}" + (
        " or NONE" if legal.none else ""
    )
