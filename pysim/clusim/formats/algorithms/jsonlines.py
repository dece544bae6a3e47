"""JSON parser that keeps the line of every object, for errors in plans."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from clusim.base.errors import InputError
from clusim.base.limits import read_text

MAX_DEPTH = 64
MAX_VALUES = 4_000_000
MAX_DIGITS = 100
"""Digits of an integer that are read: more than any limit has."""

_TOKEN = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"?|[\[\]{}]|NaN|Infinity', re.DOTALL)
_TOO_MUCH = "nested too deep, or too many values"
_ERRORS = {
    "Expecting value": "a value is missing",
    "Expecting property name": "a name in quotes is missing",
    "Expecting ':'": "':' is missing",
    "Expecting ','": "',' or 'END' is missing",
    "Illegal trailing comma before end of object": "a name in quotes is missing",
    "Illegal trailing comma before end of array": "a value is missing",
    "Extra data": "something follows the end of the plan",
}
"""Beginnings of Python's messages, and ours."""


class JsonNode(dict[str, Any]):
    """An object of a JSON file: a dictionary with its file and first line."""

    where: str = ""
    line: int = 0

    def bad(self, message: str) -> InputError:
        """Return an error that names the line."""
        return InputError(f"{self.where}:{self.line}: {message}")

    def number(
        self, name: str, low: int, high: int, default: int | None = None
    ) -> int:
        """Return an integer; it is required if the default is None."""
        value = self.get(name, default)
        if (
            isinstance(value, bool)
            or not isinstance(value, int)
            or not low <= value <= high
        ):
            raise self.bad(
                f"{name}={_format_value(value)}: must be an integer {low}..{high}"
            )
        return value

    def text(self, name: str, default: str | None = None) -> str:
        """Return a text."""
        value = self.get(name, default)
        if not isinstance(value, str):
            raise self.bad(f"{name}={_format_value(value)}: must be a text")
        return value

    def flag(self, name: str, default: bool) -> bool:
        """Return true or false."""
        value = self.get(name, default)
        if not isinstance(value, bool):
            raise self.bad(f"{name}={_format_value(value)}: must be true or false")
        return value

    def nodes(self, name: str) -> list[JsonNode]:
        """Return a list of objects; empty if it is missing."""
        value = self.get(name, [])
        if not isinstance(value, list) or any(
            not isinstance(item, JsonNode) for item in value
        ):
            raise self.bad(f"{name}: must be a list of objects")
        return value

    def numbers(self, name: str, low: int, high: int) -> list[int]:
        """Return a list of integers; empty if it is missing."""
        value = self.get(name, [])
        is_list = isinstance(value, list) and all(
            isinstance(item, int)
            and not isinstance(item, bool)
            and low <= item <= high
            for item in value
        )
        if not is_list:
            raise self.bad(
                f"{name}={_format_value(value)}: must be a list of integers {low}..{high}"
            )
        return list(value)


def _format_value(value: object) -> str:
    return ascii(value)[:40]


def plan_text(path: str | Path, noun: str) -> str:
    """Return the text of a plan; raise `InputError` if the file cannot be read or is too large."""
    return read_text(path, strict=False, advice=f"is it {noun}?")


def read_json(path: str | Path) -> JsonNode:
    """Read a file with an object as outermost value; raise `InputError` with the line."""
    where = str(path)
    text = plan_text(path, "a plan")
    if sum(map(text.count, "[{,")) > MAX_VALUES:
        raise _fail(text, where, 0, _TOO_MUCH)
    nodes: list[JsonNode] = []  # in the order of their closing braces

    def node(pairs: list[tuple[str, Any]]) -> JsonNode:
        nodes.append(JsonNode(pairs))
        return nodes[-1]

    value: object = None
    try:
        value = json.loads(
            text,
            object_pairs_hook=node,
            parse_int=lambda digits: int(digits[:MAX_DIGITS]),
        )
    except json.JSONDecodeError as error:
        messages = (
            ours for theirs, ours in _ERRORS.items() if error.msg.startswith(theirs)
        )
        problem = next(messages, "a text that does not end, or a bad escape in it")
        if "END" in problem:
            problem = problem.replace("END", _end(text[: error.pos]))
        raise _fail(text, where, error.pos, problem) from None
    except RecursionError:
        pass  # `_lines` names the place
    for item, line in zip(nodes, _lines(text, where), strict=False):
        item.where, item.line = where, line
    if not isinstance(value, JsonNode):
        raise InputError(f"{where}:1: no plan of MSCCL++, which is one JSON object")
    return value


def _fail(text: str, where: str, at: int, problem: str) -> InputError:
    """Return the error at a place in the text."""
    end = "; is the file complete?" if at >= len(text) else ""
    return InputError(
        f"{where}:{1 + text.count(chr(10), 0, at)}: no valid JSON: {problem}{end}"
    )


def _lines(text: str, where: str) -> list[int]:
    """Return the first lines of all objects, in the order of their ends."""
    result: list[int] = []
    begun: list[int] = []
    line, counted = 1, 0
    for token in _TOKEN.finditer(text):
        sign, at = token[0], token.start()
        if sign in ("NaN", "Infinity"):
            raise _fail(text, where, at, "a value is missing")
        if sign in ("[", "{"):
            line, counted = line + text.count("\n", counted, at), at
            begun.append(line)
        elif sign in ("]", "}") and begun:
            first = begun.pop()
            if sign == "}":
                result.append(first)
        if len(begun) > MAX_DEPTH:
            raise _fail(text, where, at, _TOO_MUCH)
    return result


def _end(text: str) -> str:
    """Return the sign that ends the innermost object or list at the end of a text."""
    begun = []
    for token in _TOKEN.finditer(text):
        if token[0] in ("[", "{"):
            begun.append(token[0])
        elif token[0] in ("]", "}"):
            begun.pop()
    return "]" if begun[-1] == "[" else "}"
