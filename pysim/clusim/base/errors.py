"""Exceptions that clusim raises deliberately, with their exit codes.

Every message is one line, ``where: error; remedy``, and is complete without a traceback. An error of another type that
leaves the library is a bug in clusim.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from typing import ClassVar

MOST_NEAR = 6
"""Maximum number of names suggested for a prefix."""


MOST_LISTED = 20
"""Maximum number of names listed if no name is similar."""


def one_line(text: str) -> str:
    """Return foreign text as one line, with ``?`` for characters that are not printable."""
    return "".join(c if c.isprintable() else "?" for c in text)


def suggest(
    word: str, choices: Iterable[str], synonyms: Mapping[str, str] | None = None
) -> str:
    """Return ``; did you mean 'x'?`` for a word, ignoring case, or a list of the known names.

    Suggested are, in this order: the name for a synonym, names with this prefix, names with this part
    between dashes, the most similar name.

    `synonyms` maps alternative words to known names.
    """
    words, word = list(dict.fromkeys(choices)), word.lower()
    meant = {name.lower(): name for name in words}
    meant |= {
        name: key
        for name, key in (synonyms or {}).items()
        if key in words and name not in meant
    }
    matches = [word] if word in (synonyms or {}) and word in meant else []
    matches = matches or [name for name in meant if word and name.startswith(word)]
    # A missing letter is more likely than a missing rest of a name.
    matches = difflib.get_close_matches(word, matches, 1, 0.9) or matches
    matches = matches or [name for name in meant if word in name.split("-")]
    matches = matches or difflib.get_close_matches(word, meant, 1, 0.6)
    if matches:
        *first_names, last = [
            repr(name) for name in dict.fromkeys(meant[name] for name in matches)
        ][:MOST_NEAR]
        return (
            f"; did you mean {', '.join(first_names)} or {last}?"
            if first_names
            else f"; did you mean {last}?"
        )
    if not words:
        return ""
    listing = ", ".join(words[:MOST_LISTED]) + (
        ", ..." if len(words) > MOST_LISTED else ""
    )
    return f"; there are {listing}"


class ClusimError(Exception):
    """Base of all errors raised deliberately; `exit_code` is the exit status of commands."""

    exit_code: ClassVar[int] = 2


class UnitError(ClusimError):
    """A quantity that is invalid or ambiguous."""


class TopologyError(ClusimError):
    """A fabric that is malformed, disconnected or otherwise impossible."""


class ScheduleError(ClusimError):
    """A schedule that is malformed, or an algorithm that cannot run on the fabric."""


class TraceError(ClusimError):
    """A trace file that cannot be read or does not contain the requested data."""


class InputError(ClusimError):
    """An invalid argument: unknown name, value out of range, conflicting options."""


class RangeExceeded(ClusimError):
    """A run that would exceed the number ranges of the engines (`clusim.engine.ranges`).

    Attributes
    ----------
    what, index
        Object with the time or number, "wire", "instance", ..., and its index in the image.
    """

    def __init__(self, what: str, index: int, why: str, name: str = "") -> None:
        super().__init__(f"{what} {name or index}: {why}")
        self.what, self.index, self.why = what, index, why

    def with_name(self, name: str) -> RangeExceeded:
        """Return the same error with a name in place of the index."""
        return RangeExceeded(self.what, self.index, self.why, name)


class PolicyFault(InputError):
    """An illegal answer of a policy; attributes as of `RangeExceeded`."""

    def __init__(
        self, words: tuple[str, str], what: str, index: int, name: str = ""
    ) -> None:
        super().__init__(f"{words[0]}, {what} {name or index}; {words[1]}")
        self.words, self.what, self.index = words, what, index

    def with_name(self, name: str) -> PolicyFault:
        """Return the same error with a name in place of the index."""
        return PolicyFault(self.words, self.what, self.index, name)


class EnvironmentFailure(ClusimError):
    """A failure of the environment: unwritable output, full disk, out of memory."""

    exit_code: ClassVar[int] = 1


def lacking(subject: str, package: str, extra: str) -> EnvironmentFailure:
    """Return the error for a missing package, with the extra of clusim that installs it."""
    return EnvironmentFailure(
        f"{subject}: needs {package}; pip install 'clusim-net[{extra}]'"
    )


class DeadlockError(ClusimError):
    """A deadlock: work remains but no event is possible; the message names the waiting cycle."""

    exit_code: ClassVar[int] = 1


class TimeLimitReached(ClusimError):
    """The wall-clock limit of a run expired before the first result."""

    exit_code: ClassVar[int] = 1


class InternalError(ClusimError):
    """A broken invariant of clusim; please report it."""

    exit_code: ClassVar[int] = 70
