"""Split of a line into parts with writer and message, and the prefixes of log headers.

Ranks write into each other's lines. A prefix is a timestamp in many forms, or the rank that a launcher
printed.
"""

from __future__ import annotations

import re
from calendar import timegm
from collections.abc import Collection
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from clusim.base.limits import MOST_RANKS
from clusim.formats.logs.digits import word, words
from clusim.formats.logs.repeating import NONE

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


Positions = NDArray[np.int64]

FRONT_BYTES = 48
"""Longest front that is parsed."""

OTHER = -2
"""Marker: text of another line."""

LABEL = -(1 << 40)
"""Offset minus a rank: a launcher's label."""

_LEAST_ROWS = 64


def front(text: bytes) -> tuple[int, int]:
    """Return time [ns] and rank in the text before a header; `OTHER` if it is another line's."""
    stamp, label = stamp_ns(text), label_of(text)
    if len(text) > FRONT_BYTES or b"NCCL" in text:
        return OTHER, NONE
    if stamp >= 0 or label != NONE or not text.strip(b" []\t"):
        return stamp, label
    return OTHER, NONE


def stamps(buffer: NDArray[np.uint8], start: Positions, end: Positions) -> Positions:
    """Return the times of fronts [start, end) in the format of the first, -1 for the others.

    Only the first front is parsed in full. Fronts with digits at the same positions and the same text
    between them differ from it by their digits, each with the weight (seconds, minutes, ...) that it has in
    the first.
    """
    times = np.full(len(start), NONE, np.int64)
    if len(start) < _LEAST_ROWS:
        return times
    first = bytes(buffer[start[0] : end[0]])
    base = stamp_ns(first)
    width = len(first)
    if base < 0 or width > FRONT_BYTES:
        return times
    weights = _weights(first, base)
    if weights is None:
        return times
    # All other characters are equal, including dates and launchers' labels.
    view, good = words(buffer), end - start == width
    for at in range(0, width, 8):
        fixed = bytes(0 if weight else 255 for weight in weights[at : at + 8].tolist())
        value, mask = word(first[at : at + 8])[0], word(fixed)[0]
        good &= (view[start + at] & mask) == value & mask
    time = np.full(len(start), base, np.int64)
    for at in np.flatnonzero(weights).tolist():
        digit = buffer[start + at]
        good &= (digit - np.uint8(ord("0"))) < 10
        time += (digit.astype(np.int64) - first[at]) * weights[at]
    return np.where(good & (time >= 0), time, NONE)


def _weights(text: bytes, base: int) -> NDArray[np.int64] | None:
    """Return the weight of each digit of a time of day [ns]; 0 for other characters and dates."""
    weights = np.zeros(len(text), np.int64)
    for i, byte in enumerate(text):
        if not 48 <= byte <= 57:
            continue
        for other in (byte + 1, byte - 1):
            changed = text[:i] + bytes([other]) + text[i + 1 :]
            if 48 <= other <= 57 and (stamp := stamp_ns(changed)) >= 0:
                weights[i] = (stamp - base) * (other - byte)
                break
    # Months and years differ in length: only digits with a weight below a day may vary.
    weights[np.abs(weights) >= 10**9 * 3600 * 24] = 0
    return weights if weights.any() else None
