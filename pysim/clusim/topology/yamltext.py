"""YAML text as plain data plus the position of every key and value.

The loader follows YAML 1.2's core schema (``on`` and ``no`` are strings, ``1e-6`` is a number), rejects
duplicate keys, and uses the parser's event stream, so that depth and size are bounded before any data
are built.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import field
from typing import Any

import yaml

from clusim.base.errors import TopologyError
from clusim.base.records import dataclass

Path = tuple[str | int, ...]
Place = tuple[int, int]
"""Line and column, from 1."""

MAX_DEPTH = 32
MAX_NODES = 2_000_000
READ_AHEAD = 1_024
"""Longest simple key of YAML 1.2, in characters."""

_NULL = {"", "~", "null", "Null", "NULL"}
_BOOL = dict.fromkeys(("true", "True", "TRUE"), True) | dict.fromkeys(
    ("false", "False", "FALSE"), False
)
_INT = re.compile(r"[-+]?[0-9]{1,18}")
_BASED = re.compile(r"0o[0-7]{1,18}|0x[0-9a-fA-F]{1,15}")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]{1,3})?")
_SPECIAL = {".inf": float("inf"), "-.inf": -float("inf"), ".nan": float("nan")}

_Loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


@dataclass(slots=True)
class Document:
    """Data of a YAML text.

    Attributes
    ----------
    data : object
        dicts with string keys, lists, str, int, float, bool, None.
    keys, values : dict
        Position of the key and of the value at a path; the empty path is the document.
    problems : list
        Problems such as duplicate keys: position and message.
    """

    data: Any = None
    keys: dict[Path, Place] = field(default_factory=dict)
    values: dict[Path, Place] = field(default_factory=dict)
    problems: list[tuple[Place, str]] = field(default_factory=list)

    def place(self, path: Path, *, key: bool = False) -> Place:
        """Return the place of the value (or key) at `path`, or of its nearest ancestor."""
        table = self.keys if key else self.values
        while path:
            if path in table:
                return table[path]
            if path in self.values:
                return self.values[path]
            path = path[:-1]
        return self.values.get((), (1, 1))


class _Reader:
    """Recursive descent over the parser's events."""

    def __init__(self, events: Iterator[Any], where: str) -> None:
        self.events = events
        self.where = where
        self.out = Document()
        self.anchors: dict[str, tuple[Any, int]] = {}
        self.count = 0

    def fail(self, place: Place, message: str) -> TopologyError:
        return TopologyError(f"{self.where}:{place[0]}:{place[1]}: {message}")

    def document(self) -> Document:
        """Read the only document of the stream."""
        place = (1, 1)
        documents = 0
        for event in self.events:
            name = type(event).__name__
            place = _place(event)
            if name in ("StreamStartEvent", "StreamEndEvent", "DocumentEndEvent"):
                continue
            if name == "DocumentStartEvent":
                documents += 1
                if documents > 1:
                    raise self.fail(
                        place, "second document; a topology file holds one"
                    )
                continue
            self.out.data = self.value(event, (), 0)
        if not documents:
            raise self.fail(
                (1, 1), "empty file; must be a mapping with 'nodes' and 'links'"
            )
        return self.out

    def value(self, event: Any, path: Path, depth: int) -> Any:
        """Build the value that starts with `event`."""
        place = _place(event)
        name = type(event).__name__
        self.count += 1
        if depth > MAX_DEPTH:
            raise self.fail(
                place,
                f"nested deeper than {MAX_DEPTH} levels; a topology needs four",
            )
        if self.count > MAX_NODES:
            raise self.fail(
                place, f"more than {MAX_NODES} values; use ranges such as gpu0..7"
            )
        self.out.values[path] = place
        if name == "AliasEvent":
            if event.anchor not in self.anchors:
                raise self.fail(
                    place,
                    f"unknown alias *{event.anchor}; define it with &{event.anchor} before",
                )
            value, size = self.anchors[event.anchor]
            self.count += size
            if self.count > MAX_NODES:
                raise self.fail(place, f"aliases of more than {MAX_NODES} values")
            return value
        if event.tag is not None:
            raise self.fail(
                place, f"tag {event.tag} is not supported; write plain values"
            )
        result: Any
        before = self.count
        if name == "ScalarEvent":
            result = event.value if event.style else _scalar(event.value)
        elif name == "SequenceStartEvent":
            result = self.sequence(path, depth)
        else:
            result = self.mapping(path, depth)
        if event.anchor is not None:
            self.anchors[event.anchor] = result, 1 + self.count - before
        return result

    def sequence(self, path: Path, depth: int) -> list[Any]:
        """Build a list."""
        result: list[Any] = []
        for event in self.events:
            if type(event).__name__ == "SequenceEndEvent":
                break
            result.append(self.value(event, (*path, len(result)), depth + 1))
        return result

    def mapping(self, path: Path, depth: int) -> dict[str, Any]:
        """Build a dict; a repeated key is noted and its value dropped."""
        result: dict[str, Any] = {}
        for event in self.events:
            if type(event).__name__ == "MappingEndEvent":
                break
            place = _place(event)
            if type(event).__name__ != "ScalarEvent":
                raise self.fail(place, "a key must be a plain word")
            key = event.value
            below = (*path, key)
            if key in result:
                line = self.out.keys[below][0]
                self.out.problems.append(
                    (
                        place,
                        f"{_dotted_path(below)}: duplicate key; first given in line {line}",
                    )
                )
                self.value(next(self.events), (*path, key, "duplicate"), depth + 1)
                continue
            self.out.keys[below] = place
            result[key] = self.value(next(self.events), below, depth + 1)
        return result


def parse(text: str, where: str) -> Document:
    """Parse a YAML text; `where` is its name in errors."""
    try:
        return _Reader(yaml.parse(text, Loader=_Loader), where).document()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line, column = (mark.line + 1, mark.column + 1) if mark else (1, 1)
        _check_depth(text[: mark.index] if mark else text, where)
        problem = " ".join(part for part in (error.context, error.problem) if part)
        raise TopologyError(
            f"{where}:{line}:{column}: not valid YAML: {_tidy(problem)}"
        ) from None
    except yaml.YAMLError as error:
        raise TopologyError(
            f"{where}:1:1: not valid YAML: {_tidy(str(error))}"
        ) from None


def _check_depth(text: str, where: str) -> None:
    """Raise the error of a nesting that the C parser rejects before its first event.

    The C parser scans `READ_AHEAD` characters for a key before it reports a bracket, and since PyYAML 6.0.4
    it has a separate limit, so that its error would be first. The Python parser is without a limit.
    """
    tail = text[-READ_AHEAD:]
    if tail.count("[") + tail.count("{") > MAX_DEPTH:
        with suppress(yaml.YAMLError):
            _Reader(yaml.parse(text, Loader=yaml.SafeLoader), where).document()


def _dotted_path(path: Path) -> str:
    return ".".join(str(part) for part in path)


def _tidy(text: str) -> str:
    return " ".join(text.split())


def _place(event: Any) -> Place:
    return event.start_mark.line + 1, event.start_mark.column + 1


def _scalar(text: str) -> Any:
    """Resolve a plain scalar by YAML 1.2's core schema."""
    if text in _NULL:
        return None
    if text in _BOOL:
        return _BOOL[text]
    if _INT.fullmatch(text):
        return int(text)
    if _BASED.fullmatch(text):
        return int(text, 0)
    if len(text) < 64 and _FLOAT.fullmatch(text):
        return float(text)
    return _SPECIAL.get(text.lower(), text)
