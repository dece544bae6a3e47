"""DeepSpeed communication logs: a line per call (``verbose``), or a summary."""

from __future__ import annotations

import re

from clusim.base.errors import InputError
from clusim.base.limits import MOST_RANKS
from clusim.base.terms.operations import GATHERING, ROOTED, operation_starting
from clusim.formats.recordings.model import Event, Recording
from clusim.formats.recordings.source import Paths, lines, only_file

KIND = "deepspeed"

MOST_CALLS = 1_000_000
"""Maximum number of calls of the logging rank."""

_UNITS = {"B": 0, "KB": 10, "MB": 20, "GB": 30, "TB": 40}
_NUMBER = r"(\d{1,12}(?:\.\d{1,6})?)"
_CALL = re.compile(
    rf"rank=(\d{{1,7}}) \| comm op: (\w{{1,60}})[^|]{{0,200}}\| time \(ms\): {_NUMBER}"
    rf" \| msg size: {_NUMBER} ?([KMGT]?B)\b"
)
_TITLE = re.compile(r"Comm\. Op\s+Message Size\s+Count\s+Total Latency")
_NAME = re.compile(r"\s*([a-z]\w{2,60})(?: \| \[Caller Func: \w+\])?\s*$")
_ROW = re.compile(
    rf"\s+{_NUMBER} ?([KMGT]?B)\s+(\d{{1,12}})\s+{_NUMBER}\s+{_NUMBER}\s"
)


def read(
    paths: Paths, *, num_ranks: int | None = None, machine_ranks: int | None = None
) -> Recording:
    """Read a log.

    Parameters
    ----------
    num_ranks, machine_ranks : int or None
        GPUs of the topology, which are the ranks since the log does not contain their number, and GPUs per node.

    Raises
    ------
    InputError
        The log contains no call, or the number of ranks is not given.
    """
    name = only_file(paths, "a log of DeepSpeed")
    if num_ranks is None or not 1 <= num_ranks <= MOST_RANKS:
        raise InputError(
            f"{name}: the number of ranks is not recorded; set --topology and --nodes: all their GPUs are used"
        )
    return _Reader(name, num_ranks).recording()


class _Reader:
    """State of reading one file."""

    def __init__(self, name: str, num_ranks: int) -> None:
        self.name, self.num_ranks = name, num_ranks
        self.found = Recording(KIND, name, num_ranks)
        self.logged = -1
        self.summary = ""
        self.in_table = False

    def recording(self) -> Recording:
        """Read the file."""
        for line, text in lines(self.name):
            if match := _CALL.search(text):
                self._call(match, line)
            elif _TITLE.search(text):
                self.in_table, self.summary = True, ""
            elif self.in_table and (match := _ROW.match(text)):
                self._row(match, line)
            elif self.in_table and (match := _NAME.match(text)):
                self.summary = match[1]
        self.found.group("world", range(self.num_ranks))
        if self.found.events:
            self.found.assumed += [
                f"the number of ranks is not recorded: all {self.num_ranks} GPUs of the topology, one group",
                "sizes are rounded in the log, to two decimals; types are not recorded",
            ]
        return self.found.finish()

    def _call(self, match: re.Match[str], line: int) -> None:
        rank = int(match[1])
        if self.logged < 0:
            if any(event.where for event in self.found.events):
                self.found.events.clear()  # a summary of calls that are also logged individually
            self.logged = rank
        if rank != self.logged:
            self.found.skipped[
                "calls of further ranks, which are taken to be the same"
            ] += 1
            return
        self._add(match[2], _bytes(match[4], match[5]), float(match[3]), line)

    def _row(self, match: re.Match[str], line: int) -> None:
        if self.logged >= 0:
            return
        for _ in range(min(int(match[3]), MOST_CALLS)):
            self._add(
                self.summary, _bytes(match[1], match[2]), float(match[5]), line
            )
            if len(self.found.events) >= MOST_CALLS:
                break

    def _add(self, name: str, size: int, took_ms: float, line: int) -> None:
        operation = operation_starting(name)
        if (
            not operation
            or operation in ("send", "recv")
            or (size == 0 and operation != "barrier")
        ):
            call_words = "of 0 bytes" if operation and not size else f"{name[:40]!r}"
            self.found.skipped[f"calls {call_words}"] += 1
            return
        if len(self.found.events) >= MOST_CALLS:
            self.found.skipped[f"calls after the first {MOST_CALLS}"] += 1
            return
        full = size * self.num_ranks if operation in GATHERING else size
        dtype = "uint8" if full % 2 else "float16"
        self.found.events.append(
            Event(
                "collective", 0, duration_ps=min(round(took_ms * 1e9), 1 << 60) or -1, group=0,
                sequence=len(self.found.events), operation=operation, bytes=full, dtype=dtype,
                root=0 if operation in ROOTED else -1, where=f"{self.name}:{line}",
            )
        )  # fmt: skip


def _bytes(number: str, unit: str) -> int:
    """Return a size [bytes]; DeepSpeed's units are powers of 1024."""
    return min(round(float(number) * (1 << _UNITS[unit])) & ~1, 1 << 44)
