"""A schedule as text that a person can read and diff, and back.

One object per line: its word and number, then ``key=value`` for everything that is not the default;
primitives are indented under their template. ``#`` starts a comment.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import MISSING, fields
from typing import Any

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

_HEADER = "clusim-schedule 1"
_KINDS: dict[str, type[Any]] = {
    "call": CollectiveCall,
    "connection": Connection,
    "instance": Instance,
    "task": Task,
}
_TABLES = {
    "call": "calls",
    "connection": "connections",
    "instance": "instances",
    "task": "tasks",
}
_PLAIN = re.compile(r"[A-Za-z_][\w./+-]*")
_TOKEN = re.compile(r'(?<!\w)(\w+)=("(?:[^"\\]|\\.)*"|\S*)')


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


def _ints(text: str) -> tuple[int, ...]:
    values: list[int] = []
    for part in filter(None, text.split(",")):
        match = re.fullmatch(r"(-?\d+)-(-?\d+)", part)
        values += range(int(match[1]), int(match[2]) + 1) if match else [int(part)]
    return tuple(values)


def _read(text: str, kind: str) -> Any:
    """Return the value of a field whose annotation is `kind`."""
    if kind == "bool":
        return {"yes": True, "no": False}[text]
    if kind.startswith("tuple[int"):
        return _ints(text)
    if kind.startswith("tuple[str"):
        return tuple(json.loads(json.loads(text))) if text else ()
    if kind.startswith("int"):
        return int(text)
    if kind == "float":
        return float(text)
    return json.loads(text) if text.startswith('"') else text


def _fields(text: str, kind: type[Any]) -> dict[str, Any]:
    kinds = {spec.name: str(spec.type) for spec in fields(kind)}
    values = {}
    if _TOKEN.sub("", text).strip():
        raise ValueError(
            f"cannot read {_TOKEN.sub('', text).strip()!r}; expected key=value"
        )
    for name, value in _TOKEN.findall(text):
        if name not in kinds:
            raise ValueError(f"unknown key {name!r}; use one of {', '.join(kinds)}")
        values[name] = _read(value, kinds[name])
    return values


class _Reader:
    """Collects the objects of a text, line by line."""

    def __init__(self) -> None:
        self.head: dict[str, Any] = {}
        self.tables: dict[str, list[Any]] = {word: [] for word in _KINDS}
        self.templates: list[tuple[dict[str, Any], list[Prim]]] = []

    def line(self, text: str) -> None:
        """Read one line that is not empty."""
        if text.startswith(" "):
            op, _, arguments = text.strip().partition(" ")
            self.templates[-1][1].append(Prim(op, **_fields(arguments, Prim)))
            return
        word, _, arguments = text.partition(" ")
        if word.startswith("name="):
            self.head = _fields(text, Schedule)
            return
        number, _, arguments = arguments.partition(" ")
        target_table = (
            self.templates if word == "template" else self.tables.get(word)
        )
        if target_table is None:
            raise ValueError(
                f"unknown word {word!r}; expected template, {', '.join(_KINDS)}"
            )
        if number != str(len(target_table)):
            raise ValueError(
                f"{word} {number}: out of order; expected number {len(target_table)}"
            )
        if word == "template":
            self.templates.append((_fields(arguments, Template), []))
        else:
            self.tables[word].append(
                _KINDS[word](**_fields(arguments, _KINDS[word]))
            )

    def schedule(self) -> Schedule:
        """Return the schedule that was read."""
        templates = tuple(
            Template(**{**values, "prims": tuple(prims)})
            for values, prims in self.templates
        )
        values: dict[str, Any] = dict(self.head)
        values |= {_TABLES[word]: tuple(rows) for word, rows in self.tables.items()}
        return Schedule(templates=templates, **values)


def from_text(text: str) -> Schedule:
    """Return the schedule written in `text`; raises `ScheduleError` with the line that cannot be read."""
    reader = _Reader()
    lines = text.splitlines()
    if not lines or lines[0].strip() != _HEADER:
        raise ScheduleError(f"schedule text: line 1: expected {_HEADER!r}")
    for number, line in enumerate(lines[1:], 2):
        body = line.rstrip()
        if not body or body.lstrip().startswith("#"):
            continue
        try:
            reader.line(body)
        except (ValueError, KeyError, TypeError, IndexError, ScheduleError) as error:
            raise ScheduleError(f"schedule text: line {number}: {error}") from error
    try:
        return reader.schedule()
    except TypeError as error:
        raise ScheduleError(f"schedule text: {error}") from error
