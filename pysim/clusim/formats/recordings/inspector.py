"""Output of NCCL's Inspector plugin: a JSON object per completed call of a rank.

Every object contains its communicator, rank, process and time; in newer files the preceding object of statistics
identifies the rank. Calls of a function are numbered per communicator; different functions are ordered by their
times. The launch groups of sends and receives are not recorded: each waits only for the previous one with the same
peer.
"""

from __future__ import annotations

from collections import Counter
from sys import intern
from typing import Any

from clusim.base.limits import MOST_RANKS
from clusim.formats.recordings.jsonstream import integer, table_of, tables_of
from clusim.formats.recordings.model import ABSENT, MOST_BYTES, PS_PER_US, Recording
from clusim.formats.recordings.plugin_ranks import Owner
from clusim.formats.recordings.plugincalls import (
    MOST_RECORDS,
    PluginCall,
    PluginJob,
    integer_or_absent,
    lower_case_name,
)
from clusim.formats.recordings.source import FileStream, Paths

MOST_US = 1 << 40
"""Longest call: 13 days [us]."""


def read(paths: Paths) -> Recording:
    """Read the files of one job (plain, compressed, a directory or an archive).

    Raises
    ------
    InputError
        The files contain no call of the Inspector, or contradict each other.
    """
    return _Inspector().read(paths)


class _Inspector(PluginJob):
    """Content read so far, with the sources of times, and dropped calls by rank and type."""

    kind = "inspector"
    untyped = (
        "data types are not recorded: float32, and sums where something is reduced"
    )

    def __init__(self) -> None:
        super().__init__()
        self.sources: Counter[str] = Counter()
        self.dropped: dict[tuple[str, int, str], int] = {}

    def settle(self) -> None:
        """Complete nothing: records are whole calls."""

    def file(self, part: FileStream) -> None:
        """Read one file; objects without a header inherit the header of the preceding statistics."""
        header: dict[str, Any] = {}
        for where, record in self.records(part):
            if "dump_stats" in record:
                header = record
                self._statistics(record)
            elif "coll_perf" not in record and "p2p_perf" not in record:
                self.skip("objects that are not a call", where)
            elif len(self.calls) >= MOST_RECORDS:
                self.skip(f"calls after the first {MOST_RECORDS}", where)
            else:
                self._record(
                    record if "header" in record else {**header, **record}, where
                )

    def _statistics(self, record: dict[str, Any]) -> None:
        """Record the number of calls that the plugin dropped."""
        stats, header = (
            table_of(record.get("dump_stats")),
            table_of(record.get("header")),
        )
        rank = integer(header.get("rank"), MOST_RANKS) or 0
        for kind in ("coll", "p2p"):
            lost = integer(stats.get(f"{kind}_dropped_total"))
            if lost and header:
                self.dropped[str(header.get("id")), rank, kind] = lost

    def _record(self, record: dict[str, Any], where: str) -> None:
        """Keep one call."""
        header, about = record.get("header"), table_of(record.get("metadata"))
        if not isinstance(header, dict):
            self.skip("calls without a header", where)
            return
        ident, rank = (
            header.get("id"),
            integer_or_absent(header.get("rank"), MOST_RANKS),
        )
        n_ranks = integer_or_absent(header.get("n_ranks"), MOST_RANKS)
        if not isinstance(ident, (str, int)) or not 0 <= rank < n_ranks:
            self.skip(
                "calls without an id or a rank below n_ranks in their header", where
            )
            return
        call = PluginCall(intern(str(ident)[:64]), rank, where)
        if not self._understand(call, record, n_ranks):
            return
        call.dumped = (
            max(0, integer_or_absent(about.get("dump_timestamp_us"), 1 << 60))
            * PS_PER_US
        )
        host, pid = (
            about.get("hostname"),
            integer_or_absent(about.get("pid"), 1 << 32),
        )
        owner: Owner = (host[:256] if isinstance(host, str) else "", pid)
        if owner == ("", ABSENT):
            # Otherwise each rank of each communicator would be a separate GPU.
            owner = ("", rank)
        self.add(call, owner, n_ranks, integer(header.get("nnodes"), n_ranks) or 0)

    def _understand(
        self, call: PluginCall, record: dict[str, Any], n_ranks: int
    ) -> bool:
        """Complete a call; return False if required data are missing."""
        kind = "coll" if "coll_perf" in record else "p2p"
        perf = record[f"{kind}_perf"]
        if not isinstance(perf, dict):
            self.skip("calls without their figures", call.where)
            return False
        call.size = integer_or_absent(perf.get(f"{kind}_msg_size_bytes"), MOST_BYTES)
        call.number = integer_or_absent(perf.get(f"{kind}_sn"))
        if kind == "p2p":
            call.peer = integer_or_absent(perf.get("p2p_peer"), n_ranks - 1)
        if not self.accept(call, perf.get(kind), message=kind == "p2p"):
            return False
        duration_us = integer_or_absent(perf.get(f"{kind}_exec_time_us"), MOST_US)
        if duration_us == ABSENT:
            self.skip("invalid times: the calls are kept", call.where)
        self.sources[str(perf.get(f"{kind}_timing_source", ""))[:40]] += 1
        call.took = max(0, duration_us) * PS_PER_US
        call.start, call.channels = _kernel_trace(perf, kind)
        call.algorithm, call.protocol = (
            "" if perf.get(key) == "unknown" else lower_case_name(perf.get(key))
            for key in ("coll_algo", "coll_proto")
        )
        return True

    def assume(self) -> None:
        super().assume()
        if all(call.start < 0 for call in self.calls):
            self.found.assume(
                "no start times (NCCL_INSPECTOR_DUMP_VERBOSE=1 records them): calls follow each other without pauses"
            )
        host = sum(
            n
            for source, n in self.sources.items()
            if source and source != "kernel_gpu"
        )
        if host:
            self.found.assume(
                f"{host} calls were timed by the host (kernel_cpu, collective_cpu): measured times are long"
            )
        lost = sum(self.dropped.values())
        if lost:
            self.found.assume(
                f"the plugin itself dropped {lost} calls: NCCL_INSPECTOR_DUMP_COLL_RING_SIZE was too small"
            )


def _kernel_trace(perf: dict[str, Any], kind: str) -> tuple[int, int]:
    """Return the start of the first kernel of a call [ps], and its channels.

    Both are `ABSENT` and 0 without a trace of events.
    """
    trace = table_of(perf.get("event_trace_ts"))
    rows = tables_of(trace.get("kernel_events"))
    starts = [integer(row.get("kernel_start_ts"), 1 << 60) for row in rows]
    began = [start for start in starts if start]
    host = integer(trace.get(f"{kind}_start_ts"), 1 << 60)
    first = min(began) if began else host or 0
    return (first * PS_PER_US if first else ABSENT), min(len(rows), 64)
