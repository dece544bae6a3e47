"""What NCCL's Inspector plugin writes: one JSON object for every call a rank completed, with its time.

Every object names its communicator, its rank and its process (or the object in front of it does, in newer files).
Calls of a function are numbered per communicator; the order of different functions is that of their times. Of sends
and receives nothing tells which were launched together: one waits for the one before with the same peer only.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from clusim.errors import InputError
from clusim.formats.recordings.common import (
    MOST_RANKS,
    Groups,
    clone_peers,
    finish,
)
from clusim.formats.recordings.commranks import Owner, RecordedComm, World, world_of
from clusim.formats.recordings.model import ABSENT, Event, EventKind, Recording
from clusim.formats.recordings.objects import objects
from clusim.formats.recordings.source import Paths, integer
from clusim.formats.recordings.streams import FileStream, streams
from clusim.vocabulary.operations import ROOTED, full_bytes, operation_starting

__all__ = ["KIND", "MOST_RECORDS", "read"]

KIND = "inspector"
US = 1_000_000
MOST_RECORDS = 2_000_000
"""Records that are read; more are counted."""

MOST_US = 1 << 40
"""Longest call: 13 days [us]."""

MOST_SIZE = 1 << 44
"""Largest message [bytes]."""

_NAMES = (".json", ".jsonl", ".log", ".txt", ".gz", ".bz2", ".xz")


@dataclass(slots=True)
class _Call:
    """One record: times are us since 1970."""

    comm: str
    rank: int
    kind: EventKind
    operation: str
    number: int
    size: int
    took: int
    start: int
    dumped: int
    algorithm: str
    protocol: str
    channels: int
    peer: int
    where: str


@dataclass(slots=True)
class _Job:
    """What was read so far."""

    comms: dict[str, RecordedComm] = field(default_factory=dict)
    calls: list[_Call] = field(default_factory=list)
    seen: dict[tuple[str, int, str, int, int], _Call] = field(default_factory=dict)
    skipped: Counter[str] = field(default_factory=Counter)
    first: dict[str, str] = field(default_factory=dict)
    sources: Counter[str] = field(default_factory=Counter)
    dropped: dict[tuple[str, int, str], int] = field(default_factory=dict)

    def skip(self, what: str, where: str) -> None:
        """Count what is left out, and remember the first."""
        self.skipped[what] += 1
        self.first.setdefault(what, where)


def read(paths: Paths) -> Recording:
    """Read the files of one job (plain, compressed, a directory or an archive).

    Raises
    ------
    InputError
        Nothing in the files is a call of the Inspector, or they contradict each other.
    """
    job = _Job()
    name = ""
    for part in streams(paths, lambda base: base.lower().endswith(_NAMES)):
        name = name or part.name
        _file(job, part)
    found = Recording(KIND, name, 0)
    skipped = Counter({f"{what} (first: {job.first[what]})": n for what, n in job.skipped.items()})
    groups = Groups()
    if job.calls:
        world = world_of(job.comms)
        found.num_ranks, found.hosts = world.num_ranks, world.hosts
        found.assumed += world.assumed
        _write(found, groups, job, world)
        _assume(found, job)
        clone_peers(found, groups)
    return finish(found, groups, skipped)


def _file(job: _Job, part: FileStream) -> None:
    """Read one file; an object without a header has that of the statistics in front of it."""
    around: dict[str, Any] = {}

    def damage(line: int) -> None:
        job.skip("texts that are no whole JSON object", f"{part.name}:{line}")

    for line, record in objects(part, damage):
        where = f"{part.name}:{line}"
        if "dump_stats" in record:
            around = record
            _statistics(job, record)
            continue
        own = record if "header" in record else {**around, **record}
        if "coll_perf" not in record and "p2p_perf" not in record:
            job.skip("objects that are no call", where)
        elif len(job.calls) >= MOST_RECORDS:
            job.skip(f"calls after the first {MOST_RECORDS}", where)
        else:
            _record(job, own, where)


def _statistics(job: _Job, record: dict[str, Any]) -> None:
    """Note how many calls the plugin itself lost."""
    stats, header = record.get("dump_stats"), record.get("header")
    if not isinstance(stats, dict) or not isinstance(header, dict):
        return
    rank = integer(header.get("rank"), MOST_RANKS) or 0
    for kind in ("coll", "p2p"):
        lost = integer(stats.get(f"{kind}_dropped_total"))
        if lost:
            job.dropped[str(header.get("id")), rank, kind] = lost


def _record(job: _Job, record: dict[str, Any], where: str) -> None:
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
        job.skip("calls whose header has no id, or no rank below n_ranks", where)
        return
    call = _call(job, record, _Seat(str(ident)[:64], rank, n_ranks), where)
    if call is None:
        return
    call.dumped = integer(about.get("dump_timestamp_us"), 1 << 60) or 0
    host, pid = about.get("hostname"), integer(about.get("pid"), 1 << 32)
    owner: Owner = (host[:256] if isinstance(host, str) else "", pid if pid is not None else ABSENT)
    if owner == ("", ABSENT):
        # Without a process each rank of each communicator would be a GPU of its own.
        owner = ("", rank)
    nodes = integer(header.get("nnodes"), n_ranks) or 0
    comm = job.comms.setdefault(call.comm, RecordedComm(call.comm, n_ranks, nodes))
    if comm.n_ranks != n_ranks:
        raise InputError(
            f"{where}: communicator {call.comm} has {n_ranks} ranks, and {comm.n_ranks} in"
            f" {next(iter(comm.where.values()))}; give the files of one job only"
        )
    comm.see(rank, owner, where)
    key = (call.comm, rank, call.operation or call.kind, call.peer, call.number)
    known = job.seen.setdefault(key, call)
    if known is not call:
        same = (known.size, known.took) == (call.size, call.took)
        job.skip(
            "calls that are there twice"
            if same
            else "calls that contradict an earlier record of the same call",
            where,
        )
        return
    job.calls.append(call)


class _Seat(NamedTuple):
    """A rank of a communicator."""

    comm: str
    rank: int
    n_ranks: int


def _call(job: _Job, record: dict[str, Any], seat: _Seat, where: str) -> _Call | None:
    """Return the call of a record, None if something it needs is missing."""
    comm, rank, n_ranks = seat
    kind = "coll" if "coll_perf" in record else "p2p"
    perf = record[f"{kind}_perf"]
    if not isinstance(perf, dict):
        job.skip("calls without their figures", where)
        return None
    name = perf.get(kind)
    operation = operation_starting(name) if kind == "coll" else ""
    what: EventKind = "collective"
    if kind == "p2p" and isinstance(name, str) and name.lower() in ("send", "recv"):
        what = "send" if name.lower() == "send" else "recv"
    elif not operation:
        job.skip(f"calls of {str(name)[:40]!r}, which clusim does not know", where)
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
        job.skip("times that are none: the calls are kept", where)
    job.sources[str(perf.get(f"{kind}_timing_source", ""))[:40]] += 1
    start, channels = _traced(perf, kind)
    return _Call(
        comm, rank, what, operation, number, size, took or 0, start, 0,
        _word(perf.get("coll_algo")), _word(perf.get("coll_proto")), channels, peer, where,
    )  # fmt: skip


def _word(value: Any) -> str:
    return (
        value.lower() if isinstance(value, str) and len(value) < 40 and value != "unknown" else ""
    )


def _traced(perf: dict[str, Any], kind: str) -> tuple[int, int]:
    """Return when the kernel of a call started [us], and its channels; ABSENT and 0 without a trace of events."""
    trace = perf.get("event_trace_ts")
    if not isinstance(trace, dict):
        return ABSENT, 0
    kernels = trace.get("kernel_events")
    rows = [row for row in kernels if isinstance(row, dict)] if isinstance(kernels, list) else []
    starts = [integer(row.get("kernel_start_ts"), 1 << 60) for row in rows]
    began = [start for start in starts if start]
    own = integer(trace.get(f"{kind}_start_ts"), 1 << 60)
    return (min(began) if began else own or ABSENT), min(len(rows), 64)


def _write(found: Recording, groups: Groups, job: _Job, world: World) -> None:
    """Append the events, in the order of each rank and communicator."""
    order = _order(job.calls)
    index = {comm: groups.add(comm, world.ranks[comm]) for comm in job.comms}
    origin = min((call.start for call in job.calls if call.start >= 0), default=0)
    messages: Counter[tuple[str, int, int, str]] = Counter()
    numbers: dict[tuple[str, str, int], int] = {}
    for call in sorted(job.calls, key=lambda call: order[_identity(call)]):
        own = world.ranks[call.comm]
        stream, sequence = call.comm, 0
        size = call.size
        if call.kind == "collective":
            size = full_bytes(call.operation, size, len(own))
            sequence = numbers.setdefault(_identity(call)[:3], len(numbers))
        else:
            pair = (call.comm, call.rank, call.peer, call.kind)
            stream = f"{call.comm} {call.kind} {call.peer}"
            sequence, messages[pair] = messages[pair], messages[pair] + 1
        start = (call.start - origin) * US if call.start >= 0 else ABSENT
        found.events.append(
            Event(
                call.kind, own[call.rank], stream, start_ps=start, duration_ps=call.took * US or ABSENT,
                group=index[call.comm], sequence=sequence, operation=call.operation, bytes=size,
                dtype="float32" if size % 4 == 0 and call.kind == "collective" else "uint8",
                root=0 if call.operation in ROOTED else ABSENT, peer=call.peer,
                algorithm=call.algorithm, protocol=call.protocol, channels=call.channels, where=call.where,
            )
        )  # fmt: skip


def _identity(call: _Call) -> tuple[str, str, int, int, int]:
    """Return what is the same for all ranks that make a collective; of messages it is their own."""
    if call.kind == "collective":
        return call.comm, call.operation, call.number, ABSENT, ABSENT
    return call.comm, call.kind, call.number, call.rank, call.peer


def _order(calls: Iterable[_Call]) -> dict[tuple[str, str, int, int, int], tuple[int, int, int]]:
    """Return the place of every call: by its first time on any rank; calls of a function stay in their order."""
    first: dict[tuple[str, str, int, int, int], int] = {}
    for call in calls:
        key = _identity(call)
        time = call.start if call.start >= 0 else call.dumped
        first[key] = min(first.get(key, time), time)
    latest: dict[tuple[str, str, int, int], int] = {}
    found: dict[tuple[str, str, int, int, int], tuple[int, int, int]] = {}
    for at, key in enumerate(sorted(first, key=lambda key: key[2])):
        function = (key[0], key[1], *key[3:])
        latest[function] = max(latest.get(function, 0), first[key])
        found[key] = (latest[function], key[2], at)
    return found


def _assume(found: Recording, job: _Job) -> None:
    """Say what the files do not."""
    found.assumed.append(
        "data types are not recorded: float32, and sums where something is reduced"
    )
    kinds = {call.operation for call in job.calls}
    if kinds & set(ROOTED):
        found.assumed.append("roots are not recorded; taken as rank 0 of the communicator")
    if any(call.kind != "collective" for call in job.calls):
        found.assumed.append(
            "sends and receives wait for the ones before with the same peer only: groups are not recorded"
        )
    if len(job.comms) > 1:
        found.assumed.append("communicators run side by side where nothing tells their order")
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
