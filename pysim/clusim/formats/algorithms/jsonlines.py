"""JSON parser that keeps the line of every object, for errors in plans."""

from __future__ import annotations

import re
from bisect import bisect_right
from json import JSONDecoder
from pathlib import Path
from typing import Any, NoReturn

from clusim.base.errors import InputError
from clusim.base.files import note_input

MAX_BYTES = 64 * 2**20
MAX_DEPTH = 64
MAX_VALUES = 4_000_000

_SPACE = re.compile(r"[ \t\r\n]*")
_NUMBER = re.compile(r"-?(?:0|[1-9]\d{0,39})(\.\d{1,40})?([eE][-+]?\d{1,4})?")
_STRINGS = JSONDecoder()
_WORDS = {"true": True, "false": False, "null": None}


class JsonNode(dict[str, Any]):
    """An object of a JSON file: a dictionary with its file and first line."""

    where: str = ""
    line: int = 0

    def bad(self, what: str) -> InputError:
        """Return an error that names the line."""
        return InputError(f"{self.where}:{self.line}: {what}")

    def number(self, name: str, low: int, high: int, default: int | None = None) -> int:
        """Return an integer; it is required if the default is None."""
        value = self.get(name, default)
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise self.bad(f"{name}={_shown(value)}: must be an integer {low}..{high}")
        return value

    def text(self, name: str, default: str | None = None) -> str:
        """Return a text."""
        value = self.get(name, default)
        if not isinstance(value, str):
            raise self.bad(f"{name}={_shown(value)}: must be a text")
        return value

    def flag(self, name: str, default: bool) -> bool:
        """Return true or false."""
        value = self.get(name, default)
        if not isinstance(value, bool):
            raise self.bad(f"{name}={_shown(value)}: must be true or false")
        return value

    def nodes(self, name: str) -> list[JsonNode]:
        """Return a list of objects; empty if it is missing."""
        value = self.get(name, [])
        if not isinstance(value, list) or any(not isinstance(item, JsonNode) for item in value):
            raise self.bad(f"{name}: must be a list of objects")
        return value

    def numbers(self, name: str, low: int, high: int) -> list[int]:
        """Return a list of integers; empty if it is missing."""
        value = self.get(name, [])
        whole = isinstance(value, list) and all(
            isinstance(item, int) and not isinstance(item, bool) and low <= item <= high
            for item in value
        )
        if not whole:
            raise self.bad(f"{name}={_shown(value)}: must be a list of integers {low}..{high}")
        return list(value)


def _shown(value: object) -> str:
    return ascii(value)[:40]


def read_json(path: str | Path) -> JsonNode:
    """Read a file with an object as outermost value; raise `InputError` with the line."""
    where = str(path)
    note_input(path)
    try:
        with Path(path).open("rb") as file:
            raw = file.read(MAX_BYTES + 1)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise InputError(f"{where}: cannot be read: {reason}") from None
    if len(raw) > MAX_BYTES:
        raise InputError(f"{where}: larger than {MAX_BYTES >> 20} MiB; is it a plan?")
    reader = _Reader(raw.decode("utf-8", "replace").removeprefix("\ufeff"), where)
    value = reader.value(0)
    if not isinstance(value, JsonNode):
        raise InputError(f"{where}:1: no plan of MSCCL++, which is one JSON object")
    reader.space()
    if reader.at != len(reader.text):
        reader.fail("something follows the end of the plan")
    return value


class _Reader:
    def __init__(self, text: str, where: str) -> None:
        self.text, self.where = text, where
        self.at = self.count = 0
        self.starts = [match.end() for match in re.finditer("\n", text)]

    def fail(self, what: str) -> NoReturn:
        line = 1 + bisect_right(self.starts, self.at)
        if self.at >= len(self.text):
            what += "; is the file complete?"
        raise InputError(f"{self.where}:{line}: no valid JSON: {what}")

    def space(self) -> str:
        """Skip white space; return the next character, empty at the end."""
        sign = self.text[self.at : self.at + 1]
        if sign > " ":
            return sign
        match = _SPACE.match(self.text, self.at)
        assert match is not None
        self.at = match.end()
        return self.text[self.at : self.at + 1]

    def value(self, depth: int) -> Any:
        first = self.space()
        self.count += 1
        if depth > MAX_DEPTH or self.count > MAX_VALUES:
            self.fail("nested too deep, or too many values")
        if first == "{":
            return self._object(depth)
        if first == "[":
            return self._list(depth)
        if first == '"':
            return self._string()
        for word, meaning in _WORDS.items():
            if self.text.startswith(word, self.at):
                self.at += len(word)
                return meaning
        match = _NUMBER.match(self.text, self.at)
        if match is None:
            self.fail("a value is missing")
        self.at = match.end()
        return float(match[0]) if match[1] or match[2] else int(match[0])

    def _string(self) -> str:
        try:
            text, self.at = _STRINGS.raw_decode(self.text, self.at)
        except ValueError:
            self.fail("a text that does not end, or a bad escape in it")
        return str(text)

    def _object(self, depth: int) -> JsonNode:
        node = JsonNode()
        node.where, node.line = self.where, 1 + bisect_right(self.starts, self.at)
        self.at += 1
        if self.space() == "}":
            self.at += 1
            return node
        while True:
            if self.space() != '"':
                self.fail("a name in quotes is missing")
            name = self._string()
            if self.space() != ":":
                self.fail("':' is missing")
            self.at += 1
            node[name] = self.value(depth + 1)
            if self._last("}"):
                return node

    def _list(self, depth: int) -> list[Any]:
        result: list[Any] = []
        self.at += 1
        if self.space() == "]":
            self.at += 1
            return result
        while True:
            result.append(self.value(depth + 1))
            if self._last("]"):
                return result

    def _last(self, end: str) -> bool:
        """Skip a comma or the end; return True at the end."""
        sign = self.space()
        if sign not in (",", end) or not sign:
            self.fail(f"',' or '{end}' is missing")
        self.at += 1
        return sign == end
