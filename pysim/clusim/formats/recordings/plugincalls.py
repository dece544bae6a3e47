"""Calls recorded by NCCL profiler plugins, one record per completed call of a rank.

Calls of a function are numbered per communicator; different functions are ordered by their times. The launch groups of
sends and receives are not recorded: each waits only for the previous one with the same peer.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from clusim.base.errors import InputError
from clusim.base.terms.operations import ROOTED, full_bytes
from clusim.formats.recordings.common import Groups, clone_peers, finish
from clusim.formats.recordings.commranks import Owner, RecordedComm, World, world_of
from clusim.formats.recordings.model import ABSENT, Event, EventKind, Recording
from clusim.formats.recordings.source import FileStream, Paths, streams

_NAMES = (".json", ".jsonl", ".log", ".txt", ".gz", ".bz2", ".xz")

MOST_RECORDS = 2_000_000
"""Maximum number of records; further ones are counted."""

MOST_SIZE = 1 << 44
"""Largest message [bytes]."""

PS_PER_NS = 1000


@dataclass(slots=True)
class PluginCall:
    """Record of a call; times are ns from any origin, and `start` and `dumped` order calls."""

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
class PluginJob:
    """Content read so far."""

    comms: dict[str, RecordedComm] = field(default_factory=dict)
    calls: list[PluginCall] = field(default_factory=list)
    seen: dict[tuple[str, int, str, int, int], PluginCall] = field(default_factory=dict)
    skipped: Counter[str] = field(default_factory=Counter)
    first: dict[str, str] = field(default_factory=dict)
    sources: Counter[str] = field(default_factory=Counter)
    dropped: dict[tuple[str, int, str], int] = field(default_factory=dict)

    def skip(self, what: str, where: str) -> None:
        """Count a skipped record, and keep the place of the first."""
        self.skipped[what] += 1
        self.first.setdefault(what, where)

    @property
    def left_out(self) -> Counter[str]:
        """Return the skipped records, with the place of the first."""
        return Counter(
            {f"{what} (first: {self.first[what]})": n for what, n in self.skipped.items()}
        )

    def add(self, call: PluginCall, owner: Owner, n_ranks: int, nodes: int = 0) -> None:
        """Keep a call of a process; raise `InputError` if the size of its communicator differs."""
        comm = self.comms.setdefault(call.comm, RecordedComm(call.comm, n_ranks, nodes))
        if comm.n_ranks != n_ranks:
            raise InputError(
                f"{call.where}: communicator {call.comm} has {n_ranks} ranks, and {comm.n_ranks} in"
                f" {next(iter(comm.where.values()))}; use files of one job"
            )
        comm.see(call.rank, owner, call.where)
        key = (call.comm, call.rank, call.operation or call.kind, call.peer, call.number)
        known = self.seen.setdefault(key, call)
        if known is not call:
            same = (known.size, known.took) == (call.size, call.took)
            self.skip(
                "calls that occur twice"
                if same
                else "calls that contradict an earlier record of the same call",
                call.where,
            )
            return
        self.calls.append(call)


def read_files(paths: Paths, take: Callable[[FileStream], None]) -> str:
    """Pass every file of a job to `take`, and return the name of the first.

    Files may be plain or packed, or in a directory or an archive.
    """
    name = ""
    for part in streams(paths, lambda base: base.lower().endswith(_NAMES)):
        name = name or part.name
        take(part)
    return name


def recorded(
    kind: str, name: str, job: PluginJob, assume: Callable[[Recording], None]
) -> Recording:
    """Return the recording of a job; `assume` adds the assumptions about missing information.

    Raises
    ------
    InputError
        The job contains no call.
    """
    result = Recording(kind, name, 0)
    groups = Groups()
    if job.calls:
        world = world_of(job.comms)
        result.num_ranks, result.hosts = world.num_ranks, world.hosts
        result.assumed += world.assumed
        assume(result)
        _write_calls(result, groups, job, world)
        clone_peers(result, groups)
    return finish(result, groups, job.left_out)


def _write_calls(found: Recording, groups: Groups, job: PluginJob, world: World) -> None:
    """Append the events, in the order of each rank and communicator.

    Calls are removed from the job as their events are created, to limit memory.
    """
    job.seen.clear()
    order = _order(job.calls)
    index = {comm: groups.add(comm, world.ranks[comm]) for comm in job.comms}
    origin = min((call.start for call in job.calls if call.start >= 0), default=0)
    messages: Counter[tuple[str, int, int, str]] = Counter()
    numbers: dict[tuple[str, str, int], int] = {}
    job.calls.sort(key=lambda call: order[_identity(call)])
    order.clear()
    job.calls.reverse()
    while job.calls:
        call = job.calls.pop()
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
        start = (call.start - origin) * PS_PER_NS if call.start >= 0 else ABSENT
        found.events.append(
            Event(
                call.kind, own[call.rank], stream, start_ps=start, duration_ps=call.took * PS_PER_NS or ABSENT,
                group=index[call.comm], sequence=sequence, operation=call.operation, bytes=size,
                dtype="float32" if size % 4 == 0 and call.kind == "collective" else "uint8",
                root=0 if call.operation in ROOTED else ABSENT, peer=call.peer,
                algorithm=call.algorithm, protocol=call.protocol, channels=call.channels, where=call.where,
            )
        )  # fmt: skip


def _identity(call: PluginCall) -> tuple[str, str, int, int, int]:
    """Return a key that is equal on all ranks of a collective, and unique to a message."""
    if call.kind == "collective":
        return call.comm, call.operation, call.number, ABSENT, ABSENT
    return call.comm, call.kind, call.number, call.rank, call.peer


def _order(
    calls: Iterable[PluginCall],
) -> dict[tuple[str, str, int, int, int], tuple[int, int, int]]:
    """Return the place of every call: its first time on any rank.

    Calls of a function stay in their order.
    """
    first: dict[tuple[str, str, int, int, int], int] = {}
    for call in calls:
        key = _identity(call)
        time = call.start if call.start >= 0 else call.dumped
        first[key] = min(first.get(key, time), time)
    latest: dict[tuple[str, str, int, int], int] = {}
    result: dict[tuple[str, str, int, int, int], tuple[int, int, int]] = {}
    for at, key in enumerate(sorted(first, key=lambda key: key[2])):
        function = (key[0], key[1], *key[3:])
        latest[function] = max(latest.get(function, 0), first[key])
        result[key] = (latest[function], key[2], at)
    return result
