"""JSON objects one after the other, in any arrangement: a list, one per line, or just behind each other."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from typing import Any, Final

from clusim.base.errors import InputError
from clusim.formats.recordings.source import LINE_LIMIT
from clusim.formats.recordings.streams import FileStream, TextWindow

_BETWEEN = re.compile(r"[\s,\[\]]*")
_NEXT = re.compile(r"\n[ \t,\[]*(?=\{)")
_END = re.compile(r"\}\s*,\s*(?=\{)|\r?\n")
_DECODER = json.JSONDecoder()

_WINDOWS: Final = (1 << 10, 1 << 16, 1 << 24)
"""Characters among which an object is looked for: most are short, and none is longer."""

MOST_OBJECTS, OBJECT_LETTERS = 500_000, 64
"""Objects of a file, whole or broken: so many, and one more for so many characters."""

_DEEP = 100
"""As many objects one counts that is nested deeper than can be read."""

_TOO_DEEP = -1

_MARGIN = 32
"""An error so near to the end of these may come of the end."""

_HELD: Final = 1 << 17
"""Text from an object on that is buffered before it is parsed [characters]."""


def objects(
    file: FileStream, damage: Callable[[int], None], repair: Callable[[str], str] | None = None
) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield line and content of the objects of a file; what is between them is looked at no further.

    Parameters
    ----------
    damage : callable
        Takes the line of what is no JSON; reading goes on at the next line that begins with an object.
    repair : callable, optional
        Turns an object that is almost JSON, written on one line, into JSON.

    Raises
    ------
    InputError
        There are more objects than a recording of this size has.
    """
    window, spent = TextWindow(file.begin()), 0
    while _begins(window):
        line = window.line
        if spent > MOST_OBJECTS + (window.dropped + window.at) // OBJECT_LETTERS:
            raise InputError(
                f"{file.name}:{line}: {spent} objects so far, too many for so small a file; is it a recording?"
            )
        found, end = _one(window, repair)
        spent += 1 if end >= window.at else _DEEP
        if found is not None:
            window.at = end
            yield line, found
            continue
        damage(line)
        if not _skip(window):
            return


def _begins(window: TextWindow) -> bool:
    """Go to the next object, or whatever stands in its place; returns whether there is something."""
    while True:
        window.hold(_HELD)
        between = _BETWEEN.match(window.text, window.at)
        window.at = between.end() if between else window.at
        if window.at < len(window.text):
            return True
        if window.done:
            return False


def _skip(window: TextWindow) -> bool:
    """Go to the next line that begins with an object; returns whether there is one."""
    while True:
        after = _NEXT.search(window.text, window.at)
        if after is not None:
            window.at = after.end()
            return True
        if window.done:
            return False
        # What may begin such a line is looked at again.
        last = window.text.rfind("\n", window.at)
        near = max(window.at, len(window.text) - LINE_LIMIT)
        window.at = last if last >= near else len(window.text)
        window.hold(len(window.text) - window.at + _HELD)


def _decoded(window: TextWindow) -> tuple[dict[str, Any] | None, int]:
    """Return the whole object that begins here, and where it ends.

    That is the position itself if there is none, and `_TOO_DEEP` if it is nested too deep.

    Windows are copied, as an error would count the lines of all the text in front of it: many broken objects of a long
    file would take the square of their number.
    """
    for size in _WINDOWS:
        window.hold(size)
        at = window.at
        piece = window.text[at : at + size]
        try:
            found, end = _DECODER.raw_decode(piece)
            return found, at + end
        except json.JSONDecodeError as error:
            inside = error.pos < len(piece) - _MARGIN and not error.msg.startswith("Unterminated")
            if inside or len(piece) < size:
                break
        except RecursionError:
            return None, _TOO_DEEP
        except ValueError:
            break
    return None, window.at


def _one(
    window: TextWindow, repair: Callable[[str], str] | None
) -> tuple[dict[str, Any] | None, int]:
    """Return the object that begins here, None if there is none, and where it ends."""
    if window.text[window.at] != "{":
        return None, window.at
    found, end = _decoded(window)
    if end != window.at or repair is None:
        return found, end
    window.hold(LINE_LIMIT)
    text, at = window.text, window.at
    match = _END.search(text, at)
    end = len(text) if match is None else match.start() + (match[0][0] == "}")
    try:
        found = json.loads(repair(text[at:end]).rstrip(", \t]"))
    except (ValueError, RecursionError):
        return None, at
    return (found if isinstance(found, dict) else None), end
