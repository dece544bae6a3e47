"""The exceptions clusim raises on purpose, and the exit code each one means.

Every message is one line, ``where: what is wrong; what would be right``, and is complete without a
traceback. An error of another type that leaves the library is a bug of ours.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from typing import ClassVar

MOST_NEAR = 6
"""So many names that begin as a word does are suggested for it."""


MOST_LISTED = 20
"""So many words are listed where none is near."""


def one_line(text: str) -> str:
    """Return foreign text as one line: what does not print is a question mark."""
    return "".join(c if c.isprintable() else "?" for c in text)


def suggest(word: str, known: Iterable[str], synonyms: Mapping[str, str] | None = None) -> str:
    """Return ``; did you mean 'x'?`` for what a word means, else for names that begin with it or have it between
    dashes, else for the nearest, else the words there are; in any case of letters.

    `synonyms` maps words that people write to known ones.
    """
    words, word = list(dict.fromkeys(known)), word.lower()
    meant = {name.lower(): name for name in words}
    meant |= {
        name: key for name, key in (synonyms or {}).items() if key in words and name not in meant
    }
    near = [word] if word in (synonyms or {}) and word in meant else []
    near = near or [name for name in meant if word and name.startswith(word)]
    # A letter is missing rather than the rest of a name.
    near = difflib.get_close_matches(word, near, 1, 0.9) or near
    near = near or [name for name in meant if word in name.split("-")]
    near = near or difflib.get_close_matches(word, meant, 1, 0.6)
    if near:
        *others, last = [repr(name) for name in dict.fromkeys(meant[name] for name in near)][
            :MOST_NEAR
        ]
        return (
            f"; did you mean {', '.join(others)} or {last}?"
            if others
            else f"; did you mean {last}?"
        )
    if not words:
        return ""
    shown = ", ".join(words[:MOST_LISTED]) + (", ..." if len(words) > MOST_LISTED else "")
    return f"; there are {shown}"


class ClusimError(Exception):
    """Base of all errors raised on purpose; `exit_code` is what the command line ends with."""

    exit_code: ClassVar[int] = 2


class UnitError(ClusimError):
    """A quantity that cannot be read, or that can be read in two ways."""


class TopologyError(ClusimError):
    """A fabric that is malformed, disconnected or otherwise impossible."""


class ScheduleError(ClusimError):
    """A schedule that is malformed, or an algorithm that cannot run on the fabric."""


class TraceError(ClusimError):
    """A trace file that cannot be read or does not hold what is asked for."""


class InputError(ClusimError):
    """A bad argument: unknown name, value out of range, options that contradict each other."""


class RangeExceeded(ClusimError):
    """A run that would leave the ranges that the engines compute with (`clusim.engine.ranges`).

    Attributes
    ----------
    what, index
        Whose time or number it is: "wire", "instance", ..., and its index in the image.
    """

    def __init__(self, what: str, index: int, why: str, name: str = "") -> None:
        super().__init__(f"{what} {name or index}: {why}")
        self.what, self.index, self.why = what, index, why

    def named(self, name: str) -> RangeExceeded:
        """Return the same error with a name in place of the index."""
        return RangeExceeded(self.what, self.index, self.why, name)


class EnvironmentFailure(ClusimError):
    """The surroundings failed: unwritable output, full disk, no memory."""

    exit_code: ClassVar[int] = 1


def lacking(what: str, package: str, extra: str) -> EnvironmentFailure:
    """Return the error for something that needs a package which is not installed, and the extra that brings it."""
    return EnvironmentFailure(f"{what}: needs {package}; pip install 'clusim-net[{extra}]'")


class DeadlockError(ClusimError):
    """Nothing can happen any more and work is left; the message names the waiting cycle."""

    exit_code: ClassVar[int] = 1


class TimeLimitReached(ClusimError):
    """The time that a run may take by the clock on the wall is up before it gave anything."""

    exit_code: ClassVar[int] = 1


class InternalError(ClusimError):
    """An invariant of ours is broken; please report it."""

    exit_code: ClassVar[int] = 70
