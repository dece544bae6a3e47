"""Traces of NCCL's example profiler plugin: calls of ranks, with kernel times.

A file is a list of begin and end events of one rank of a communicator. Events of a call are between its begin and end,
and calls of one launch between those of their group. Missing quotes, as in some releases, are added. Hosts are not
recorded, but inferred from proxies, which connect different nodes only.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Set
from dataclasses import dataclass, field
from typing import Any

from clusim.base.limits import MOST_RANKS
from clusim.base.terms.dtypes import find_dtype
from clusim.base.terms.operations import REDUCING, ROOTED, full_bytes, operation_starting
from clusim.formats.recordings.common import Groups, clone_peers, finish
from clusim.formats.recordings.commranks import RecordedComm, World, world_of
from clusim.formats.recordings.jsonstream import objects
from clusim.formats.recordings.model import ABSENT, Event, EventKind, Recording
from clusim.formats.recordings.source import FileStream, Paths, integer, streams, time_ps

KIND = "profiler"
US = 1_000_000
MOST_CALLS = 2_000_000
"""Maximum number of calls; further ones are counted."""

MOST_ALIKE = 1 << 16
"""Maximum number of distinct values that are shared between calls."""

MOST_COUNT = 1 << 44
_BARE = re.compile(
    r"(:\s*)(?!true\b|false\b|null\b)(0x[0-9a-fA-F]+|\(nil\)|[A-Za-z_]\w*)(?=\s*[,}\]])"
)
_QUOTES = str.maketrans({"“": '"', "”": '"', "„": '"', "‟": '"'})
_GROUPS = ("GROUP_API", "GROUP")
_CALLS = ("COLL", "P2P")
_APIS = ("COLL_API", "P2P_API")


@dataclass(slots=True)
class _Call:
    """Call of one rank: times of the plugin's clock [ps], and of the GPU's [ns]."""

    comm: str
    rank: int
    name: str
    ident: Any
    args: dict[str, Any]
    root: Any
    bunch: int
    begin: int
    end: int
    where: str
    clock: tuple[int, int] | None = None
    channels: Set[int] = frozenset()
    peers: Set[int] = frozenset()
    number: Any = None


@dataclass(slots=True)
class _File:
    """Position in a file: the group, and the current calls of program and kernel."""

    name: str
    bunch: int = ABSENT
    root: Any = None
    open: _Call | None = None


@dataclass(slots=True)
class _Job:
    """Content read so far; `highest` is the largest rank found per communicator."""

    calls: list[_Call] = field(default_factory=list)
    owners: dict[tuple[str, int], tuple[int, str]] = field(default_factory=dict)
    comms: dict[str, RecordedComm] = field(default_factory=dict)
    highest: dict[str, int] = field(default_factory=dict)
    skipped: Counter[str] = field(default_factory=Counter)
    first: dict[str, str] = field(default_factory=dict)
    groups: int = 0
    mended: int = 0
    same: dict[Any, Any] = field(default_factory=dict)

    def once(self, key: Any, value: Any) -> Any:
        """Return one shared object for equal values, to limit memory: many calls are equal."""
        return self.same.setdefault(key, value) if len(self.same) < MOST_ALIKE else value

    def skip(self, what: str, where: str) -> None:
        """Count a skipped entry, and keep the place of the first."""
        self.skipped[what] += 1
        self.first.setdefault(what, where)


def read(paths: Paths) -> Recording:
    """Read the traces of one job, one file per communicator and rank.

    Files may be plain or compressed, or in a directory or an archive.

    Raises
    ------
    InputError
        The files contain no call, or contradict each other.
    """
    job = _Job()
    name = ""
    for part in streams(
        paths, lambda base: ".json" in base.lower() or base.lower().endswith(".txt")
    ):
        name = name or part.name
        _read(job, part)
    result = Recording(KIND, name, 0)
    groups = Groups()
    if job.calls:
        for ident, comm in job.comms.items():
            comm.n_ranks = job.highest[ident] + 1
        world = world_of(job.comms)
        result.num_ranks = world.num_ranks
        result.assumed += world.assumed
        result.hosts = _hosts(result, job, world)
        _write(result, groups, job, world)
        clone_peers(result, groups)
    skipped = Counter({f"{what} (first: {job.first[what]})": n for what, n in job.skipped.items()})
    return finish(result, groups, skipped)


def _mend(text: str) -> str:
    """Add missing quotes around values."""
    return _BARE.sub(r'\1"\2"', text.translate(_QUOTES))


def _read(job: _Job, part: FileStream) -> None:
    file = _File(part.name)

    def damage(line: int) -> None:
        job.skip("lines that are not JSON, even with quotes added", f"{part.name}:{line}")

    def mend(text: str) -> str:
        job.mended += 1
        return _mend(text)

    for line, event in objects(part, damage, mend):
        if event:
            _event(job, file, event, f"{part.name}:{line}")
    if file.open is not None:
        job.skip("calls without an end: kept without a time", file.open.where)
        _close(job, file, ABSENT)


def _event(job: _Job, file: _File, event: dict[str, Any], where: str) -> None:
    """Process one event."""
    kind, phase = event.get("cat"), event.get("ph")
    if not isinstance(kind, str) or phase not in ("b", "e"):
        job.skip("objects that are not events", where)
        return
    raw = event.get("args")
    args: dict[str, Any] = raw if isinstance(raw, dict) else {}
    begins = phase == "b"
    if kind in _GROUPS:
        job.groups += begins
        # A GROUP inside a GROUP_API is the same launch.
        if kind == "GROUP_API" or file.bunch == ABSENT or not begins:
            file.bunch = job.groups if begins else ABSENT
    elif kind in _APIS:
        file.root = args.get("root") if begins else None
    elif kind in _CALLS:
        ident = event.get("name"), event.get("id")
        if file.open is not None and (begins or ident != (file.open.name, file.open.ident)):
            job.skip("calls without an end: kept without a time", file.open.where)
            _close(job, file, ABSENT)
        if begins:
            _open(job, file, event, args, where)
        elif file.open is not None:
            _close(job, file, time_ps(event.get("ts"), US) or ABSENT)
    elif file.open is not None:
        _inside(file.open, kind, str(event.get("name")), args)


def _open(job: _Job, file: _File, event: dict[str, Any], args: dict[str, Any], where: str) -> None:
    """Start a call."""
    if len(job.calls) >= MOST_CALLS:
        job.skip(f"calls after the first {MOST_CALLS}", where)
        return
    ident, rank = args.get("CommHash"), integer(args.get("Rank"), MOST_RANKS - 1)
    if not isinstance(ident, (int, str)) or rank is None:
        job.skip("calls without communicator and rank", where)
        return
    begin = time_ps(event.get("ts"), US)
    comm = str(ident)[:64]
    file.open = _Call(
        comm, rank, str(event.get("name"))[:40], event.get("id"), args, file.root, file.bunch,
        begin if begin else ABSENT, ABSENT, where,
    )  # fmt: skip
    known = job.comms.setdefault(comm, RecordedComm(comm, 0))
    process = integer(event.get("pid"), 1 << 40)
    known.see(rank, ("", process if process is not None else ABSENT - rank), where)
    peer = integer(args.get("Peer"), MOST_RANKS - 1)
    job.highest[comm] = max(job.highest.get(comm, 0), rank, peer or 0)


def _inside(call: _Call, kind: str, name: str, args: dict[str, Any]) -> None:
    """Add a kernel or proxy event to its call."""
    if kind == "GPU" and name == "KernelCh":
        channel = integer(args.get("Channel"), 255)
        if channel is not None:
            call.channels |= {channel}
        start, stop = integer(args.get("StartGpuClk")), integer(args.get("StopGpuClk"))
        if start and stop and start < stop:
            old = call.clock or (start, stop)
            call.clock = (min(old[0], start), max(old[1], stop))
    elif kind == "PROXY":
        peer = integer(args.get("Peer"), MOST_RANKS - 1)
        if peer is not None:
            call.peers |= {peer}


def _close(job: _Job, file: _File, end: int) -> None:
    """End the current call."""
    call, file.open = file.open, None
    if call is None:
        return
    call.end = end
    # The peer of a proxy is a rank of the communicator: a lower bound of its size.
    job.highest[call.comm] = max(job.highest[call.comm], *call.peers, 0)
    call.number = call.args.pop("SeqNum", None)
    call.args = job.once(repr(call.args), call.args)
    call.channels = job.once(call.channels, call.channels)
    call.peers = job.once(call.peers, call.peers)
    call.comm = job.once((call.comm,), call.comm)
    call.name = job.once((call.name,), call.name)
    job.calls.append(call)


def _write(found: Recording, groups: Groups, job: _Job, world: World) -> None:
    """Append the events, in the order of each file."""
    index = {comm: groups.add(comm, world.ranks[comm]) for comm in job.comms}
    clocks = [call.clock[0] for call in job.calls if call.clock]
    on_gpu = len(clocks) == len(job.calls)
    origin = min(clocks) if on_gpu else 0
    first = _first_times(job)
    count: Counter[tuple[Any, ...]] = Counter()
    numbers: dict[tuple[Any, ...], int] = {}
    seen: set[tuple[Any, ...]] = set()
    for call in job.calls:
        event = _event_of(job, call, world.ranks[call.comm], count, numbers)
        if event is None:
            continue
        if event.kind == "collective":
            once = (call.comm, call.rank, event.sequence)
            if once in seen:
                job.skip("calls that occur twice", call.where)
                continue
            seen.add(once)
        start, took = _times(call, origin if on_gpu else ABSENT, first)
        found.events.append(
            Event(
                event.kind, event.rank, event.stream, start_ps=start, duration_ps=took, group=index[call.comm],
                sequence=event.sequence, operation=event.operation, bytes=event.bytes, dtype=event.dtype,
                root=event.root, peer=event.peer, bunch=event.bunch, algorithm=_word(call.args.get("Algorithm")),
                protocol=_word(call.args.get("Protocol")), channels=_channels(call), where=call.where,
            )
        )  # fmt: skip
    _assume(found, job, on_gpu)


def _first_times(job: _Job) -> dict[tuple[str, int], int]:
    """Return the first time of every rank, since the plugin's clock starts with its process."""
    first: dict[tuple[str, int], int] = {}
    for call in job.calls:
        if call.begin >= 0:
            key = (call.comm, call.rank)
            first[key] = min(first.get(key, call.begin), call.begin)
    return first


def _times(call: _Call, origin: int, first: dict[tuple[str, int], int]) -> tuple[int, int]:
    """Return start and duration of a call [ps], by the GPU's clock if recorded."""
    took = ABSENT
    if call.clock is not None:
        took = (call.clock[1] - call.clock[0]) * 1000
        if origin >= 0:
            return (call.clock[0] - origin) * 1000, took
    if call.begin < 0:
        return ABSENT, took
    if took < 0 and call.end > call.begin:
        took = call.end - call.begin
    return call.begin - first[call.comm, call.rank], took


def _hosts(found: Recording, job: _Job, world: World) -> list[str]:
    """Return the node of every rank, with ranks connected by proxies on different nodes."""
    edges = set()
    for call in job.calls:
        own = world.ranks[call.comm]
        edges |= {(own[call.rank], own[peer]) for peer in call.peers - {call.rank}}
    count = found.num_ranks
    size = next(
        (
            size
            for size in range(count, 1, -1)
            if count % size == 0 and all(a // size != b // size for a, b in edges)
        ),
        1,
    )
    if size == count:
        found.assumed.append("hosts are not recorded: ranks fill nodes in order")
        return []
    found.assumed.append(
        f"hosts are not recorded: {count // size} nodes with {size} rank{'s' * (size > 1)} each are assumed, which"
        " fit the recorded proxies"
    )
    return [f"machine {rank // size}" for rank in range(count)]


def _event_of(
    job: _Job,
    call: _Call,
    own: tuple[int, ...],
    count: Counter[tuple[Any, ...]],
    numbers: dict[tuple[Any, ...], int],
) -> Event | None:
    """Return a call as an event without times; None if required data are missing."""
    args, lower = call.args, call.name.lower()
    kind, elements = find_dtype(str(args.get("Datatype"))), integer(args.get("Count"), MOST_COUNT)
    if kind is None:
        job.skip(
            f"calls of data type {str(args.get('Datatype'))[:40]!r}, unknown to clusim",
            call.where,
        )
        return None
    if not elements or elements * kind.size_bytes > MOST_COUNT:
        job.skip("calls without a count", call.where)
        return None
    size, rank = elements * kind.size_bytes, own[call.rank]
    if lower in ("send", "recv"):
        peer = integer(args.get("Peer"), len(own) - 1)
        if peer is None:
            job.skip("sends and receives without a peer", call.where)
            return None
        pair = (call.comm, call.rank, peer, lower)
        sequence, count[pair] = count[pair], count[pair] + 1
        what: EventKind = "send" if lower == "send" else "recv"
        alone = call.bunch == ABSENT
        stream = f"{call.comm} {what} {peer}" if alone else call.comm
        return Event(
            what,
            rank,
            stream,
            sequence=sequence,
            bytes=size,
            dtype=kind.moved,
            peer=peer,
            bunch=call.bunch,
        )
    operation = operation_starting(call.name)
    if not operation:
        job.skip(f"calls of {call.name!r}, unknown to clusim", call.where)
        return None
    place = (call.comm, call.rank, operation)
    given = integer(call.number)
    key = (call.comm, operation, count[place] if given is None else given)
    count[place] += 1
    root = integer(call.root, len(own) - 1) if operation in ROOTED else None
    return Event(
        "collective", rank, call.comm, sequence=numbers.setdefault(key, len(numbers)), operation=operation,
        bytes=full_bytes(operation, size, len(own)), dtype=kind.moved,
        root=(root or 0) if operation in ROOTED else ABSENT,
    )  # fmt: skip


def _word(value: Any) -> str:
    return value.lower() if isinstance(value, str) and len(value) < 40 else ""


def _channels(call: _Call) -> int:
    """Return the channels of a call: the recorded number, otherwise that of its kernels."""
    given = integer(call.args.get("nChannels", call.args.get("nMaxChannels")), 64)
    return given or len(call.channels)


def _assume(found: Recording, job: _Job, on_gpu: bool) -> None:
    """Add the assumptions about missing information."""
    found.assumed.append(
        "sizes of communicators are not recorded: the number of ranks found, also as peers"
    )
    if {event.operation for event in found.events} & set(REDUCING):
        found.assumed.append("reductions are sums: the operation is not recorded")
    if on_gpu:
        found.assumed.append("times are from the GPUs' clocks, assumed synchronised")
    elif any(event.duration_ps > 0 for event in found.events):
        found.assumed.append(
            "times are the host's where the GPU's are missing, with launching and waiting; clocks of processes"
            " begin with their first call"
        )
    if job.mended:
        found.assumed.append(f"{job.mended} events were no JSON and were read with quotes added")
    if len(job.comms) > 1:
        found.assumed.append("communicators run concurrently unless their order is recorded")
