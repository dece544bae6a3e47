"""Incremental reading of bytes and of JSON: objects in any arrangement, or the items of one list.

`objects` finds objects in a list, one per line, or concatenated, and skips damaged objects. `read_items` reads a
complete document and passes on one list by item: large traces are read in little memory. (ijson needs 15% more time for
the items, and a second pass for the rest of the document.) A value of a document may be of any type; `integer` and
similar functions return values of one type, None or empty for others.
"""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Callable, Iterator, Sequence
from decimal import Decimal, InvalidOperation
from math import isfinite
from typing import Any, AnyStr, Final, Generic

from clusim.base.errors import InputError
from clusim.base.limits import json_problem
from clusim.formats.opened import LINE_LIMIT
from clusim.formats.recordings.source import FileStream


def exact_float(text: str) -> float | Decimal:
    """Return a JSON number, exact beyond double precision, as in times since 1970."""
    return float(text) if len(text) < 16 else Decimal(text)


class Window(Generic[AnyStr]):
    """Content with a buffered window.

    Attributes
    ----------
    text : str or bytes
        The window.
    at : int
        Read position in the window; earlier content may be dropped.
    dropped : int
        Length of the content before the window.
    done : bool
        True if the content ends with the window.
    """

    def __init__(self, pieces: Iterator[AnyStr], empty: AnyStr) -> None:
        self._pieces: Iterator[AnyStr] = pieces
        self._empty: AnyStr = empty
        self.text: AnyStr = empty
        self.at, self.dropped, self.done = 0, 0, False

    @property
    def place(self) -> int:
        """Read position in the content."""
        return self.dropped + self.at

    def hold(self, size: int) -> bool:
        """Extend the window to `size` from the read position; return True if available."""
        if len(self.text) - self.at < size and not self.done:
            pieces = [self.text[self.at :]]
            length = len(pieces[0])
            self._drop()
            while length < size and not self.done:
                piece = next(self._pieces, None)
                self.done = piece is None
                pieces.append(piece or self._empty)
                length += len(pieces[-1])
            self.text = self._empty.join(pieces)
        return len(self.text) - self.at >= size

    def _drop(self) -> None:
        self.dropped += self.at
        self.at = 0

    def length(self) -> int:
        """Read to the end without buffering, and return the total length."""
        return (
            self.dropped + len(self.text) + sum(len(piece) for piece in self._pieces)
        )


class TextWindow(Window[str]):
    """Window of UTF-8 text; lengths are in characters, and invalid bytes are replaced."""

    def __init__(self, pieces: Iterator[bytes]) -> None:
        super().__init__(codecs.iterdecode(pieces, "utf-8-sig", "replace"), "")
        self._lines, self._counted = 1, 0

    def _drop(self) -> None:
        self.line_at(self.at)
        self._counted = 0
        super()._drop()

    def line_at(self, at: int) -> int:
        """Return the line of a position in the window; positions must not decrease between calls."""
        if at >= self._counted:
            self._lines += self.text.count("\n", self._counted, at)
            self._counted = at
        return self._lines

    def skip(self, pattern: re.Pattern[str]) -> str:
        """Advance over text of a pattern, and return the next character; empty at the end."""
        while self.hold(1):
            match = pattern.match(self.text, self.at)
            self.at = match.end() if match else self.at
            if self.at < len(self.text):
                return self.text[self.at]
        return ""


_BETWEEN = re.compile(r"[\s,\[\]]*")
_NEXT = re.compile(r"\n[ \t,\[]*(?=\{)")
_END = re.compile(r"\}\s*,\s*(?=\{)|\r?\n")
_SPACE = re.compile(r"[ \t\n\r]*")
_COMMA = re.compile(r"[ \t\n\r]*,[ \t\n\r]*")
_DECODER = json.JSONDecoder()
_ITEM_DECODER = json.JSONDecoder(strict=False, parse_float=exact_float)

_WINDOWS: Final = (1 << 10, 1 << 16, 1 << 24)
"""Window sizes for parsing an object, in this order; no object is longer [characters]."""

_ITEM_WINDOWS: Final = (1 << 16, 1 << 20, 1 << 23, 1 << 26)
"""Window sizes for parsing an item of a list, or a value of its table [characters]."""

MOST_OBJECTS, OBJECT_LETTERS = 500_000, 64
"""Limit on the objects of a file, also broken: a constant, plus one per 64 characters."""

_DEEP = 100
"""Weight in this limit of an object that is nested too deep to be read."""

_MARGIN = 64
"""An error this close to the end of a window may be due to the window's end [characters]."""

_SEARCHED: Final = 1 << 17
"""Text read per search for the next object [characters]."""


_NO_PLACE = -1


class _BrokenError(Exception):
    """Invalid JSON, and its place in the window."""

    def __init__(self, at: int, reason: str, *, deep: bool = False) -> None:
        super().__init__(reason)
        self.at, self.said, self.deep = at, reason, deep


def _value(
    window: TextWindow, decoder: json.JSONDecoder, sizes: Sequence[int]
) -> tuple[Any, int]:
    """Return the value at the read position, and its end.

    Windows are copied, since an error counts the lines of all preceding text: with many broken objects the time
    would be quadratic in their number.

    Raises
    ------
    _BrokenError
        No JSON value ends within the largest window.
    """
    for size in sizes:
        window.hold(size)
        piece = window.text[window.at : window.at + size]
        complete = window.done and len(piece) == len(window.text) - window.at
        try:
            result, end = decoder.raw_decode(piece)
            if complete or end < len(piece):
                return result, window.at + end
            place, reason = end, "Unterminated"
        except json.JSONDecodeError as error:
            place, reason = error.pos, error.msg
        except (ValueError, RecursionError, InvalidOperation) as error:
            deep = isinstance(error, RecursionError)
            raise _BrokenError(_NO_PLACE, json_problem(error), deep=deep) from None
        if complete or (
            place < len(piece) - _MARGIN and not reason.startswith("Unterminated")
        ):
            raise _BrokenError(window.at + place, reason)
    raise _BrokenError(_NO_PLACE, f"a value of more than {sizes[-1] >> 20} MiB")


def objects(
    file: FileStream,
    damage: Callable[[int], None],
    repair: Callable[[str], str] | None = None,
) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield line and content of the objects of a file; text between them is ignored.

    Parameters
    ----------
    damage : callable
        Receives the line of invalid JSON; reading continues at the next line that begins with an object.
    repair : callable, optional
        Converts an object that is almost JSON, written on one line, to JSON.

    Raises
    ------
    InputError
        There are more objects than a recording of this size has.
    """
    window, spent = TextWindow(file.begin()), 0
    while window.skip(_BETWEEN):
        line = window.line_at(window.at)
        if spent > MOST_OBJECTS + window.place // OBJECT_LETTERS:
            raise InputError(
                f"{file.name}:{line}: {spent} objects so far, too many for so small a file; is it a recording?"
            )
        try:
            result, window.at = _object(window, repair)
        except _BrokenError as broken:
            spent += _DEEP if broken.deep else 1
            damage(line)
            if not _skip_broken(window):
                return
        else:
            spent += 1
            yield line, result


def _skip_broken(window: TextWindow) -> bool:
    """Advance to the next line that begins with an object; return False at the end."""
    while True:
        after = _NEXT.search(window.text, window.at)
        if after is not None:
            window.at = after.end()
            return True
        if window.done:
            return False
        # Keep the possible start of such a line in the window.
        last = window.text.rfind("\n", window.at)
        start = max(window.at, len(window.text) - LINE_LIMIT)
        window.at = last if last >= start else len(window.text)
        window.hold(len(window.text) - window.at + _SEARCHED)


def _object(
    window: TextWindow, repair: Callable[[str], str] | None
) -> tuple[dict[str, Any], int]:
    """Return the object at the current position, and its end; raise `_BrokenError` without one."""
    if window.text[window.at] != "{":
        raise _BrokenError(window.at, "no object")
    try:
        return _value(window, _DECODER, _WINDOWS)
    except _BrokenError as broken:
        if broken.deep or repair is None:
            raise
    window.hold(LINE_LIMIT)
    text, at = window.text, window.at
    match = _END.search(text, at)
    end = len(text) if match is None else match.start() + (match[0][0] == "}")
    try:
        result = json.loads(repair(text[at:end]).rstrip(", \t]"))
    except (ValueError, RecursionError) as error:
        raise _BrokenError(at, json_problem(error)) from None
    if not isinstance(result, dict):
        raise _BrokenError(at, "no object")
    return result, end


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
    document = _Document(file, item)
    window = document.window
    try:
        document.read(key)
    except _BrokenError as broken:
        if broken.at == _NO_PLACE:
            raise InputError(f"{file.name}: not JSON: {broken.said}") from None
        place, line = window.dropped + broken.at, window.line_at(broken.at)
        begun = document.inside and document.items > 0
        if cut is None or not begun or place <= 0.9 * window.length() - 1000:
            raise InputError(
                f"{file.name}:{line}: not JSON: {broken.said}; is the file cut?"
            ) from None
        cut(f"the file is cut in line {line}; the part before was read")
    return document.table, document.listed


class _Document:
    """State of reading one file: the rest of its table, and the number of items of its list."""

    def __init__(self, file: FileStream, item: Callable[[Any], None]) -> None:
        self.window = TextWindow(file.begin())
        self.item = item
        self.table: dict[str, Any] | None = None
        self.listed = self.inside = False
        self.items = 0

    def read(self, key: str) -> None:
        """Read the file."""
        first = self.window.skip(_SPACE)
        if first == "[":
            self.table = {}
            self._list()
        elif first == "{":
            self._table(key)
        else:
            self._one()
        if self.window.skip(_SPACE):
            self._bad("Extra data")

    def _table(self, key: str) -> None:
        result = self.table = {}
        for letter in self._members("}"):
            if letter != '"':
                self._bad("Expecting property name")
            name = self._one()
            if self.window.skip(_SPACE) != ":":
                self._bad("Expecting ':' delimiter")
            self.window.at += 1
            if self.window.skip(_SPACE) == "[" and name == key:
                self._list()
            else:
                result[name] = self._one()

    def _members(self, close: str) -> Iterator[str]:
        """Yield the first character of every member of a table or list, and advance to its end."""
        window = self.window
        window.at += 1
        letter = window.skip(_SPACE)
        while letter != close:
            yield letter
            letter = window.skip(_SPACE)
            if letter == ",":
                window.at += 1
                letter = window.skip(_SPACE)
            elif letter != close:
                self._bad("Expecting ',' delimiter")
        window.at += 1

    def _list(self) -> None:
        """Read the list."""
        self.listed = self.inside = True
        for _ in self._members("]"):
            self._quick()
            self.item(self._one())
            self.items += 1
        self.inside = False

    def _quick(self) -> None:
        """Consume items that are complete in the window, with their commas; leave the last item."""
        window = self.window
        window.hold(_ITEM_WINDOWS[0])
        text, at, end = window.text, window.at, len(window.text)
        scan, comma, item = _ITEM_DECODER.raw_decode, _COMMA.match, self.item
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

    def _one(self) -> Any:
        """Return the value at the current position, and advance to its end."""
        result, self.window.at = _value(self.window, _ITEM_DECODER, _ITEM_WINDOWS)
        return result

    def _bad(self, reason: str) -> None:
        raise _BrokenError(self.window.at, reason)


def number(value: Any) -> float | None:
    """Return a finite number; None for other values."""
    if isinstance(value, bool) or not isinstance(value, (int, float, Decimal)):
        return None
    try:
        result = float(value)
    except OverflowError:
        return None
    return result if isfinite(result) else None


def integer(value: Any, limit: int = 1 << 62) -> int | None:
    """Return an integer from 0 to `limit`, also of a string of digits; None for other values."""
    if type(value) is int:  # excludes bool
        return value if 0 <= value <= limit else None
    if (
        isinstance(value, str)
        and len(value) < 20
        and value.isdecimal()
        and value.isascii()
    ):
        value = int(value)
    result = number(value)
    if result is None or result < 0 or result > limit or result != int(result):
        return None
    return int(value)


def time_ps(value: Any, unit_ps: int) -> int | None:
    """Return a time in `unit_ps` as integer picoseconds; None if invalid or too large."""
    result = number(value)
    if result is None or not 0 <= result < (1 << 80) / unit_ps:
        return None
    return (
        int(value * unit_ps)
        if isinstance(value, (int, Decimal))
        else round(result * unit_ps)
    )


def table_of(value: Any) -> dict[str, Any]:
    """Return a JSON object; empty for other values."""
    return value if isinstance(value, dict) else {}


def list_of(value: Any) -> list[Any]:
    """Return a JSON list; empty for other values."""
    return value if isinstance(value, list) else []


def tables_of(value: Any) -> list[dict[str, Any]]:
    """Return the objects in a JSON list."""
    return [item for item in list_of(value) if isinstance(item, dict)]


def integers(value: Any, limit: int = 1 << 62) -> tuple[int, ...] | None:
    """Return a JSON list of integers as by `integer`; None for other values."""
    numbers = [integer(item, limit) for item in list_of(value)]
    valid = tuple(item for item in numbers if item is not None)
    return valid if isinstance(value, list) and len(valid) == len(numbers) else None
