"""Log files as blocks of complete lines, without text that launchers and log collectors add around them.

Files are plain, gzip, bzip2 or xz, or standard input. Damage is reported to the caller as a sentence, and the file is
read up to it.

Always removed are Docker's JSON around lines, colours, Ray's actor names and repeat counts, and the names of torchrun
and Kubernetes. Pasted tables of nccl-tests lose the pipes of a web page and a launcher's tags inside rows, and the
``#`` of their titles and lists is restored. A host, rank or time before the lines of a table is removed if the title of
the table has one. Prefixes of NCCL's lines contain ranks and times, and are parsed instead.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import IO

import numpy as np

from clusim.base.files import note_input
from clusim.base.terms.dtypes import IN_TABLES
from clusim.formats.opened import DAMAGED, LINE_LIMIT, open_file, unpack_stream

BLOCK_BYTES = 1 << 20
"""Block size of reads [B]."""

STDIN = "-"
"""The name that means standard input."""


@contextmanager
def _open(name: str) -> Iterator[IO[bytes]]:
    if name == STDIN:
        note_input(name)
        yield unpack_stream(sys.stdin.buffer, "standard input")
        return
    with open_file(name) as stream:
        yield stream


def _read(stream: IO[bytes], report: Callable[[str], None], done: int) -> bytes:
    """Return the next bytes of a log, empty at its end or where it is damaged."""
    some = getattr(stream, "read1", stream.read)
    parts: list[bytes] = []
    size = 0
    while size < BLOCK_BYTES:
        try:
            part = some(BLOCK_BYTES - size)
        except DAMAGED as error:
            report(
                f"the compressed data are damaged or cut {_after(done + size)} ({error})"
            )
            break
        except OSError as error:
            report(
                f"cannot be read {_after(done + size)} ({error.strerror or error})"
            )
            break
        if not part:
            break
        parts.append(part)
        size += len(part)
    return b"".join(parts)


def _plain(data: bytes) -> bytes:
    """Replace every kind of line end by a newline, also carriage returns of progress bars."""
    if b"\r" in data:
        data = data.replace(b"\r\n", b" \n").replace(b"\r", b"\n")
    return data


def blocks(name: str, report: Callable[[str], None]) -> Iterator[bytes]:
    """Yield the lines of the log `name`, some at a time; the last always ends with a newline.

    Parameters
    ----------
    name : str
        A path, or ``-`` for standard input.
    report : callable
        Called with one sentence for each error in the file.

    Raises
    ------
    InputError
        If the file does not exist or cannot be opened.
    """
    done, carry, skipping = 0, b"", False
    with _open(name) as stream:
        while data := _read(stream, report, done):
            done += len(data)
            if data.endswith(b"\r"):  # possibly the first half of a line end
                data += stream.read(1)
            data = _plain(data)
            if skipping:
                end = data.find(b"\n")
                if end < 0:
                    continue
                data, skipping = data[end + 1 :], False
            cut = data.rfind(b"\n") + 1
            if cut:
                yield carry + data[:cut]
                carry = data[cut:]
            else:
                carry += data
            if len(carry) > LINE_LIMIT:
                report(
                    f"a line is longer than {LINE_LIMIT >> 20} MiB, {_after(done)}; only its start is read"
                )
                yield carry[:LINE_LIMIT] + b"\n"
                carry, skipping = b"", True
    if carry:
        yield carry + b"\n"


def _after(done: int) -> str:
    return f"after {done / 1e6:.1f} MB"


_COLOUR = re.compile(rb"\x1b\[[0-9;]{0,32}[A-Za-z]")
_ACTOR = re.compile(
    rb"^(?:\([A-Za-z][\w.:-]{0,80}(?: rank=\d{1,9})? pid=\d{1,9}(?:, ip=[\w.:-]{1,64})?\) ?)+",
    re.MULTILINE,
)
_REPEATED = re.compile(
    rb" ?\[repeated (\d{1,9})x across cluster\](?: \(Ray deduplicates[^\n]{0,400})?"
)
_DOCKER = re.compile(
    rb'^\{"log":"((?:[^"\\\n]|\\.){0,65536}?)(?:\\n)?","stream":"std(?:out|err)"[^\n]{0,400}\}$',
    re.MULTILINE,
)
_ESCAPED = re.compile(rb'\\(["\\/t]|u003[ce])')
_LETTERS = {b"t": b" ", b"u003c": b"<", b"u003e": b">"}
_NAMED = re.compile(
    rb"^(?:\[(?:default|trainer)\d{1,9}\]:|\[pod/[\w./-]{1,300}\] ?|[a-z][\w.-]{0,80}-\d{1,9} +\| )",
    re.MULTILINE,
)
_TAGGED = re.compile(
    rb"^(?:[A-Z][a-z]{2} [A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d \d{4}(?=\[)|(?=\[prterun))"
    rb"\[(?:[\w.-]{1,200}@)?(\d{1,9},\d{1,9})\]<std(?:out|err|diag)>:",
    re.MULTILINE,
)
"""Rank tags of PRRTE (Open MPI 5), with the job's name, and of Open MPI 4 after times."""

_COMPOSED = re.compile(rb"\n[a-z][\w.-]{0,80}-\d{1,9} +\| ")
"""Name before a line of Docker Compose: ``worker-1  | ``."""

_TITLE = re.compile(
    rb"^(.{0,200}?)# {0,16}(?:nThread |size .{0,80}time +algbw)", re.MULTILINE
)
_FRONT = re.compile(
    rb"^[ \t]{0,16}(?:\[[\w/.,:@-]{1,80}\]:?|(?:> ?){1,4}"
    rb"|[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d [\w.-]{1,80} [\w./-]{1,40}\[\d{1,10}\]:"
    rb"|[\w.-]{1,80}:(?=[ \t])|(?:\d{4}-\d\d-\d\d[T ])?\d\d:\d\d:\d\d"
    rb"(?:[.,]\d{1,9})?(?:Z|[+-]\d\d:?\d\d)?|[a-z][\w.-]{0,80}-[\w-]{1,20})[ \t]?"
    rb"(?=[ \t]*(?:#|\d{1,18}[ \t]+\d{1,18}[ \t]+[a-z]))",
    re.MULTILINE,
)


_TYPES = "|".join(sorted(IN_TABLES, reverse=True)).encode()
_TYPE_PARTS = [
    word.encode()
    for word in IN_TABLES
    if not any(o in word for o in IN_TABLES if o != word)
]
"""Parts of types' names: each name has at least one."""

_CELL = re.compile(rb"\||\xe2\x94[\x82\x83]")
"""A pipe, or the bar of a drawn box."""

_RULE = re.compile(rb"[-:\s|+=\x80-\xff]*")
_ROW = re.compile(
    rb"(?<![\w.])\d{1,18} +\d{1,18} +(?:" + _TYPES + rb")(?=[ \[-]|$)", re.MULTILINE
)
_NUMBERS = rb"(?: +(?:-?[\d.]+(?:[eE][+-]?\d+)?|N/A|-?nan|inf))"
_COLUMNS = re.compile(rb"(?: +[a-z]{1,8})?" + _NUMBERS + rb"* *")
_TAG = re.compile(
    rb"\[\d{1,9}(?:,\d{1,9})?\](?:<std(?:out|err|diag)>)?:?|(?<= )\d{1,9}:(?= )"
)
"""A launcher's tag, which also occurs between the columns of a row printed in parts."""

_REST = re.compile(rb" *(?:\[\d{1,9}\]:?|\d{1,9}:)(?=" + _NUMBERS + rb"{3,9} *$)")
"""A tag before the last columns of a row."""

_LEAD = re.compile(
    rb"(?:\[\d{1,9}(?:,\d{1,9})?\](?:<std(?:out|err|diag)>)?:?|\d{1,9}:|[ >])*"
)
_UNITS = re.compile(rb"(?<! ) *\((?:B|elements|us|GB/s)\)")
_TITLES = re.compile(
    rb"nThread \d|Using devices|Rank +\d+ .{0,80}\bon +\S+ +device +\d|(?:size|bytes) .{0,80}\btime .{0,40}\balgbw"
    rb"|Out of bounds values *:|Avg bus bandwidth *:|Collective test (?:starting|concluded)|nccl-tests version "
)


def _restore_table_line(line: bytes) -> bytes:
    """Return a line of a table of nccl-tests as the program printed it; other lines unchanged."""
    # `find` is faster than `in`, which first tries to convert its operand to an integer.
    if len(line) > 2000 or line.find(b"NCCL INFO") >= 0:
        return line
    plain = line
    if len(_CELL.findall(line)) > 2:
        plain = b" " if _RULE.fullmatch(line) else _CELL.sub(b" ", line)
    row = _ROW.search(plain)
    if row is not None:
        columns = _TAG.sub(b" ", plain[row.end() :])
        if not _COLUMNS.fullmatch(columns):
            return line
        start = row.start() if _LEAD.fullmatch(plain, 0, row.start()) else 0
        return _FRONT.sub(b"", plain[start : row.end()] + columns)
    if tail := _REST.match(plain):
        return b" " + plain[tail.end() :]
    lead = _LEAD.match(plain)
    title = plain[lead.end() if lead else 0 :].lstrip(b"# ")
    if b"algbw" in title:
        title = _UNITS.sub(b"", title)
    return b"#  " + title if _TITLES.match(title) else line


class Dressing:
    """Line prefixes and suffixes of one file; `repeats` counts the lines that Ray omitted."""

    def __init__(self) -> None:
        """Start before the first line of the file."""
        self._tables = False
        self.repeats = 0

    def off(self, data: bytes) -> bytes:
        """Return a block of complete lines without added text; the number of lines stays the same."""
        # Most blocks contain only plain lines; a search for one byte is ten times faster than one for several.
        if b"\x1b" in data:
            data = _COLOUR.sub(b"", data)
        if b"\xc2" in data:  # copied from a web page
            data = data.replace(b"\xc2\xa0", b" ")
        if b"<" in data and b"]<std" in data:
            data = _TAGGED.sub(rb"[\1]<stdout>:", data)
        if b"\t" in data:  # tables from a spreadsheet or an editor
            data = data.replace(b"\t", b" ")
        firsts = _first_bytes(data)
        if ord("{") in firsts and b'{"log":"' in data:
            data = _DOCKER.sub(_unescape_text, data)
        if ord("(") in firsts and b" pid=" in data:
            data = _ACTOR.sub(b"", data)
        if ord("(") in firsts and b"x across cluster]" in data:
            self.repeats += sum(
                int(match[1]) - 1 for match in _REPEATED.finditer(data)
            )
            data = _REPEATED.sub(b"", data)
        tagged = ord("[") in firsts and any(
            tag in data for tag in (b"[default", b"[pod/", b"[trainer")
        )
        if tagged or (b" | " in data and _COMPOSED.search(b"\n" + data)):
            data = _NAMED.sub(b"", data)
        plain = data.count(b" NCCL INFO ") >= data.count(b"\n")
        typed = not plain and any(part in data for part in _TYPE_PARTS)
        piped = typed and (b"|" in data or b"\xe2\x94" in data)
        if typed and _ROW.search(_CELL.sub(b" ", data) if piped else data):
            data = b"\n".join(
                _restore_table_line(line) for line in data.split(b"\n")
            )
        if (
            not self._tables
            and b"#" in data
            and (b"nThread " in data or b" algbw" in data)
        ):
            title = _TITLE.search(data)
            self._tables = title is not None and bool(title[1].strip())
        if not self._tables:
            return data
        return b"\n".join(
            line if line.find(b" NCCL INFO ") >= 0 else _FRONT.sub(b"", line)
            for line in data.split(b"\n")
        )


def _unescape_text(match: re.Match[bytes]) -> bytes:
    """Return the text of a line of Docker's log files."""
    return _ESCAPED.sub(lambda letter: _LETTERS.get(letter[1], letter[1]), match[1])


def _first_bytes(data: bytes) -> set[int]:
    """Return the first bytes of the lines of a block."""
    buffer = np.frombuffer(data, np.uint8)
    at = np.flatnonzero(buffer[:-1] == ord("\n")) + 1
    return {
        *buffer[:1].tolist(),
        *np.flatnonzero(np.bincount(buffer[at], minlength=1)).tolist(),
    }
