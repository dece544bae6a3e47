"""Legal ranges of all numbers of an image, in one place.

`RANGES` has every number of an image, with its lowest and highest legal value; `ROWS` the number of rows of
its tables. The C engine's check loops over a copy of both (`csrc/ranges.h`, written by
`csrc/bindings/write_ranges.py`); `first_illegal` is the same check over NumPy columns. Inside the ranges no
sum or product of one step of an engine leaves its type, given the checks across several fields
(`csrc/model_check_sizes.c`, `model_check_bounds.c`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

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

OFFSETS = {"group_off": "group_wires", "path_off": "path_wires", "mgroup_off": "mgroup_members"}
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


def _kinds(kinds: type[IntEnum]) -> Range:
    return Range(0, max(kinds), f"one of {kinds.__name__}")


def _index(table: str) -> Range:
    return Range(0, NONE - 1, f"a row of {table}", table)


def _maybe(table: str) -> Range:
    return Range(0, NONE - 1, f"a row of {table}, or NONE", table, none=True)


def _end(table: str) -> Range:
    return Range(0, NONE - 1, f"begins or ends a range of {table}", table, end=True)


_COST = Range(0, 1 << 38, "a quarter of a second; times slow_1024 fits in 63 bits")
_LATENCY = Range(1, LATENCY_END_PS - 1, "without delay, an effect could precede its cause")
_DELAY = Range(0, LATENCY_END_PS - 1, "added to a time")
_DURATION = Range(0, DURATION_END_PS - 1, "a time of a run plus this fits in 63 bits")
_BUFFER = Range(0, (1 << 40) - 1, "a terabyte holds all data in flight")
_RATE = Range(1, (1 << 30) - 1, "bytes times a term of a rate fit in 62 bits")
_FLOW_RATE = Range(0, (1 << 40) - 1, "a rate of 2^40 bytes per 2^30 ps is a petabyte a second")
_FLAG = Range(0, 1, "a flag")
_ANY = Range(0, ANY32, "anything")
_ANY16 = Range(0, 0xFFFF, "anything")
_SMS = Range(0, 1 << 20, "the sum over 256 CTA slots fits in 32 bits")
_CHARGE = Range(0, 1 << 16, "bytes of memory per byte of payload, times 256")
_PACKET = Range(0, 1 << 28, "bytes of a packet or burst; also bounds their product")
_CHUNK = Range(-(1 << 24), 1 << 24, "products of two chunks and a repeat fit in 63 bits")
_PLACE = Range(0, (1 << 63) - 1, "the end of all chunks is checked to be below 2^62")
_SIZE = Range(0, MOST_BYTES, "a size in bytes times its expansion fits in 64 bits")

RANGES: dict[str, dict[str, Range]] = {
    "op_flags": {"": Range(0, sum(abi.Op), "flags of an opcode")},
    "nodes": {
        "latency_ps": _LATENCY,
        "route_lo": _end("routes"),
        "wide_lo": _end("routes"),
        "kind": _kinds(abi.NodeKind),
        "flags": Range(0, sum(abi.NodeFlag), "flags"),
        "endpoint": _maybe("endpoints"),
        "unit": _maybe("units"),
        "zone": _ANY,
        "wide_stride": _FLAG,
    },
    "endpoints": {
        "write_latency_ps": _LATENCY,
        "read_latency_ps": _LATENCY,
        "response_latency_ps": _LATENCY,
        "mem_quantum_ps": Range(1, (1 << 40) - 1, "an epoch of a second is too long"),
        "node": _index("nodes"),
        "sms": Range(1, 1 << 20, "as those of instances"),
        "cta_slots": Range(1, 256, "four words of bits"),
        "slow_1024": Range(16, 1 << 24, "64 times faster; times a fixed cost fits in 63 bits"),
        "mem_cost16": Range(1, ANY32, "memory takes some time"),
        "deliver_256": _CHARGE,
        "read_256": _CHARGE,
        "inject_256": _CHARGE,
    },
    "formats": {
        "flit_bytes": Range(1, 1 << 16, "divides"),
        "pad": _ANY,
        "header_bytes": Range(1, 1 << 16, "a packet lasts some time"),
        "control_256": Range(0, 1 << 24, "65,536 bytes owed per packet"),
        "service_1024": Range(1, 1 << 16, "64 times slower"),
        "limit_bytes": Range(1, ANY32, "divides; NONE is unlimited"),
    },
    "wires": {
        "rate_num": _RATE,
        "rate_den": _RATE,
        "latency_ps": _LATENCY,
        "buffer_bytes": Range(1, (1 << 40) - 1, "sums of credit fit in 63 bits"),
        "replay_ps": _DELAY,
        "xoff_bytes": _BUFFER,
        "xon_bytes": _BUFFER,
        "ecn_min_bytes": _BUFFER,
        "ecn_max_bytes": _BUFFER,
        "src": _index("nodes"),
        "dst": _index("nodes"),
        "reverse": _maybe("wires"),
        "format": _index("formats"),
        "ordinal": _ANY,
        "error_threshold": _ANY,
        "dim": _ANY16,
        "dateline": _FLAG,
        "ecn_threshold": _ANY,
    },
    "targets": {"node": _index("nodes"), "zone": _ANY, "local": _ANY, "wide": _ANY},
    "routes": {"": _maybe("groups")},
    "group_off": {"": _end("group_wires")},
    "group_wires": {"": _index("wires")},
    "path_off": {"": _end("path_wires")},
    "path_wires": {"": _index("wires")},
    "units": {
        "latency_ps": _LATENCY,
        "capacity_bytes": Range(0, 1 << 62, "bytes in use are added to a packet"),
        "node": _index("nodes"),
        "cost16": _ANY,
    },
    "mgroup_off": {"": _end("mgroup_members")},
    "mgroup_members": {"": _index("endpoints")},
    "vertices": {
        "parent": _maybe("vertices"),
        "unit": _maybe("units"),
        "endpoint": _maybe("endpoints"),
        "path_up": _maybe("paths"),
        "path_down": _maybe("paths"),
        "child_lo": _end("vertices"),
        "child_hi": _end("vertices"),
        "slots": Range(0, 1 << 20, "each takes memory"),
    },
    "controls": {
        "alpha_timer_ps": _LATENCY,
        "increase_timer_ps": _LATENCY,
        "cnp_interval_ps": _DELAY,
        "cnp_delay_ps": _DELAY,
        "byte_counter": Range(1, MOST_BYTES, "divides"),
        "line_rate": Range(1, (1 << 40) - 1, "divides"),
        "min_rate": Range(1, (1 << 40) - 1, "divides"),
        "additive": _FLOW_RATE,
        "hyper": _FLOW_RATE,
        "g_65536": Range(0, 1 << 16, "a weight of at most 1"),
        "fast_recovery": Range(0, NONE - 1, "a count"),
    },
    "spreads": {
        "gap_ps": _DELAY,
        "nak_ps": _LATENCY,
        "reorder_bytes": _SIZE,
        "ordered": _FLAG,
        "estimate": _kinds(abi.Load),
        "detour_lo": _end("targets"),
        "detour_hi": _end("targets"),
        "detour_vcs": Range(0, 8, "of 8 virtual channels"),
        "bias_bytes": _ANY,
        "minimal_vc": _index("vcs"),
        "pad": _ANY,
    },
    "queue_keys": {"": _ANY},
    "conns": {
        "tail_ps": _DELAY,
        "head_ps": _DELAY,
        "src": _index("endpoints"),
        "dst": _index("endpoints"),
        "kind": _kinds(abi.ConnKind),
        "policy": _kinds(abi.Policy),
        "first_group": _maybe("groups"),
        "path": _maybe("paths"),
        "path_back": _maybe("paths"),
        "key": _ANY,
        "mgroup": _maybe("mgroups"),
        "packet_bytes": _PACKET,
        "burst": _PACKET,
        "vc": _index("vcs"),
        "vc_response": _index("vcs"),
        "slots": Range(1, 64, "a ring of 64"),
        "expand_120": Range(120, 12000, "up to 100 bytes on the wire per byte"),
        "window_bytes": _ANY,
        "via_first": _maybe("targets"),
        "via_last": _maybe("targets"),
        "stage": _maybe("endpoints"),
        "control": _maybe("controls"),
        "vertex": _maybe("vertices"),
        "queue_lo": _end("queue_keys"),
        "queue_hi": _end("queue_keys"),
        "split": _FLAG,
        "spread": _maybe("spreads"),
        "pad": _ANY,
    },
    "costs": {
        "fixed_ps": _COST,
        "after_ps": _COST,
        "op_cost16": _ANY,
    },
    "prims": {
        "opcode": _index("op_flags"),
        "recv": _ANY,
        "send": _ANY,
        "flags": Range(0, sum(abi.PrimFlag), "flags"),
        "base": _CHUNK,
        "coef": _CHUNK,
        "step": _CHUNK,
        "repeat": Range(0, 1 << 24, "times a step fits in 63 bits"),
    },
    "templates": {
        "prim_lo": _index("prims"),
        "prim_hi": _end("prims"),
        "nchunks": Range(1, 1 << 24, "times chunk_bytes fits in 64 bits"),
        "mode": _kinds(abi.Mode),
    },
    "instances": {
        "start_ps": _DURATION,
        "offset": _PLACE,
        "length": _SIZE,
        "chunk_bytes": Range(1, (1 << 40) - 1, "times nchunks fits in 64 bits"),
        "stride": _PLACE,
        "limit": _PLACE,
        "slice_min": _SIZE,
        "task": _index("tasks"),
        "endpoint": _index("endpoints"),
        "template": _index("templates"),
        "rotation": _CHUNK,
        "conn_off": _end("inst_conns"),
        "align": Range(1, ANY32, "divides"),
        "slices": Range(1, 1 << 16, "a piece is cut into no more"),
        "slots_per_slice": Range(1, 64, "of 64 slots"),
        "cost": _index("costs"),
        "sm": _SMS,
        "thread": _maybe("endpoints"),
        "pad": _ANY,
    },
    "inst_conns": {"": _index("conns")},
    "tasks": {
        "delay_ps": _DURATION,
        "compute_ps": _DURATION,
        "mem_bytes": Range(0, 1 << 62, "times an epoch fits in 128 bits"),
        "kind": _kinds(abi.TaskKind),
        "endpoint": _index("endpoints"),
        "sms": _SMS,
        "num_deps": _ANY,
        "inst_lo": _end("instances"),
        "inst_hi": _end("instances"),
        "succ_lo": _end("succ"),
        "succ_hi": _end("succ"),
    },
    "succ": {"": _index("tasks")},
    "sources": {
        "endpoint": _index("endpoints"),
        "msg_lo": _end("messages"),
        "msg_hi": _end("messages"),
        "packet_bytes": Range(1, 1 << 28, "divides"),
        "burst": Range(1, 1 << 28, "divides"),
        "policy": _kinds(abi.Policy),
        "vc": _index("vcs"),
        "flags": Range(0, sum(abi.SourceFlag), "flags"),
        "control": _maybe("controls"),
        "spread": _maybe("spreads"),
    },
    "messages": {
        "start_ps": _DURATION,
        "bytes": Range(1, MOST_BYTES, "a message has some"),
        "dst": _index("endpoints"),
        "key": _ANY,
        "via_first": _maybe("targets"),
        "via_last": _maybe("targets"),
    },
    "faults": {
        "time_ps": _DURATION,
        "num": Range(0, (1 << 30) - 1, "a term of a rate, or a factor"),
        "den": Range(0, (1 << 30) - 1, "a term of a rate"),
        "kind": _kinds(abi.FaultKind),
        "index": _ANY,
    },
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


def _offsets_illegal(name: str, off: NDArray[Any], cut: str, total: int) -> Iterator[str]:
    if off[0] != 0:
        yield f"{name}[0]: {off[0]}; must be 0"
    falls = np.flatnonzero(off[1:] <= off[:-1])
    if len(falls):
        row = int(falls[0]) + 1
        yield f"{name}[{row}]: {off[row]}; must be greater than {off[row - 1]} before it"
    if off[-1] != total:
        yield f"{name}[{len(off) - 1}]: {off[-1]}; must be {total}, the length of {cut}"


def _field_illegal(
    name: str, field: str, table: NDArray[Any], legal: Range, sizes: Mapping[str, int]
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
    yield f"{where}: {value}; must be {legal.lo} to {hi}" + (" or NONE" if legal.none else "")
