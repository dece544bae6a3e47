"""Tables of nccl-tests as measurements, even if other lines were written into their rows."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from clusim.base.terms.dtypes import IN_TABLES, REDUCTIONS
from clusim.base.terms.operations import OPERATIONS
from clusim.formats.logs.infer_collective import TableColumns, infer_collective

_NUMBER = r"(?:\d{1,18}(?:\.\d{1,18})?(?:[eE][+-]?\d{1,9})?|nan|inf|-nan|N/A)"
_TYPES = "|".join(sorted(IN_TABLES, reverse=True))
_ROW = re.compile(
    rf"\s*(\d{{1,18}})\s+(\d{{1,18}})\s+({_TYPES})(?=\s|$|[a-z-])(.*)$"
)
_VALUES = re.compile(rf"\s*{_NUMBER}(?:\s+{_NUMBER})*\s*$")
_ROOT = re.compile(r"-?\d{1,9}")
_LIKE_ROW = re.compile(rf"\s*\d[\d,.']{{0,30}}\s+\d[\d,.']{{0,30}}\s+(?:{_TYPES})\s")
_OLD_TITLES = {"bytes": "size", "N": "count", "op": "redop", "res": "error"}
"""Titles of nccl-tests up to 2.0 (2019), which printed times in milliseconds."""

_OPS = (*REDUCTIONS, "mulsum", "none", "all")
_RANK = re.compile(
    r"#\s+Rank\s+(\d{1,9})(?:\s+Group\s+(\d{1,9}))?(?:\s+Pid\s+(\d{1,9}))?\s+on\s+(\S+)\s+device\s+(\d{1,9})"
    r"\s+\[(?:0x)?([0-9a-fA-F:.]+)\]\s*(.*?)\s*$"
)
_CONFIG = re.compile(r"(?<!\w)(\w{1,40}(?: iters)?):? (\d{1,18})(?=[\s(]|$)")
_STARTED = re.compile(r"#\s*Collective test starting:\s*(\w+)")
_CONCLUDED = re.compile(r"#\s*Collective test concluded")
_TESTS = re.compile(
    r"#\s*nccl-tests version (\S+)(?: nccl-headers=(\d{1,9}))?(?: nccl-library=(\d{1,9}))?"
)
_AVERAGE = re.compile(rf"#\s*Avg bus bandwidth\s*:\s*({_NUMBER})\s*$")
_BOUNDS = re.compile(r"#\s*Out of bounds values\s*:\s*(\d{1,18})\b\s*(\w*)")
_COMMAND = re.compile(
    rf"\b({'|'.join(item.test for item in OPERATIONS.values() if item.test)})_perf\b"
)
_FAILURE = re.compile(r"Test (?:NCCL |CUDA )?failure\b.*")

MOST_ROWS = 1 << 17
"""Maximum number of stored rows per file; later rows are counted."""

MOST_RUNS = 1 << 16
"""Maximum number of runs per file; rows of later runs are added to the last."""


@dataclass(frozen=True, slots=True)
class TableDevice:
    """A rank of nccl-tests with host and GPU; `bus` is the bus number, -1 if not printed."""

    rank: int
    group: int
    pid: int
    host: str
    device: int
    bus: str
    name: str


@dataclass(slots=True)
class TableRun:
    """One run of an nccl-tests program and its rows; us and GB/s, nan for missing values."""

    source: str
    line: int
    number: int = 0
    config: dict[str, int] = field(default_factory=dict)
    test: str = ""
    version: str = ""
    library: str = ""
    devices: list[TableDevice] = field(default_factory=list)
    header: tuple[str, ...] = ()
    halves: int = 0
    milliseconds: bool = False
    sizes: list[int] = field(default_factory=list)
    counts: list[int] = field(default_factory=list)
    types: list[str] = field(default_factory=list)
    ops: list[str] = field(default_factory=list)
    roots: list[int] = field(default_factory=list)
    values: list[tuple[float, ...]] = field(default_factory=list)
    row_lines: list[int] = field(default_factory=list)
    average_busbw: float = float("nan")
    wrong: int = -1
    failures: list[str] = field(default_factory=list)
    reduced: str = ""
    broken: int = 0
    broken_line: int = 0
    ended: bool = False
    known: tuple[tuple[int, int, str], tuple[str, int]] | None = None

    def column(self, name: str) -> NDArray[np.float64]:
        """Return time, algbw, busbw, error, time_in_place, ... as an array."""
        names = ("time", "algbw", "busbw", "error")
        base = name.removesuffix("_in_place")
        index = names.index(base) + (4 if base != name else 0)
        return np.array([row[index] for row in self.values], np.float64)

    @property
    def n_ranks(self) -> int:
        """Number of ranks listed, or that of the rows if list lines are missing; 0 if unknown."""
        return self._infer_test()[1]

    @property
    def is_complete(self) -> bool:
        """True if every rank has its line."""
        return (
            bool(self.devices)
            and len({device.rank for device in self.devices}) == self.n_ranks
        )

    def collective(self) -> str:
        """Return the collective as printed, else inferred from the columns (all names that fit)."""
        return self._infer_test()[0]

    def _infer_test(self) -> tuple[str, int]:
        key = (len(self.sizes), len(self.devices), self.test)
        if self.known is None or self.known[0] != key:
            ranks = {device.rank for device in self.devices}
            min_ranks = max(ranks, default=-1) + 1
            one = len({device.pid for device in self.devices}) == 1
            gpus_per_process = self.config.get("nThread", 0) * self.config.get(
                "nGpus", 0
            )
            columns = TableColumns(
                self.source, len(ranks) if len(ranks) == min_ranks else 0, min_ranks,
                one and gpus_per_process == len(ranks) > 1, self.header, self.sizes, self.counts,
                self.types, self.ops, self.roots, self.column("algbw"), self.column("busbw"),
            )  # fmt: skip
            self.known = (
                key,
                infer_collective(columns, self.test.removesuffix("_perf")),
            )
        return self.known[1]


def _in_us(values: list[float], milliseconds: bool) -> tuple[float, ...]:
    """Return the existing values of a row (up to eight), with times in us."""
    row = [*values, *[float("nan")] * 4][:8]
    if milliseconds:
        row[0], row[4] = 1000 * row[0], 1000 * row[4]
    return tuple(row)


def _float(word: str) -> float:
    return float("nan") if word == "N/A" else float(word)


class TableReader:
    """Reader of the nccl-tests lines of one file, in order; other programs' lines are refused."""

    def __init__(self, source: str) -> None:
        """Start with no run open."""
        self.source = source
        self.runs: list[TableRun] = []
        self.command = ""
        self.rows = 0
        self._head: tuple[int, int, str, str, int] | None = None
        self._values: list[float] = []
        self._line = 0

    @property
    def open(self) -> bool:
        """True if a table has started, so that lines of numbers may be its rows."""
        return bool(self.runs) and bool(self.runs[-1].header)

    @property
    def in_row(self) -> bool:
        """True if a row lacks numbers, which the next line may contain."""
        return self._head is not None

    def comment(self, text: str, line: int) -> bool:
        """Read a line that starts with #."""
        if match := _RANK.match(text):
            rank, group, pid, host, device, bus, name = match.groups()
            run = self._run(line)
            run.devices.append(
                TableDevice(
                    int(rank),
                    int(group or 0),
                    int(pid or -1),
                    host,
                    int(device),
                    bus,
                    name,
                )
            )
            return True
        bare = text[1:].strip()
        if bare.startswith("nThread ") or (
            bare.startswith("minBytes ") and "maxBytes" in bare
        ):
            run = self._begin(line)
            run.config = {name: int(value) for name, value in _CONFIG.findall(bare)}
            return True
        if bare.startswith(("size ", "bytes ")) and "time" in bare.split():
            self._header(
                [_OLD_TITLES.get(name, name) for name in bare.split()], line
            )
            self.runs[-1].milliseconds = bare.startswith("bytes ")
            return True
        if match := _STARTED.match(text):
            self._begin(line).test = match[1]
        elif match := _TESTS.match(text):
            run = self._begin(line)
            run.version, run.library = match[1], match[3] or ""
        elif match := _AVERAGE.match(text):
            self._finish()
            run = self._run(line)
            run.average_busbw, run.ended = _float(match[1]), True
        elif match := _BOUNDS.match(text):
            self._finish()
            self._run(line).wrong = int(match[1])
        elif _CONCLUDED.match(text):
            self._finish()
            self._run(line).ended = True
        elif bare.startswith("Reducing maxBytes"):
            self._run(line).reduced = bare
        else:
            return bare in ("", "Using devices") or bare.startswith(
                ("(B)", "out-of-place")
            )
        return True

    def text(self, text: str, line: int) -> bool:
        """Read a line, or a part of a line, that may be a row or a part of a row."""
        if (match := _ROW.match(text)) and self._row(match, line):
            return True
        if match or (self.open and _LIKE_ROW.match(text)):
            # Rows follow the titles: a line that starts like a row has a field that is not a number.
            if self.open and not self.runs[-1].ended:
                self._broken(line)
            return False
        if self._head is not None and _VALUES.match(text):
            return self._take(text)
        if "failure" in text and _FAILURE.search(text):
            self._run(line).failures.append(text.strip()[:200])
            return True
        if (
            not self.command
            and "_perf" in text
            and (command := _COMMAND.search(text))
        ):
            self.command = f"{command[1]}_perf"
        return False

    def _broken(self, line: int) -> None:
        self.runs[-1].broken += 1
        self.runs[-1].broken_line = self.runs[-1].broken_line or line

    def close(self) -> None:
        """Finish an open row at the end of the file."""
        self._finish()

    def _run(self, line: int) -> TableRun:
        return self.runs[-1] if self.runs else self._begin(line)

    def _table(self, line: int) -> TableRun:
        """Return the run of a title or row; after a run's summary, a new run on the same GPUs."""
        last = self._run(line)
        if not last.ended:
            return last
        run = self._begin(line)
        if run is not last and not run.config and not run.devices:
            run.config, run.devices = dict(last.config), list(last.devices)
            run.version, run.library = (
                run.version or last.version,
                run.library or last.library,
            )
            run.header, run.halves = last.header, last.halves
            run.milliseconds = last.milliseconds
        return run

    def _begin(self, line: int) -> TableRun:
        """Open a run, unless the open run has only its first lines."""
        self._finish()
        last = self.runs[-1] if self.runs else None
        if len(self.runs) >= MOST_RUNS:
            self._broken(line)
        elif last is None or last.config or last.header or last.devices:
            self.runs.append(TableRun(self.source, line, test=self.command))
            self.command = ""
        return self.runs[-1]

    def _header(self, names: list[str], line: int) -> None:
        self._finish()
        run = self._table(line)
        end = names.index("time")
        run.header = tuple(names[:end])
        run.halves = names.count("time")

    def _row(self, match: re.Match[str], line: int) -> bool:
        tail = match[4]
        run = self._table(line) if self.runs else None
        header = run.header if run is not None and run.header else None
        op, root = "", -1
        words = tail.split()
        if words and (header is None or "redop" in header):
            named = next((name for name in _OPS if words[0] == name), "")
            # All-gather does not reduce: some releases leave its column blank.
            if named or (
                header is not None
                and not _VALUES.match(words[0])
                and not _ROOT.fullmatch(words[0])
            ):
                op = named or words[0]
                words = words[1:]
        # Without a header, an integer before the times is the root: -1, or a rank.
        numbers = [
            word for word in words if _VALUES.match(word) or _ROOT.fullmatch(word)
        ]
        if len(numbers) != len(words):
            return False
        if words and (
            (header is not None and "root" in header)
            or (
                header is None and len(words) in (5, 9) and _ROOT.fullmatch(words[0])
            )
        ):
            if not _ROOT.fullmatch(words[0]):
                return False
            root, words = int(words[0]), words[1:]
        if header is None and len(words) not in (4, 8):
            return False
        self._finish()
        run = self._run(line)
        self._head = (int(match[1]), int(match[2]), match[3], op, root)
        self._line = line
        if header is None:
            run.halves = max(run.halves, len(words) // 4)
        return self._take(" ".join(words)) if words else True

    def _take(self, text: str) -> bool:
        values = [_float(word) for word in text.split()]
        if len(self._values) + len(values) > 8:
            return False
        self._values += values
        if len(self._values) >= 4 * max(1, self.runs[-1].halves):
            self._finish()
        return True

    def _finish(self) -> None:
        """Store the open row if it has all its numbers."""
        if self._head is None:
            return
        run = self._run(self._line)
        is_complete = len(self._values) in (4, 8)
        self.rows += is_complete
        if is_complete and self.rows <= MOST_ROWS:
            size, count, kind, op, root = self._head
            run.sizes.append(size)
            run.counts.append(count)
            run.types.append(kind)
            run.ops.append(op)
            run.roots.append(root)
            run.values.append(_in_us(self._values, run.milliseconds))
            run.row_lines.append(self._line)
        elif not is_complete:
            self._broken(self._line)
        self._head, self._values = None, []
