"""SQLite exports of Nsight Systems: kernels and copies of GPUs, and NCCL's NVTX ranges.

A rank is a process and a GPU of one file; files are read in the order of their names. An NCCL kernel is matched to the
next call of the thread that launched it, since a group launches its kernels after its calls. The payload of the call's
range contains the size; kernels without a range keep their recorded duration. The file is opened read-only, and its
schema is not trusted.
"""

from __future__ import annotations

import re
import sqlite3
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote

from clusim.base.errors import InputError, one_line
from clusim.base.files import note_input
from clusim.base.limits import MOST_RANKS, natural, pause_collector
from clusim.base.terms.dtypes import find_dtype
from clusim.base.terms.operations import ROOTED, full_bytes, operation_starting
from clusim.formats.recordings.model import (
    ABSENT,
    MOST_BYTES,
    PS_PER_NS,
    Event,
    Recording,
)
from clusim.formats.recordings.source import Paths, names_of

KIND = "nsys"
MOST_EVENTS = 2_000_000
"""Maximum number of kernels and copies of all files."""

MOST_NS = 1 << 50
"""Longest recording: 13 days [ns]."""

NEAR_NS = 50_000
"""Longest gap on an idle stream that implies a dependency on an earlier activity [ns]."""

_NAMES = (".sqlite", ".sqlite3", ".db")
_KERNEL = re.compile(r"nccl(?:Dev)?Kernel_([A-Za-z]+)(?:_(\w+))?")
_SIZE = re.compile(
    r'(?:message|msg)[ _]?size[^":=]{0,20}"?\s*[:=]\s*"?(\d{1,18})', re.IGNORECASE
)
_OTHERS = {
    "CUPTI_ACTIVITY_KIND_MEMCPY": "memcpy",
    "CUPTI_ACTIVITY_KIND_MEMSET": "memset",
}


@dataclass(slots=True)
class _Span:
    """GPU activity; times are ns."""

    start: int
    end: int
    stream: str
    name: str
    launch: int
    operation: str = ""
    size: int = 0
    dtype: str = "float32"


@dataclass(slots=True)
class _Ranges:
    """NCCL calls of a thread by operation: start [ns], size [bytes], number of used calls."""

    starts: dict[str, list[int]] = field(default_factory=dict)
    sizes: dict[str, list[int]] = field(default_factory=dict)
    used: Counter[str] = field(default_factory=Counter)

    def take(self, operation: str, launched: int) -> int:
        """Return the size of the next call before a launch; 0 if all are used."""
        at = self.used[operation]
        if at < bisect_right(self.starts.get(operation, []), launched):
            self.used[operation] = at + 1
            return self.sizes[operation][at]
        return 0


def read(paths: Paths) -> Recording:
    """Read the exports of one job: files, or a directory.

    Raises
    ------
    InputError
        A file is not such an export, or is damaged.
    """
    names = list(_files(paths))
    result = Recording(KIND, names[0])
    ranks: list[list[_Span]] = []
    with pause_collector():
        for name in names:
            with closing(_open(name)) as base:
                try:
                    ranks += _ranks(base, name, result.skipped)
                except (sqlite3.Error, UnicodeError) as error:
                    raise _damage_error(name, error) from None
            if len(ranks) > MOST_RANKS or sum(map(len, ranks)) > MOST_EVENTS:
                raise InputError(
                    f"{name}: more than {MOST_EVENTS} kernels; record fewer steps"
                )
        result.num_ranks = len(ranks)
        result.group("all", range(len(ranks)))
        origin = min((span.start for spans in ranks for span in spans), default=0)
        for rank, spans in enumerate(ranks):
            _append(result, rank, spans, origin)
    _assume(result, ranks)
    return result.finish()


def _files(paths: Paths) -> Iterator[str]:
    for name in names_of(paths):
        if Path(name).is_dir():
            inside = [
                str(p)
                for p in Path(name).iterdir()
                if p.name.lower().endswith(_NAMES)
            ]
            if not inside:
                raise InputError(f"{name}: contains no .sqlite file")
            yield from sorted(inside, key=natural)
        else:
            yield name


def _open(name: str) -> sqlite3.Connection:
    if not Path(name).is_file():
        raise InputError(f"{name}: no such file")
    note_input(name)
    try:
        base = sqlite3.connect(f"file:{quote(name)}?mode=ro&immutable=1", uri=True)
        for setting in (
            "trusted_schema = OFF",
            "cell_size_check = ON",
            "query_only = ON",
        ):
            base.execute(f"PRAGMA {setting}")
    except (sqlite3.Error, UnicodeError) as error:
        raise _damage_error(name, error) from None
    base.text_factory = lambda data: data.decode("utf-8", "replace")
    return base


def _damage_error(name: str, error: Exception) -> InputError:
    """Return the error of a damaged file; `text_factory` does not decode names and SQLite's messages."""
    why = one_line(str(error))
    if isinstance(error, UnicodeError) or "decode" in why.lower():
        why = "names of its schema are not UTF-8 text"
    return InputError(
        f"{name}: is damaged, or no export of Nsight Systems: {why}; export it again"
    )


MOST_TEXT = 2_000
"""Maximum number of characters or bytes read per value."""


def _rows(
    base: sqlite3.Connection, table: str, columns: tuple[str, ...]
) -> Iterator[tuple[Any, ...]]:
    """Yield the rows of a table, None for missing columns; empty for anything but a table.

    Only the first `MOST_TEXT` of texts and blobs are read, to limit memory.
    """
    kind = base.execute(
        "SELECT type FROM sqlite_master WHERE name = ?", (table,)
    ).fetchone()
    if kind is None or kind[0] != "table":
        return
    have = {row[1] for row in base.execute(f"PRAGMA table_info({table})")}
    cut = "iif(typeof({0}) IN ('text', 'blob'), substr({0}, 1, {1}), {0})"
    selection = ", ".join(
        cut.format(c, MOST_TEXT) if c in have else "NULL" for c in columns
    )
    yield from base.execute(f"SELECT {selection} FROM {table}")


def _ranks(
    base: sqlite3.Connection, name: str, skipped: Counter[str]
) -> list[list[_Span]]:
    """Return the work of each process's GPUs, in time order."""
    texts = {
        key: str(text)[:400]
        for key, text in _rows(base, "StringIds", ("id", "value"))
    }
    launches = {
        (thread >> 24, number): (start, thread)
        for start, number, thread in _rows(
            base,
            "CUPTI_ACTIVITY_KIND_RUNTIME",
            ("start", "correlationId", "globalTid"),
        )
        if isinstance(thread, int) and isinstance(start, int)
    }
    ranges = _ranges(base, texts)
    result: dict[tuple[int, int], list[_Span]] = {}
    columns = (
        "start", "end", "deviceId", "streamId", "globalPid", "correlationId", "demangledName", "shortName",
    )  # fmt: skip
    for *where, long, short in _rows(base, "CUPTI_ACTIVITY_KIND_KERNEL", columns):
        title = texts.get(long) or texts.get(short) or "kernel"
        _add(result, skipped, where, title)
    for table, title in _OTHERS.items():
        for row in _rows(base, table, columns[:6]):
            _add(result, skipped, list(row), title)
    if not result:
        raise InputError(
            f"{name}: no kernels in it; record with `nsys profile --trace=cuda,nvtx`"
        )
    for (pid, _), spans in result.items():
        spans.sort(key=lambda span: (span.start, span.end))
        for span in spans:
            launched, thread = launches.get(
                (pid >> 24, span.launch), (span.start, -1)
            )
            _resolve(span, ranges.get(thread), launched, skipped)
    return [result[key] for key in sorted(result)]


def _ranges(base: sqlite3.Connection, texts: dict[Any, str]) -> dict[int, _Ranges]:
    """Return the NCCL calls by thread."""
    rows = []
    columns = ("start", "globalTid", "text", "textId", "jsonText", "jsonTextId")
    for start, thread, text, number, payload, other in _rows(
        base, "NVTX_EVENTS", columns
    ):
        title = text if isinstance(text, str) else texts.get(number, "")
        operation = operation_starting(title[4:]) if title.startswith("nccl") else ""
        if (
            not operation
            or not isinstance(start, int)
            or not isinstance(thread, int)
        ):
            continue
        about = payload if isinstance(payload, str) else texts.get(other, "")
        size = _SIZE.search(f"{about[:2000]} {title[:200]}")
        rows.append(
            (start, thread, operation, min(int(size[1]), MOST_BYTES) if size else 0)
        )
    result: dict[int, _Ranges] = {}
    for start, thread, operation, size_bytes in sorted(rows):
        ranges = result.setdefault(thread, _Ranges())
        ranges.starts.setdefault(operation, []).append(start)
        ranges.sizes.setdefault(operation, []).append(size_bytes)
    return result


def _add(
    spans: dict[tuple[int, int], list[_Span]],
    skipped: Counter[str],
    where: list[Any],
    title: str,
) -> None:
    """Keep a row if its times are plausible."""
    numbers = [value if isinstance(value, int) else 0 for value in where]
    start, end, device, stream, pid, launch = numbers
    if (
        not 0 <= start <= end < start + MOST_NS
        or start > 1 << 62
        or not 0 <= device < MOST_RANKS
    ):
        skipped["kernels and copies with invalid times"] += 1
        return
    spans.setdefault((pid, device), []).append(
        _Span(start, end, str(stream), title, launch)
    )


def _resolve(
    span: _Span, ranges: _Ranges | None, launched: int, skipped: Counter[str]
) -> None:
    """Assign operation, size and type of its call to an NCCL kernel."""
    match = _KERNEL.search(span.name)
    if match is None:
        return
    operation = operation_starting(match[1])
    size = (
        ranges.take(operation, launched) if ranges is not None and operation else 0
    )
    if not size or operation in ("send", "recv", "sendrecv"):
        skipped[
            "kernels of NCCL without a size: kept as kernels of their recorded length"
        ] += 1
        return
    words = (match[2] or "").split("_")
    dtype = next((kind for word in words if (kind := find_dtype(word))), None)
    span.operation, span.size = operation, size
    span.dtype = dtype.name if dtype else "uint8"


def _append(
    recording: Recording, rank: int, spans: list[_Span], origin: int
) -> None:
    """Append the events of a rank."""
    first, calls = len(recording.events), 0
    last: dict[str, int] = {}
    latest = -1  # span with the latest end
    for at, span in enumerate(spans):
        before = last.get(span.stream, -1)
        idle = spans[before].end if before >= 0 else -1
        deps: tuple[int, ...] = ()
        if latest >= 0 and spans[latest].stream != span.stream:
            ended = spans[latest].end
            if idle < ended <= span.start <= ended + NEAR_NS:
                deps = (first + latest,)
        start, length = (
            (span.start - origin) * PS_PER_NS,
            (span.end - span.start) * PS_PER_NS,
        )
        where = f"{recording.name}: kernel {at}"
        if span.operation:
            event = Event(
                "collective", rank, span.stream, span.name, deps, start, length or ABSENT, group=0, sequence=calls,
                operation=span.operation, bytes=full_bytes(span.operation, span.size, recording.num_ranks),
                dtype=span.dtype, root=0 if span.operation in ROOTED else ABSENT, where=where,
            )  # fmt: skip
            calls += 1
        else:
            event = Event(
                "compute",
                rank,
                span.stream,
                span.name,
                deps,
                start,
                length,
                sms=1,
                where=where,
            )
        recording.events.append(event)
        last[span.stream] = at
        if latest < 0 or span.end > spans[latest].end:
            latest = at


def _assume(recording: Recording, ranks: list[list[_Span]]) -> None:
    """Add the assumptions; raise `InputError` if the ranks' sequences of collectives differ."""
    calls = [
        [(s.operation, s.size) for s in spans if s.operation] for spans in ranks
    ]
    if any(row != calls[0] for row in calls):
        raise InputError(
            f"{recording.name}: ranks have different collectives"
            f" (number: {', '.join(str(len(row)) for row in calls[:8])}); communicators are not"
            " recorded in exports, so only jobs with one can be read"
        )
    if any(calls):
        recording.assumed.append(
            f"all collectives are of one communicator of all {len(ranks)} ranks in the files"
        )
        recording.assumed.append(
            "roots and reductions are not recorded; rank 0, and sums"
        )
    recording.assumed.append(
        f"kernels that began on an idle stream at most {NEAR_NS // 1000} us after the end of another waited for it"
    )
