"""JSON objects one after the other, in any arrangement: a list, one per line, or just behind each other."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from typing import Any

from clusim.errors import InputError
from clusim.formats.recordings.source import FilePart

__all__ = ["objects"]

_BETWEEN = re.compile(r"[\s,\[\]]*")
_NEXT = re.compile(r"\n[ \t,\[]*(?=\{)")
_END = re.compile(r"\}\s*,\s*(?=\{)|\r?\n")
_DECODER = json.JSONDecoder()

_WINDOWS = (1 << 10, 1 << 16)
"""Characters among which an object is looked for, before it is in all that follows: most are short."""

MOST_OBJECTS, OBJECT_LETTERS = 500_000, 64
"""Objects of a file, whole or broken: so many, and one more for so many characters."""

_DEEP = 100
"""As many objects one counts that is nested deeper than can be read."""

_TOO_DEEP = -1

_MARGIN = 32
"""An error so near to the end of these may come of the end."""


def objects(
    part: FilePart, damage: Callable[[int], None], repair: Callable[[str], str] | None = None
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
    text = part.data.decode("utf-8", "replace")
    at, line, counted, spent = 0, 1, 0, 0
    while True:
        between = _BETWEEN.match(text, at)
        at = between.end() if between else at
        if at >= len(text):
            return
        line += text.count("\n", counted, at)
        counted = at
        if spent > MOST_OBJECTS + at // OBJECT_LETTERS:
            raise InputError(
                f"{part.name}:{line}: {spent} objects so far, too many for so small a file; is it a recording?"
            )
        found, end = _one(text, at, repair)
        spent += 1 if end >= at else _DEEP
        if found is not None:
            at = end
            yield line, found
            continue
        damage(line)
        after = _NEXT.search(text, at)
        if after is None:
            return
        at = after.end()


def _decoded(text: str, at: int) -> tuple[dict[str, Any] | None, int]:
    """Return the whole object that begins at a position, and where it ends.

    That is the position itself if there is none, and `_TOO_DEEP` if it is nested too deep.

    Windows are copied, as an error would count the lines of all the text in front of it: many broken objects of a long
    file would take the square of their number.
    """
    for window in _WINDOWS:
        piece = text[at : at + window]
        try:
            found, end = _DECODER.raw_decode(piece)
            return found, at + end
        except json.JSONDecodeError as error:
            inside = error.pos < len(piece) - _MARGIN and not error.msg.startswith("Unterminated")
            if inside or len(piece) < window:
                return None, at
        except RecursionError:
            return None, _TOO_DEEP
        except ValueError:
            return None, at
    try:
        found, end = _DECODER.raw_decode(text[at:])
        return found, at + end
    except RecursionError:
        return None, _TOO_DEEP
    except ValueError:
        return None, at


def _one(
    text: str, at: int, repair: Callable[[str], str] | None
) -> tuple[dict[str, Any] | None, int]:
    """Return the object that begins at a position, None if there is none, and where it ends."""
    if text[at] != "{":
        return None, at
    found, end = _decoded(text, at)
    if end != at or repair is None:
        return found, end
    match = _END.search(text, at)
    end = len(text) if match is None else match.start() + (match[0][0] == "}")
    try:
        found = json.loads(repair(text[at:end]).rstrip(", \t]"))
    except (ValueError, RecursionError):
        return None, at
    return (found if isinstance(found, dict) else None), end
