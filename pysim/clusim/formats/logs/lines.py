"""Split of a line into parts with writer and message: ranks write into each other's lines."""

from __future__ import annotations

import re
from calendar import timegm
from collections.abc import Collection
from dataclasses import dataclass

from clusim.base.limits import MOST_RANKS

_LEVEL = re.compile(rb"NCCL (INFO|WARN|TRACE|CALL|ABORT|VERSION) ?")
_BEFORE = re.compile(
    rb"(?:(?P<host>[A-Za-z0-9_][\w.-]{0,255}):(?P<pid>\d{1,10}):(?P<tid>\d{1,10}) )?"
    rb"(?:\[(?P<device>-?\d{1,4})\] )?"
    rb"(?:(?P<stamp>\d{12,20}) |(?:\d{1,18}\.\d{1,18} )?(?P<where>[\w/.-]{1,255}:\d{1,9}) )?$"
)
_TOKEN = re.compile(
    rb"(?P<tag>.*?)(?P<host>[A-Za-z0-9_][\w.-]{0,255}):(?P<pid>\d{1,10}):(?P<tid>\d{1,10})$",
    re.DOTALL,
)
_TAG = re.compile(rb"\[\d+,(\d+)\]<std(?:out|err|diag)>:")
_LABEL = re.compile(rb"\[\d+,(\d+)\]<std\w+>:|^\s*(\d+): |^\[rank(\d+)\]")
_DATE = re.compile(
    rb"(?:(\d{4})-(\d\d)-(\d\d)[T ])?(\d\d):(\d\d):(\d\d)(?:[.,](\d{1,9}))?(?:Z|([+-])(\d\d):?(\d\d))?"
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


def token(text: bytes) -> tuple[bytes, str, int, int] | None:
    """Return tag, host, process and thread of ``host:pid:tid``, or None."""
    match = _TOKEN.match(text)
    if match is None:
        return None
    return match["tag"], match["host"].decode(), int(match["pid"]), int(match["tid"])


def _host(host: str, before: bytes, known: Collection[str]) -> str:
    """Return the host name without text glued to its start, if the name is known."""
    if not before or host in known:
        return host
    ends = (host[at:] for at in range(max(0, len(host) - _LONGEST_HOST), len(host)))
    fitting = [name for name in ends if name in known]
    if before[-1:].isspace():  # a separate word is a name, unless it is the last column of a table
        fitting = [name for name in fitting if _LAST_COLUMN.fullmatch(host[: -len(name)])]
        fitting = fitting if _NUMBERS.fullmatch(before) else []
    return max(fitting, key=len) if fitting else host


def parts(line: bytes, known: Collection[str]) -> list[LinePart]:
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
        name = _host(host, line[start:at], known) if host else ""
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


def _append(found: list[LinePart], head: LinePart, text: bytes, *, cut: bool) -> None:
    shown = text.decode("utf-8", "replace")
    if not head.level and not shown.strip():
        return
    if head.level == "WARN" and head.text:
        shown = f"{head.text} {shown}"
    found.append(
        LinePart(
            head.host, head.pid, head.tid, head.device, head.level, shown, head.start, cut,
            head.stamp,
        )
    )  # fmt: skip


def stamp_ns(text: bytes) -> int:
    """Return the time in the text before a header [ns], or -1; since midnight without a date."""
    match = _DATE.search(text)
    if match is not None:
        year, month, day, *clock = match.groups()[:6]
        hour, minute, second = (int(part) for part in clock)
        fraction = int(((match[7] or b"") + b"000000000")[:9])
        date = (int(year), int(month), int(day)) if year else (1970, 1, 1)
        if not 1970 <= date[0] < 2200:
            return -1
        if not (1 <= date[1] <= 12 and 1 <= date[2] <= 31 and hour < 24 and minute < 60):
            return -1
        seconds = timegm((*date, hour, minute, second))
        if match[8]:
            offset = 3600 * int(match[9]) + 60 * int(match[10])
            seconds -= offset if match[8] == b"+" else -offset
        return seconds * 10**9 + fraction
    if match := _EPOCH.search(text):
        return int(match[1]) * 10**9 + int((match[2] + b"000000000")[:9])
    return -1
