"""Split of a line into parts with writer and message, prefixes of log headers, and a cache of parsed texts.

Ranks write into each other's lines. A prefix is a timestamp in many forms, or the rank that a launcher
printed.
"""

from __future__ import annotations

import re
from calendar import timegm
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TypeVar

from clusim.base.limits import MOST_RANKS
from clusim.formats.logs.columns import NONE

K = TypeVar("K", str, bytes)
T = TypeVar("T")

MOST_TEXTS = 1 << 14
"""Maximum number of cached texts of one kind."""

LONGEST = 1024
"""Maximum length of a cached text [characters]."""


class Remembered(dict[K, T]):
    """Results of a function of a text for recent short texts, which must not be modified.

    Ranks write mostly equal lines, and programs restart: three of four messages are repeats.
    """

    def __init__(self, parse: Callable[[K], T]) -> None:
        """Remember the results of `parse`."""
        super().__init__()
        self._parse: Callable[[K], T] = parse

    def __missing__(self, text: K) -> T:
        """Compute a result, and keep it if the text is short."""
        result = self._parse(text)
        if len(text) <= LONGEST:
            if len(self) >= MOST_TEXTS:
                self.clear()
            self[text] = result
        return result


_LEVEL = re.compile(rb"NCCL (INFO|WARN|TRACE|CALL|ABORT|VERSION) ?")
_BEFORE = re.compile(
    rb"(?:(?P<host>[A-Za-z0-9_][\w.-]{0,255}):(?P<pid>\d{1,10}):(?P<tid>\d{1,10}) )?"
    rb"(?:\[(?P<device>-?\d{1,4})\] )?"
    rb"(?:(?P<stamp>\d{12,20}) |(?:\d{1,18}\.\d{1,18} )?(?P<where>[\w/.-]{1,255}:\d{1,9}) )?$"
)
_TAG = re.compile(rb"\[\d+,(\d+)\]<std(?:out|err|diag)>:")
_LABEL = re.compile(rb"\[\d+,(\d+)\]<std\w+>:|^\s*(\d+): |^\[rank(\d+)\]")
_DATE = re.compile(
    rb"((?:\d{4}-\d\d-\d\d[T ])?\d\d:\d\d:\d\d)(?:[.,](\d{1,9}))?(?:Z|([+-])(\d\d):?(\d\d))?"
)
_EPOCH = re.compile(rb"(?<![\d.:])(1\d{9})\.(\d{1,9})(?![\d.])")

_NUMBERS = re.compile(rb"[\s\d.+\-eE]*+(?:[a-z]\w*+\s++)*+(?:-?\d++\s++)*+")

_LAST_COLUMN = re.compile(r"\d+|sum|prod|max|min|avg|mulsum|none|A")

_LOOK_BACK = 320
_LONGEST_HOST = 255


@dataclass(frozen=True, slots=True)
class LinePart:
    """Part of a line.

    `level` is empty for text without an NCCL header; `cut` is True if another header ended it.
    """

    host: str
    pid: int
    tid: int
    device: int
    level: str
    text: str
    start: int
    cut: bool = False
    stamp: int = -1


def label_of(line: bytes) -> int:
    """Return the rank that a launcher wrote before a line, or -1."""
    match = _LABEL.search(line[:64])
    if match is None:
        return -1
    rank = int(next(group for group in match.groups() if group is not None))
    return rank if rank < MOST_RANKS else -1


def clean(line: bytes) -> bytes:
    """Return a line without the tags of mpirun, which may occur at any position."""
    return _TAG.sub(b"", line) if b">:" in line else line


def _host(host: str, before: bytes, hosts: Collection[str]) -> str:
    """Return the host name without text glued to its start, if the name is known."""
    if not before or host in hosts:
        return host
    ends = (host[at:] for at in range(max(0, len(host) - _LONGEST_HOST), len(host)))
    fitting = [name for name in ends if name in hosts]
    if (
        before[-1:].isspace()
    ):  # a separate word is a name, unless it is the last column of a table
        fitting = [
            name for name in fitting if _LAST_COLUMN.fullmatch(host[: -len(name)])
        ]
        fitting = fitting if _NUMBERS.fullmatch(before) else []
    return max(fitting, key=len) if fitting else host


def parts(line: bytes, hosts: Collection[str]) -> list[LinePart]:
    """Split a line (without tags) where NCCL headers start in it.

    Parameters
    ----------
    line : bytes
        The line.
    known : collection of str
        Known host names. A name directly after other text is cut to the longest known name at its end.
    """
    result: list[LinePart] = []
    start, head = 0, LinePart("", -1, -1, -1, "", "", 0)
    for match in _LEVEL.finditer(line):
        low = max(start, match.start() - _LOOK_BACK)
        before = _BEFORE.search(line, low, match.start())
        assert before is not None  # everything in it is optional
        if before.start() == match.start() > start:
            continue  # words of a message, such as "Test NCCL INFO"
        at = before.start()
        host = (before["host"] or b"").decode()
        name = _host(host, line[start:at], hosts) if host else ""
        at += len(host) - len(name)
        _append(result, head, line[start:at], cut=True)
        level = match[1].decode()
        where = (before["where"] or b"").decode("utf-8", "replace")
        head = LinePart(
            name, int(before["pid"] or -1), int(before["tid"] or -1),
            -1 if before["device"] is None else int(before["device"]),
            level, where, at, False, int(before["stamp"] or -1),
        )  # fmt: skip
        start = match.end()
    _append(result, head, line[start:], cut=False)
    return result


def _append(
    line_parts: list[LinePart], head: LinePart, text: bytes, *, cut: bool
) -> None:
    decoded = text.decode("utf-8", "replace")
    if not head.level and not decoded.strip():
        return
    if head.level == "WARN" and head.text:
        decoded = f"{head.text} {decoded}"
    line_parts.append(replace(head, text=decoded, cut=cut))


@lru_cache(1 << 12)
def _second(text: bytes) -> int:
    """Return a time in whole seconds [s], or -1; since midnight without a date."""
    day, _, clock = text.replace(b"T", b" ").rpartition(b" ")
    year, month, date = (int(part) for part in (day or b"1970-01-01").split(b"-"))
    hour, minute, second = (int(part) for part in clock.split(b":"))
    good = (
        1970 <= year < 2200
        and 1 <= month <= 12
        and 1 <= date <= 31
        and hour < 24
        and minute < 60
    )
    return timegm((year, month, date, hour, minute, second)) if good else NONE


def stamp_ns(text: bytes) -> int:
    """Return the time in the text before a header [ns], or -1; since midnight without a date."""
    match = _DATE.search(text)
    if match is None:
        match = _EPOCH.search(text)
        return NONE if match is None else int(match[1] + match[2].ljust(9, b"0"))
    seconds_text, fraction, sign, hours, minutes = match.groups(b"")
    seconds = _second(seconds_text)
    if seconds < 0:
        return NONE
    if sign:
        offset = 3600 * int(hours) + 60 * int(minutes)
        seconds -= offset if sign == b"+" else -offset
    return seconds * 10**9 + int(fraction.ljust(9, b"0"))


FRONT_BYTES = 48
"""Longest text before a regular header."""


def regular_front(text: bytes) -> tuple[int, int] | None:
    """Return time [ns] and rank in the text before a header; None for other text."""
    if not text:
        return NONE, NONE
    if len(text) > FRONT_BYTES or b"NCCL" in text:
        return None
    if (stamp := stamp_ns(text)) >= 0:
        return stamp, NONE
    label = label_of(text)
    return (NONE, label) if label != NONE or not text.strip(b" []\t") else None
