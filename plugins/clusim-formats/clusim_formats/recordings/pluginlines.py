"""JSON lines of NCCL's profiler plugins CoMMA and minimal-profiler, one object per event.

CoMMA's object of a call contains its communicator (``comm_hash``), rank, size, and the duration of its proxies and
kernels (``child_dur``; ``dur`` is the enqueue time). minimal-profiler writes events when they end; the duration of a
call is that of its kernels, which are assigned by the call's address. Sizes are the input of a rank, as in NCCL.
"""

from __future__ import annotations

import re
from collections import Counter
from sys import intern
from typing import Any

from clusim.base.limits import MOST_RANKS
from clusim.base.terms.dtypes import find_dtype
from clusim.formats.recordings.jsonstream import integer, table_of
from clusim.formats.recordings.model import ABSENT, MOST_BYTES, PS_PER_NS, Recording
from clusim.formats.recordings.plugincalls import (
    MOST_RECORDS,
    PluginCall,
    PluginJob,
    integer_or_absent,
    lower_case_name,
)
from clusim.formats.recordings.source import FileStream, Paths

_MOST_US = 1 << 52
_LONGEST_US = 1 << 40
_PID = re.compile(r"(?:pid|latency-)(\d{1,9})")
_CALLS = ("ncclProfileColl", "ncclProfileP2p")


def read(paths: Paths) -> Recording:
    """Read the files of one job (plain, compressed, a directory or an archive).

    Raises
    ------
    InputError
        The files contain no call, or contradict each other.
    """
    return _Lines().read(paths)


class _Lines(PluginJob):
    """Content read so far: calls with their file and process, and the ranks of communicators."""

    kind = "jsonl"
    untyped = "elements are taken for float32, and sums where something is reduced"

    def __init__(self) -> None:
        super().__init__()
        self.unplaced: list[tuple[PluginCall, tuple[str, int]]] = []
        self.n_ranks: dict[str, int] = {}
        self.numbers: Counter[tuple[str, int, str, int]] = Counter()
        self.of_address: dict[tuple[int, str], PluginCall] = {}
        self.kernels: dict[tuple[int, str], tuple[int, int]] = {}
        self.untimed = 0

    def file(self, part: FileStream) -> None:
        for where, record in self.records(part):
            if len(self.unplaced) >= MOST_RECORDS:
                self.skip(f"events after the first {MOST_RECORDS} calls", where)
            elif "recordType" in record:
                self._minimal(record, where)
            elif record.get("cat") in ("COLL", "P2P"):
                self._comma(record, part.name, where)
            elif record.get("cat") not in ("PROXY", "GROUP"):
                self.skip("objects that are not a call", where)

    def _comma(self, record: dict[str, Any], name: str, where: str) -> None:
        """Keep a call of CoMMA."""
        comm, rank = (
            record.get("comm_hash"),
            integer_or_absent(record.get("rank"), MOST_RANKS - 1),
        )
        size = integer_or_absent(
            table_of(record.get("args")).get("size"), MOST_BYTES
        )
        if not isinstance(comm, str) or ABSENT in (rank, size):
            self.skip("calls without communicator, rank or size", where)
            return
        call = PluginCall(intern(comm[:64]), rank, where, size=size)
        call.number = (
            integer_or_absent(record.get("seq_num"))
            if record["cat"] == "COLL"
            else ABSENT
        )
        call.start = (
            _time_ps(record.get("child_start_ts", record.get("ts")), _MOST_US) or 0
        )
        call.took = _time_ps(record.get("child_dur"), _LONGEST_US) or 0
        call.channels = integer(record.get("n_max_channel"), 64) or 0
        match = _PID.search(name.rsplit("/", 1)[-1])
        owner = (name, int(match[1]) if match else ABSENT)
        self._keep(call, {**record, "func": record.get("name")}, owner)

    def _minimal(self, record: dict[str, Any], where: str) -> None:
        """Keep a call of minimal-profiler, or the duration of one."""
        if record.get("recordType") != "event" or record.get("isPxn") is True:
            return
        kind, details = record.get("type"), table_of(record.get("details"))
        start, stop = (
            _time_ps(table_of(record.get(key)).get("ts"), _MOST_US)
            for key in ("start", "stop")
        )
        pid = integer(record.get("myPid"), 1 << 32) or 0
        if kind == "ncclProfileKernelCh" and start is not None and stop is not None:
            self._kernel((pid, str(record.get("parentObj"))[:20]), start, stop)
            return
        comm, rank = (
            record.get("commId"),
            integer_or_absent(record.get("rank"), MOST_RANKS - 1),
        )
        if not isinstance(comm, int) or rank == ABSENT:
            if kind in _CALLS:
                self.skip("calls without communicator, rank or size", where)
            return
        name = intern(f"{comm:x}"[:64])
        if kind == "ProfilerLifecycle":
            n_ranks = integer(details.get("nranks"), MOST_RANKS)
            if n_ranks:
                self.n_ranks[name] = max(self.n_ranks.get(name, 0), n_ranks)
        if kind not in _CALLS:
            return
        dtype = find_dtype(str(details.get("dtype")))
        count = integer(details.get("count"), MOST_BYTES)
        if dtype is None or count is None or start is None:
            self.skip("calls without type, count or time", where)
            return
        call = PluginCall(name, rank, where, size=count * dtype.size_bytes)
        call.number = (
            integer_or_absent(details.get("seq"))
            if kind == "ncclProfileColl"
            else ABSENT
        )
        call.start = call.dumped = start
        call.channels = integer(details.get("channels"), 64) or 0
        gpu = str(record.get("gpuUuid", "")).removeprefix("GPU-").replace("-", "")
        owner = (
            "",
            int(gpu, 16) if re.fullmatch(r"[0-9a-fA-F]{1,32}", gpu) else pid,
        )
        if not self._keep(call, details, owner):
            return
        address = (pid, str(record.get("eventAddr"))[:20])
        span = self.kernels.pop(address, None)
        if span is not None and span[0] >= start:
            call.start, call.took = span[0], span[1] - span[0]
        self.of_address[address] = call

    def _kernel(self, address: tuple[int, str], start: int, stop: int) -> None:
        """Record the times of a kernel, for a known call or for one that ends later."""
        call = self.of_address.get(address)
        if call is not None and call.dumped <= start:
            first = start if call.took == 0 else min(call.start, start)
            call.took = max(call.start + call.took if call.took else 0, stop) - first
            call.start = first
            return
        span = self.kernels.get(address, (start, stop))
        self.kernels[address] = (min(span[0], start), max(span[1], stop))

    def _keep(
        self, call: PluginCall, details: dict[str, Any], owner: tuple[str, int]
    ) -> bool:
        """Keep a call; return False if required data are missing."""
        name = details.get("func")
        message = isinstance(name, str) and name.lower() in ("send", "recv")
        counted = message and call.number == ABSENT
        if message:
            call.peer = integer_or_absent(details.get("peer"), MOST_RANKS - 1)
            call.number = max(0, call.number)
        if not self.accept(call, name, message=message):
            return False
        if counted:
            key = (call.comm, call.rank, call.kind, call.peer)
            call.number = self.numbers[key]
            self.numbers[key] += 1
        call.algorithm, call.protocol = (
            lower_case_name(details.get("algo")),
            lower_case_name(details.get("proto")),
        )
        self.unplaced.append((call, owner))
        min_ranks = max(call.rank, call.peer) + 1
        self.n_ranks[call.comm] = max(self.n_ranks.get(call.comm, 0), min_ranks)
        return True

    def settle(self) -> None:
        """Add all calls to the job, since the sizes of communicators are now known."""
        positions: dict[tuple[str, int, str], set[int]] = {}
        for call, owner in self.unplaced:
            positions.setdefault((*owner, call.comm), set()).add(call.rank)
        merged = {owner[:2] for owner, ranks in positions.items() if len(ranks) > 1}
        numbers: dict[tuple[str, int], int] = {}
        for call, owner in self.unplaced:
            # Usually one file per process. A file with several ranks of a communicator contains several processes,
            # which are identified by rank: ranks are assumed to have equal numbers in all communicators.
            pid = (
                owner[1] if not owner[0] else numbers.setdefault(owner, len(numbers))
            )
            process = call.rank if owner in merged else pid
            self.untimed += call.took == 0
            self.add(call, ("", process), max(2, self.n_ranks[call.comm]))
        self.unplaced.clear()
        self.of_address.clear()

    def assume(self) -> None:
        super().assume()
        if self.untimed:
            self.found.assume(
                f"{self.untimed} calls without a time of their kernels or proxies (NCCL_PROFILER_TRACK_PROXYOP,"
                " NCCL_PROFILE_EVENT_MASK): not compared"
            )


def _time_ps(value: Any, limit: int) -> int | None:
    """Return a time in us, possibly with a fraction, in integer ns [ps]; None if invalid."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return round(value * 1000) * PS_PER_NS if 0 <= value <= limit else None
