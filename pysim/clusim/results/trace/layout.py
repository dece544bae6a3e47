"""Content of a trace: names, units, descriptions and legal values of its columns, for writer and reader.

``columns.csv`` has a row for each column, and for attributes with other content than plain text (``@name``). Columns
of the schedule without a row use the rule of their table; the engine's input, in /image, is checked by the
engine.

The format has a number, `FORMAT`, in the root's attribute ``clusim_format``. A reader accepts files of the same
number and older. New groups and datasets do not change the number; a change of meaning does.
"""

from __future__ import annotations

import csv
from collections.abc import Container, Mapping
from dataclasses import replace
from pathlib import Path

from clusim.base.records import dataclass
from clusim.base.terms.operations import PROTOCOL_NAMES

FORMAT = 2

CHUNK_BYTES = 4 << 20
"""Largest HDF5 chunk of a column; a reader holds one in memory [bytes]."""

AMOUNT_END = 1 << 62
"""Upper limit of counts, sizes and times: any two add up to at most 63 bits."""

IMAGE = "/image"
"""Group with the engine's input, array for array; `clusim.engine.image` has the layouts."""


@dataclass(frozen=True, slots=True)
class Rule:
    """Legal content of a column or attribute.

    Attributes
    ----------
    kind : str
        ``int``; ``ascending``, integers, no value less than the previous; ``offsets``, which divide the
        rows of the column `into` among the rows of `rows`, and have one row more; ``float``; ``text`` without control
        characters; ``verbatim``, text with any characters; ``any`` of these.
    rows : str
        Column with the same number of rows; empty for any number.
    low, high : int
        Values are at least `low` and below `high`.
    into : str
        Column whose rows the values index; then `high` is its number of rows.
    absent : int or None
        Additional legal value.
    words : tuple of str
        The only legal texts; empty for any text.
    units, description : str
        Attributes of the column; empty for columns that are described by their names.
    """

    kind: str = "text"
    rows: str = ""
    low: int = 0
    high: int = AMOUNT_END
    into: str = ""
    absent: int | None = None
    words: tuple[str, ...] = ()
    units: str = ""
    description: str = ""

    @classmethod
    def of_row(cls, row: Mapping[str, str]) -> Rule:
        """Return the rule in a row of the table."""
        words = (
            PROTOCOL_NAMES
            if row["words"] == "protocols"
            else tuple(row["words"].split())
        )
        return cls(
            row["kind"],
            row["rows"],
            int(row["low"] or 0),
            int(row["high"] or AMOUNT_END),
            into=row["into"],
            absent=int(row["absent"]) if row["absent"] else None,
            words=words,
            units=row["units"],
            description=row["description"],
        )


def _rules() -> dict[str, Rule]:
    with (
        Path(__file__)
        .with_name("columns.csv")
        .open(encoding="utf-8", newline="") as table
    ):
        return {row["name"]: Rule.of_row(row) for row in csv.DictReader(table)}


RULES = _rules()
"""Rules of columns by name, and of attributes by ``@name``."""

LATER = frozenset(
    (
        *(
            f"/wires/total/{name}"
            for name in ("drops", "dropped_bytes", "trims", "trimmed_bytes")
        ),
        *(
            f"/order/{name}"
            for name in ("repeated_bytes", "timeouts", "timeout_ps", "trimmed")
        ),
    )
)
"""Counters that traces of earlier versions lack: nothing was counted."""

WIRE_TOTALS = [
    name.rpartition("/")[2] for name in RULES if name.startswith("/wires/total/")
]
"""Final counters of each wire."""

PRIMITIVES = {
    "time": ("time_ps", "<i8"),
    "gate": ("gate_ps", "<i8"),
    "instance": ("instance", "<u4"),
    "seq": ("seq", "<u4"),
    "wire": ("wire", "<u4"),
    "cause": ("cause", "|u1"),
}
"""Columns of /primitives: engine's field and type."""

META_NAMES = (
    "fabric",
    "engine",
    "granularity",
    "granularity_note",
    "burst_packets",
    "seed",
    "version",
    "command",
)
"""Fields of the provenance that are attributes of /meta; the texts are datasets."""

MESSAGES = ("source", "destination", "bytes", "start", "end", "flow")
"""Columns of /messages, in the order of the fields of `clusim.results.result.Messages`."""

FLOWS = {
    "flow": "names",
    "number": "numbers",
    "source": "source",
    "destination": "destination",
    "control": "control",
    "line_rate": "line_Bps",
}
"""Columns of /flows without histories, and the fields of `clusim.results.flows.Flows`."""

_ANY = Rule("any", low=-(1 << 63), high=1 << 63)
_FIRST = {
    "calls": "/schedule/calls/operation",
    "connections": "/schedule/connections/kind",
    "instances": "/schedule/instances/task",
    "prims": "/schedule/prims/op",
    "tasks": "/tasks/name",
    "templates": "/schedule/templates/mode",
}
"""Column of each table of the schedule that defines its number of rows."""


def rule_of(name: str, columns: Container[str]) -> Rule:
    """Return the rule of a column; `columns` are the columns of the trace."""
    if name in RULES:
        return RULES[name]
    rows = _FIRST.get(name.removeprefix("/schedule/").partition("/")[0], "")
    if not name.startswith("/schedule/") or not rows:
        return _ANY
    if name.endswith("_off"):
        return Rule("offsets", rows, into=name.removesuffix("_off"))
    return _ANY if f"{name}_off" in columns else replace(_ANY, rows=rows)


_SIZES = ("bytes", "offset", "length", "limit", "stride", "align", "slice_min")
"""Ends of the names of columns of /schedule that are sizes, or places in a buffer [bytes]."""


def about(name: str, is_text: bool = False) -> dict[str, str]:
    """Return a dataset's attributes: unit, description, and for texts xarray's encoding."""
    rule = RULES.get(name, _ANY)
    unit, text = rule.units, rule.description
    if name.startswith(f"{IMAGE}/"):
        text = "engine's input, as in clusim.engine.image"
    elif not text:
        *_, table, column = name.split("/")
        text = f"{column.replace('_', ' ')} of {table}"
        unit = (
            "ps"
            if column.endswith("_ps")
            else "B"
            if column.endswith(_SIZES)
            else "1"
        )
    return {"units": "" if is_text else unit, "long_name": text} | (
        {"_Encoding": "utf-8"} if is_text else {}
    )
