"""Output of NCCL's Inspector plugin: a JSON object per completed call of a rank.

Every object contains its communicator, rank, process and time; in newer files the preceding object of statistics
identifies the rank. Calls of a function are numbered per communicator; different functions are ordered by their
times. The launch groups of sends and receives are not recorded: each waits only for the previous one with the same
peer.
"""

from __future__ import annotations

from sys import intern
from typing import Any, NamedTuple

from clusim.base.limits import MOST_RANKS
from clusim.base.terms.operations import ROOTED, operation_written
from clusim.formats.recordings.commranks import Owner
from clusim.formats.recordings.jsonstream import objects
from clusim.formats.recordings.model import ABSENT, EventKind, Recording
from clusim.formats.recordings.plugincalls import (
    MOST_RECORDS,
    MOST_SIZE,
    PluginCall,
    PluginJob,
    read_files,
    recorded,
)
from clusim.formats.recordings.source import FileStream, Paths, integer

KIND = "inspector"
NS_PER_US = 1000
MOST_US = 1 << 40
"""Longest call: 13 days [us]."""


def read(paths: Paths) -> Recording:
    """Read the files of one job (plain, compressed, a directory or an archive).

    Raises
    ------
    InputError
        The files contain no call of the Inspector, or contradict each other.
    """
    job = PluginJob()
    name = read_files(paths, lambda part: _file(job, part))
    return recorded(KIND, name, job, lambda found: _assume(found, job))


def _file(job: PluginJob, part: FileStream) -> None:
    """Read one file; objects without a header inherit the header of the preceding statistics."""
    around: dict[str, Any] = {}

    def damage(line: int) -> None:
        job.skip("texts that are not a complete JSON object", f"{part.name}:{line}")

    for line, record in objects(part, damage):
        where = f"{part.name}:{line}"
        if "dump_stats" in record:
            around = record
            _statistics(job, record)
            continue
        own = record if "header" in record else {**around, **record}
        if "coll_perf" not in record and "p2p_perf" not in record:
            job.skip("objects that are not a call", where)
        elif len(job.calls) >= MOST_RECORDS:
            job.skip(f"calls after the first {MOST_RECORDS}", where)
        else:
            _record(job, own, where)


def _statistics(job: PluginJob, record: dict[str, Any]) -> None:
    """Record the number of calls that the plugin dropped."""
    stats, header = record.get("dump_stats"), record.get("header")
    if not isinstance(stats, dict) or not isinstance(header, dict):
        return
    rank = integer(header.get("rank"), MOST_RANKS) or 0
    for kind in ("coll", "p2p"):
        lost = integer(stats.get(f"{kind}_dropped_total"))
        if lost:
            job.dropped[str(header.get("id")), rank, kind] = lost


def _record(job: PluginJob, record: dict[str, Any], where: str) -> None:
    """Keep one call."""
    header, about = record.get("header"), record.get("metadata")
    if not isinstance(header, dict):
        job.skip("calls without a header", where)
        return
    about = about if isinstance(about, dict) else {}
    ident = header.get("id")
    n_ranks = integer(header.get("n_ranks"), MOST_RANKS)
    rank = integer(header.get("rank"), MOST_RANKS)
    if not isinstance(ident, (str, int)) or not n_ranks or rank is None or rank >= n_ranks:
        job.skip("calls without an id or a rank below n_ranks in their header", where)
        return
    call = _call(job, record, _Seat(intern(str(ident)[:64]), rank, n_ranks), where)
    if call is None:
        return
    call.dumped = (integer(about.get("dump_timestamp_us"), 1 << 60) or 0) * NS_PER_US
    host, pid = about.get("hostname"), integer(about.get("pid"), 1 << 32)
    owner: Owner = (host[:256] if isinstance(host, str) else "", pid if pid is not None else ABSENT)
    if owner == ("", ABSENT):
        # Otherwise each rank of each communicator would be a separate GPU.
        owner = ("", rank)
    nodes = integer(header.get("nnodes"), n_ranks) or 0
    job.add(call, owner, n_ranks, nodes)


class _Seat(NamedTuple):
    """Rank of a communicator."""

    comm: str
    rank: int
    n_ranks: int


def _call(job: PluginJob, record: dict[str, Any], seat: _Seat, where: str) -> PluginCall | None:
    """Return the call of a record; None if required data are missing."""
    comm, rank, n_ranks = seat
    kind = "coll" if "coll_perf" in record else "p2p"
    perf = record[f"{kind}_perf"]
    if not isinstance(perf, dict):
        job.skip("calls without their figures", where)
        return None
    name = perf.get(kind)
    operation = operation_written(name) if kind == "coll" else ""
    what: EventKind = "collective"
    if kind == "p2p" and isinstance(name, str) and name.lower() in ("send", "recv"):
        what = "send" if name.lower() == "send" else "recv"
    elif not operation:
        job.skip(f"calls of {str(name)[:40]!r}, unknown to clusim", where)
        return None
    size = integer(perf.get(f"{kind}_msg_size_bytes"), MOST_SIZE)
    number, took = (
        integer(perf.get(f"{kind}_sn")),
        integer(perf.get(f"{kind}_exec_time_us"), MOST_US),
    )
    peer = integer(perf.get("p2p_peer"), n_ranks - 1) if kind == "p2p" else ABSENT
    if not size or number is None or peer is None or peer == rank:
        job.skip("calls without number, size or peer", where)
        return None
    if took is None:
        job.skip("invalid times: the calls are kept", where)
    job.sources[str(perf.get(f"{kind}_timing_source", ""))[:40]] += 1
    start, channels = _traced(perf, kind)
    return PluginCall(
        comm, rank, what, operation, number, size, (took or 0) * NS_PER_US, start, 0,
        _word(perf.get("coll_algo")), _word(perf.get("coll_proto")), channels, peer, where,
    )  # fmt: skip


def _word(value: Any) -> str:
    known = isinstance(value, str) and len(value) < 40 and value != "unknown"
    return intern(value.lower()) if known else ""


def _traced(perf: dict[str, Any], kind: str) -> tuple[int, int]:
    """Return the start of the first kernel of a call [ns], and its channels.

    Both are `ABSENT` and 0 without a trace of events.
    """
    trace = perf.get("event_trace_ts")
    if not isinstance(trace, dict):
        return ABSENT, 0
    kernels = trace.get("kernel_events")
    rows = [row for row in kernels if isinstance(row, dict)] if isinstance(kernels, list) else []
    starts = [integer(row.get("kernel_start_ts"), 1 << 60) for row in rows]
    began = [start for start in starts if start]
    own = integer(trace.get(f"{kind}_start_ts"), 1 << 60)
    first = min(began) if began else own or 0
    return (first * NS_PER_US if first else ABSENT), min(len(rows), 64)


def _assume(found: Recording, job: PluginJob) -> None:
    """Add the assumptions about missing information."""
    found.assumed.append(
        "data types are not recorded: float32, and sums where something is reduced"
    )
    kinds = {call.operation for call in job.calls}
    if kinds & set(ROOTED):
        found.assumed.append("roots are not recorded; taken as rank 0 of the communicator")
    if any(call.kind != "collective" for call in job.calls):
        found.assumed.append(
            "sends and receives wait only for previous ones with the same peer: groups are not recorded"
        )
    if len(job.comms) > 1:
        found.assumed.append("communicators run concurrently unless their order is recorded")
    if all(call.start < 0 for call in job.calls):
        found.assumed.append(
            "no start times (NCCL_INSPECTOR_DUMP_VERBOSE=1 records them): calls follow each other without pauses"
        )
    host = sum(n for source, n in job.sources.items() if source and source != "kernel_gpu")
    if host:
        found.assumed.append(
            f"{host} calls were timed by the host (kernel_cpu, collective_cpu): measured times are long"
        )
    lost = sum(job.dropped.values())
    if lost:
        found.assumed.append(
            f"the plugin itself dropped {lost} calls: NCCL_INSPECTOR_DUMP_COLL_RING_SIZE was too small"
        )
