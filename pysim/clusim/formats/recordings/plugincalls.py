"""Calls recorded by NCCL profiler plugins, one record per completed call of a rank, and the ranks of their job.

Calls of a function are numbered per communicator; different functions are ordered by their times. The launch groups of
sends and receives are not recorded: each waits only for the previous one with the same peer.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from sys import intern
from typing import Any

from clusim.base.errors import InputError, one_line
from clusim.base.match import MatchCounts, by_pair
from clusim.base.terms.operations import ROOTED, full_bytes, operation_written
from clusim.formats.recordings.jsonstream import integer, objects
from clusim.formats.recordings.model import ABSENT, Event, EventKind, Recording
from clusim.formats.recordings.plugin_ranks import (
    Owner,
    Ranks,
    RecordedComm,
    job_ranks,
)
from clusim.formats.recordings.source import FileStream, Paths, streams

MOST_RECORDS = 2_000_000
"""Maximum number of records; further ones are counted."""

BROKEN = "texts that are not a complete JSON object"
CONCURRENT = "communicators run concurrently unless their order is recorded"


@dataclass(slots=True)
class PluginCall:
    """Record of a call.

    Attributes
    ----------
    number : int
        Of a function in its communicator, or of messages of a pair of ranks.
    size : int
        Input of a rank, as in NCCL [bytes].
    took, start, dumped : int
        Times from any origin [ps]; `start` and `dumped` order calls.
    dtype : str
        Empty if unknown.
    bunch : int
        Launch, as of an `Event`.
    """

    comm: str
    rank: int
    where: str
    number: int = ABSENT
    size: int = ABSENT
    peer: int = ABSENT
    kind: EventKind = "collective"
    operation: str = ""
    took: int = 0
    start: int = 0
    dumped: int = 0
    algorithm: str = ""
    protocol: str = ""
    channels: int = 0
    dtype: str = ""
    root: int = 0
    bunch: int = ABSENT

    @property
    def identity(self) -> tuple[str, str, int, int, int]:
        """Return a key that is equal on all ranks of a collective, and unique to a message."""
        if self.kind == "collective":
            return self.comm, self.operation, self.number, ABSENT, ABSENT
        return self.comm, self.kind, self.number, self.rank, self.peer


class PluginJob(ABC):
    """Content of a job's files read so far; a reader derives from it.

    Attributes
    ----------
    kind, untyped : str
        Kind of the recording, and the assumption about data types.
    names : tuple of str
        Ends of the names of files in directories and archives.
    """

    kind = untyped = ""
    names: tuple[str, ...] = (
        ".json",
        ".jsonl",
        ".log",
        ".txt",
        ".gz",
        ".bz2",
        ".xz",
    )

    def __init__(self) -> None:
        self.comms: dict[str, RecordedComm] = {}
        self.calls: list[PluginCall] = []
        self.seen: dict[tuple[str, int, str, int, int], PluginCall] = {}
        self.found = Recording(self.kind, "")
        self.reasons: dict[str, str] = {}
        self.objects = 0

    def skip(self, reason: str, where: str) -> None:
        """Count a skipped record, and keep the place of the first."""
        key = self.reasons.setdefault(reason, f"{reason} (first: {where})")
        self.found.skipped[key] += 1

    def read(self, paths: Paths) -> Recording:
        """Read the files of the job: plain or packed, or in a directory or an archive.

        Raises
        ------
        InputError
            The files contain no call, or contradict each other.
        """
        recording = self.found
        for part in streams(paths, self.accepts):
            recording.name = recording.name or part.name
            self.file(part)
        self.settle()
        self._count_records()
        if self.comms:
            self.write(job_ranks(self.comms, recording))
        return recording.finish()

    def accepts(self, base: str) -> bool:
        """Return True if a file of a directory or archive is read."""
        return base.lower().endswith(self.names)

    @abstractmethod
    def file(self, part: FileStream) -> None:
        """Read one file."""

    @abstractmethod
    def settle(self) -> None:
        """Complete communicators and calls after the last file."""

    def records(
        self,
        part: FileStream,
        broken: str = BROKEN,
        mend: Callable[[str], str] | None = None,
    ) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yield place and content of the objects of a file; count `broken` ones."""

        def refuse(line: int) -> None:
            self.objects += 1
            self.skip(broken, f"{part.name}:{line}")

        for line, record in objects(part, refuse, mend):
            self.objects += 1
            yield f"{part.name}:{line}", record

    def _count_records(self) -> None:
        """Report refused records, and collectives that some of the recorded ranks lack: lines may be damaged."""
        refused = self.found.skipped.total()
        if refused:
            self.found.assume(
                f"{self.objects} records read, {refused} refused (skipped), {len(self.calls)} calls used"
            )
        by = Counter(
            call.identity for call in self.calls if call.kind == "collective"
        )
        partly = [
            key
            for key, ranks in by.items()
            if ranks < len(self.comms[key[0]].owners)
        ]
        if partly:
            comm, operation, number, *_ = min(partly)
            self.found.assume(
                f"{len(partly)} of {len(by)} collectives are recorded by some of the recorded ranks only: {operation}"
                f" {number} of {one_line(comm)[:40]}; the others are assumed ready (are lines damaged or lost?)"
            )

    def accept(self, call: PluginCall, name: Any, *, message: bool) -> bool:
        """Set the operation of a call; return False if it is unknown or required data are missing."""
        word = name.lower() if isinstance(name, str) else ""
        call.operation = "" if message else operation_written(name)
        if message and word in ("send", "recv"):
            call.kind = "send" if word == "send" else "recv"
        elif not call.operation:
            self.skip(f"calls of {str(name)[:40]!r}, unknown to clusim", call.where)
            return False
        if (
            call.size <= 0
            or call.number < 0
            or (message and call.peer in (ABSENT, call.rank))
        ):
            self.skip("calls without number, size or peer", call.where)
            return False
        return True

    def add(
        self, call: PluginCall, owner: Owner, n_ranks: int, nodes: int = 0
    ) -> None:
        """Keep a call of a process; raise `InputError` if the size of its communicator differs."""
        comm = self.comms.setdefault(
            call.comm, RecordedComm(call.comm, n_ranks, nodes)
        )
        if comm.n_ranks != n_ranks:
            raise InputError(
                f"{call.where}: communicator {call.comm} has {n_ranks} ranks, and {comm.n_ranks} in"
                f" {next(iter(comm.where.values()))}; use files of one job"
            )
        comm.see(call.rank, owner, call.where)
        key = (
            call.comm,
            call.rank,
            call.operation or call.kind,
            call.peer,
            call.number,
        )
        first_call = self.seen.setdefault(key, call)
        if first_call is call:
            self.calls.append(call)
        elif (first_call.size, first_call.took) == (call.size, call.took):
            self.skip("calls that occur twice", call.where)
        else:
            self.skip(
                "calls that contradict an earlier record of the same call",
                call.where,
            )

    def write(self, ranks: Ranks) -> None:
        """Append assumptions and events, in the order of each rank and communicator."""
        self.assume()
        self.seen.clear()
        order = _order(self.calls)
        origin = min(
            (call.start for call in self.calls if call.start >= 0), default=0
        )
        for call in self.calls:
            if call.start >= 0:
                call.start -= origin
        self.calls.sort(key=lambda call: order[call.identity])
        order.clear()
        self.calls.reverse()
        write_calls(self.found, ranks, _pop_calls(self.calls))

    def assume(self) -> None:
        """Add the assumptions about missing information."""
        self.found.assume(self.untyped)
        if {call.operation for call in self.calls} & set(ROOTED):
            self.found.assume(
                "roots are not recorded; taken as rank 0 of the communicator"
            )
        if any(call.kind != "collective" for call in self.calls):
            self.found.assume(
                "sends and receives wait only for previous ones with the same peer: groups are not recorded"
            )
        if len(self.comms) > 1:
            self.found.assume(CONCURRENT)


def integer_or_absent(value: Any, limit: int = 1 << 62) -> int:
    """Return an integer from 0 to `limit`; `ABSENT` for other values."""
    result = integer(value, limit)
    return ABSENT if result is None else result


def lower_case_name(value: Any) -> str:
    """Return the name of an algorithm or protocol in lower case; empty if missing."""
    return (
        intern(value.lower()) if isinstance(value, str) and len(value) < 40 else ""
    )


def write_calls(
    result: Recording, ranks_of: Ranks, calls: Iterable[PluginCall]
) -> None:
    """Append the events of calls in their order."""
    index = {comm: result.group(comm, ranks) for comm, ranks in ranks_of.items()}
    counts = MatchCounts()
    for call in calls:
        members = ranks_of[call.comm]
        stream, size = call.comm, call.size
        if call.kind == "collective":
            size = full_bytes(call.operation, size, len(members))
            sequence = counts.number_of(call.identity[:3])
        else:
            if call.bunch == ABSENT:
                stream = f"{call.comm} {call.kind} {call.peer}"
            sequence = counts.add(
                by_pair(call.comm, call.kind, call.rank, call.peer)
            )
        is_float = size % 4 == 0 and call.kind == "collective"
        result.events.append(
            Event(
                call.kind, members[call.rank], stream, start_ps=call.start, duration_ps=call.took or ABSENT,
                group=index[call.comm], sequence=sequence, operation=call.operation, bytes=size,
                dtype=call.dtype or ("float32" if is_float else "uint8"),
                root=call.root if call.operation in ROOTED else ABSENT, peer=call.peer, bunch=call.bunch,
                algorithm=call.algorithm, protocol=call.protocol, channels=call.channels, where=call.where,
            )
        )  # fmt: skip


def _pop_calls(calls: list[PluginCall]) -> Iterator[PluginCall]:
    """Yield and remove calls from the last, to limit memory while their events are created."""
    while calls:
        yield calls.pop()


def _order(
    calls: Iterable[PluginCall],
) -> dict[tuple[str, str, int, int, int], tuple[int, int, int]]:
    """Return the place of every call: its first time on any rank.

    Calls of a function stay in their order.
    """
    first: dict[tuple[str, str, int, int, int], int] = {}
    for call in calls:
        key = call.identity
        time = call.start if call.start >= 0 else call.dumped
        first[key] = min(first.get(key, time), time)
    latest: dict[tuple[str, str, int, int], int] = {}
    result: dict[tuple[str, str, int, int, int], tuple[int, int, int]] = {}
    for at, key in enumerate(sorted(first, key=lambda key: key[2])):
        function = (key[0], key[1], *key[3:])
        latest[function] = max(latest.get(function, 0), first[key])
        result[key] = (latest[function], key[2], at)
    return result
