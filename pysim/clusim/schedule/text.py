"""A schedule as text that a person can read and diff.

One object per line: its word and number, then ``key=value`` for everything that is not the default;
primitives are indented under their template.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import MISSING, fields
from typing import Any

from clusim.schedule.ir import Schedule

_HEADER = "clusim-schedule 1"
_TABLES = {
    "call": "calls",
    "connection": "connections",
    "instance": "instances",
    "task": "tasks",
}
_PLAIN = re.compile(r"[A-Za-z_][\w./+-]*")


def _show(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, tuple):
        return _show_list(value)
    if isinstance(value, str) and not _PLAIN.fullmatch(value):
        return json.dumps(value)
    return str(value)


def _show_list(values: Sequence[Any]) -> str:
    """Write integers with runs as ``a-b``; strings as a JSON list in quotes if needed."""
    if any(isinstance(value, str) for value in values):
        return json.dumps(json.dumps(list(values), separators=(",", ":")))
    parts: list[str] = []
    start = 0
    while start < len(values):
        end = start
        while end + 1 < len(values) and values[end + 1] == values[end] + 1:
            end += 1
        parts.append(
            f"{values[start]}-{values[end]}"
            if end > start + 1
            else str(values[start])
        )
        start = end + 1 if end > start + 1 else start + 1
    return ",".join(parts)


def _pairs(item: Any, skip: Iterable[str] = ()) -> str:
    texts = []
    for spec in fields(item):
        value = getattr(item, spec.name)
        if spec.name not in skip and (
            spec.default is MISSING or value != spec.default
        ):
            texts.append(f"{spec.name}={_show(value)}")
    return " ".join(texts)


def to_text(schedule: Schedule) -> str:
    """Return the text form of a schedule."""
    lines = [
        _HEADER,
        f"name={json.dumps(schedule.name)} num_ranks={schedule.num_ranks}",
        "",
    ]
    for index, template in enumerate(schedule.templates):
        lines.append(f"template {index} {_pairs(template, ('prims',))}")
        for prim in template.prims:
            lines.append(f"    {prim.op} {_pairs(prim, ('op',))}".rstrip())
    for word, table in _TABLES.items():
        lines.append("")
        lines += [
            f"{word} {index} {_pairs(item)}"
            for index, item in enumerate(getattr(schedule, table))
        ]
    return "\n".join(lines) + "\n"
