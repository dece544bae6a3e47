"""Incremental JSON reader: one list of a table is passed on by item, the rest is kept."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from decimal import InvalidOperation
from typing import Any, Final

from clusim.base.errors import InputError
from clusim.formats.recordings.source import exact_float
from clusim.formats.recordings.streams import FileStream, TextWindow

_DECODER = json.JSONDecoder(strict=False, parse_float=exact_float)
_SPACE = re.compile(r"[ \t\n\r]*")
_COMMA = re.compile(r"[ \t\n\r]*,[ \t\n\r]*")
_MOST_VALUE: Final = 1 << 26
"""Longest item, or value of the table [characters]."""

_FIRST: Final = 1 << 16
"""Text in the window before a value is parsed [characters]."""

_MARGIN: Final = 64
"""Distance to the window's end at which an error may be due to that end [characters]."""


def read_items(
    file: FileStream,
    key: str,
    item: Callable[[Any], None],
    cut: Callable[[str], None] | None = None,
) -> tuple[dict[str, Any] | None, bool]:
    """Pass the items of a list to `item`, and return the rest of its table.

    Parameters
    ----------
    key : str
        Name of the list in the table; a file that is a list has no table.
    cut : callable, optional
        Receives a message if the file ends in the middle of the list; without it that is an error.

    Returns
    -------
    table : dict or None
        The rest of the table, empty if the file is a list; None for any other value.
    listed : bool
        True if the list was found.
    """
    reader = _Reader(file, item, cut)
    try:
        return reader.read(key)
    except _BrokenError as broken:
        raise reader.error(broken) from None


class _Reader:
    """State of reading one file."""

    def __init__(
        self, file: FileStream, item: Callable[[Any], None], cut: Callable[[str], None] | None
    ) -> None:
        self.name = file.name
        self.window = TextWindow(file.begin())
        self.item, self.cut = item, cut
        self.items = 0

    def read(self, key: str) -> tuple[dict[str, Any] | None, bool]:
        """Read the file."""
        result: dict[str, Any] = {}
        listed = False
        first = self._next()
        if first == "[":
            if self._list():
                self._end()
            return result, True
        if first != "{":
            self._value()
            self._end()
            return None, False
        self.window.at += 1
        letter = self._next()
        while letter != "}":
            name = self._value() if letter == '"' else self._bad("Expecting property name")
            if self._next() != ":":
                self._bad("Expecting ':' delimiter")
            self.window.at += 1
            if self._next() == "[" and name == key:
                listed = True
                if not self._list():
                    return result, True
            else:
                result[name] = self._value()
            letter = self._next()
            if letter == ",":
                self.window.at += 1
                letter = self._next()
            elif letter != "}":
                self._bad("Expecting ',' delimiter")
        self.window.at += 1
        self._end()
        return result, listed

    def _next(self) -> str:
        """Skip whitespace and return the next character; empty at the end."""
        window = self.window
        while True:
            blanks = _SPACE.match(window.text, window.at)
            window.at = blanks.end() if blanks else window.at
            if window.at < len(window.text):
                return window.text[window.at]
            if not window.hold(1):
                return ""

    def _list(self) -> bool:
        """Read the list and return True; False if it is truncated and `cut` permits that."""
        window = self.window
        window.at += 1
        letter = self._next()
        try:
            while letter != "]":
                self._quick()
                value = self._value()
                self.items += 1
                self.item(value)
                letter = self._next()
                if letter == ",":
                    window.at += 1
                    letter = self._next()
                elif letter != "]":
                    self._bad("Expecting ',' delimiter")
        except _BrokenError as broken:
            here, line = window.dropped + broken.at, window.line_at(broken.at)
            if self.cut is None or not self.items or here <= 0.9 * window.rest() - 1000:
                raise self.error(broken) from None
            self.cut(f"the file is cut in line {line}; the part before was read")
            return False
        window.at += 1
        return True

    def _quick(self) -> None:
        """Consume items that are complete in the window, with their commas; leave the last item."""
        window = self.window
        window.hold(_FIRST)
        text, at, end = window.text, window.at, len(window.text)
        scan, comma, item = _DECODER.raw_decode, _COMMA.match, self.item
        while True:
            try:
                result, behind = scan(text, at)
            except (ValueError, RecursionError, InvalidOperation):
                break  # parsed again with more of the text
            following = comma(text, behind)
            if following is None or following.end() == end:
                break
            item(result)
            self.items += 1
            at = following.end()
        window.at = at

    def _value(self) -> Any:
        """Return the value at the current position, and advance to its end."""
        window = self.window
        size = _FIRST
        while True:
            window.hold(size)
            try:
                result, end = _DECODER.raw_decode(window.text, window.at)
                if end < len(window.text) or window.done:
                    window.at = end
                    return result
                at, said = end, "Unterminated"
            except json.JSONDecodeError as error:
                at, said = error.pos, error.msg
            except (ValueError, RecursionError, InvalidOperation) as error:
                raise InputError(f"{self.name}: not JSON: {error}") from None
            inside = at < len(window.text) - _MARGIN and not said.startswith("Unterminated")
            if inside or window.done:
                raise _BrokenError(at, said)
            size = 2 * (len(window.text) - window.at)
            if size > _MOST_VALUE:
                raise InputError(
                    f"{self.name}:{window.line}: a value of more than {_MOST_VALUE >> 20} MiB"
                )

    def _bad(self, said: str) -> Any:
        raise _BrokenError(self.window.at, said)

    def error(self, broken: _BrokenError) -> InputError:
        """Return the error, with its line."""
        line = self.window.line_at(broken.at)
        return InputError(f"{self.name}:{line}: not JSON: {broken.said}; is the file cut?")

    def _end(self) -> None:
        if self._next():
            self._bad("Extra data")


class _BrokenError(Exception):
    """Invalid JSON, and its place in the window."""

    def __init__(self, at: int, said: str) -> None:
        super().__init__(said)
        self.at, self.said = at, said
