"""Traces of NCCL's example profiler plugin: calls of ranks, with kernel times.

A file is a list of begin and end events of one rank of a communicator. Events of a call are between its begin and end,
and calls of one launch between those of their group. Missing quotes, as in some releases, are added. Hosts are not
recorded, but inferred from proxies, which connect different nodes only.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Set
from dataclasses import dataclass
from typing import Any

from clusim.base.limits import MOST_RANKS
from clusim.base.match import MatchCounts, by_number, by_order
from clusim.base.terms.dtypes import find_dtype
from clusim.base.terms.operations import REDUCING, operation_starting
from clusim.formats.recordings.jsonstream import integer, table_of, time_ps
from clusim.formats.recordings.model import ABSENT, MOST_BYTES, PS_PER_US, Recording
from clusim.formats.recordings.plugin_ranks import Ranks, RecordedComm
from clusim.formats.recordings.plugincalls import (
    CONCURRENT,
    PluginCall,
    PluginJob,
    integer_or_absent,
    lower_case_name,
    write_calls,
)
from clusim.formats.recordings.source import FileStream, Paths

MOST_CALLS = 2_000_000
"""Maximum number of calls; further ones are counted."""

MOST_ALIKE = 1 << 16
"""Maximum number of distinct values that are shared between calls."""

_BARE = re.compile(
    r"(:\s*)(?!true\b|false\b|null\b)(0x[0-9a-fA-F]+|\(nil\)|[A-Za-z_]\w*)(?=\s*[,}\]])"
)
_QUOTES = str.maketrans({"“": '"', "”": '"', "„": '"', "‟": '"'})
_GROUPS = ("GROUP_API", "GROUP")
_CALLS = ("COLL", "P2P")
_APIS = ("COLL_API", "P2P_API")


def read(paths: Paths) -> Recording:
    """Read the traces of one job, one file per communicator and rank.

    Files may be plain or compressed, or in a directory or an archive.

    Raises
    ------
    InputError
        The files contain no call, or contradict each other.
    """
    return _Profiler().read(paths)


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
    where: str
    end: int = ABSENT
    clock: tuple[int, int] | None = None
    channels: Set[int] = frozenset()
    peers: Set[int] = frozenset()
    number: int = ABSENT


class _Profiler(PluginJob):
    """Content read so far, and the position in a file: its launch, API call and call.

    `highest` is the largest rank found per communicator.
    """

    kind = "profiler"

    def __init__(self) -> None:
        super().__init__()
        self.traced: list[_Call] = []
        self.highest: dict[str, int] = {}
        self.groups = self.mended = 0
        self.same: dict[Any, Any] = {}
        self.bunch = ABSENT
        self.root: Any = None
        self.open: _Call | None = None

    def once(self, key: Any, value: Any) -> Any:
        """Return one shared object for equal values, to limit memory: many calls are equal."""
        return (
            self.same.setdefault(key, value)
            if len(self.same) < MOST_ALIKE
            else value
        )

    def accepts(self, base: str) -> bool:
        return ".json" in base.lower() or base.lower().endswith(".txt")

    def file(self, part: FileStream) -> None:
        self.bunch, self.root = ABSENT, None
        broken = "lines that are not JSON, even with quotes added"
        for where, event in self.records(part, broken, self._mend):
            if event:
                self._event(event, where)
        self._abandon()

    def _mend(self, text: str) -> str:
        """Add missing quotes around values."""
        self.mended += 1
        return _BARE.sub(r'\1"\2"', text.translate(_QUOTES))

    def _event(self, event: dict[str, Any], where: str) -> None:
        """Process one event."""
        kind, phase = event.get("cat"), event.get("ph")
        if not isinstance(kind, str) or phase not in ("b", "e"):
            self.skip("objects that are not events", where)
            return
        args, begins = table_of(event.get("args")), phase == "b"
        if kind in _GROUPS:
            self.groups += begins
            # A GROUP inside a GROUP_API is the same launch.
            if kind == "GROUP_API" or self.bunch == ABSENT or not begins:
                self.bunch = self.groups if begins else ABSENT
        elif kind in _APIS:
            self.root = args.get("root") if begins else None
        elif kind in _CALLS:
            ident = event.get("name"), event.get("id")
            if self.open is not None and (
                begins or ident != (self.open.name, self.open.ident)
            ):
                self._abandon()
            if begins:
                self._open(event, args, where)
            elif self.open is not None:
                self._close(self.open, time_ps(event.get("ts"), PS_PER_US) or ABSENT)
        elif self.open is not None:
            _inside(self.open, kind, str(event.get("name")), args)

    def _open(self, event: dict[str, Any], args: dict[str, Any], where: str) -> None:
        """Start a call."""
        if len(self.traced) >= MOST_CALLS:
            self.skip(f"calls after the first {MOST_CALLS}", where)
            return
        ident, rank = args.get("CommHash"), integer(args.get("Rank"), MOST_RANKS - 1)
        if not isinstance(ident, (int, str)) or rank is None:
            self.skip("calls without communicator and rank", where)
            return
        comm, begin = str(ident)[:64], time_ps(event.get("ts"), PS_PER_US) or ABSENT
        self.open = _Call(
            comm, rank, str(event.get("name"))[:40], event.get("id"), args, self.root, self.bunch, begin, where
        )  # fmt: skip
        process = integer(event.get("pid"), 1 << 40)
        owner = ("", process if process is not None else ABSENT - rank)
        self.comms.setdefault(comm, RecordedComm(comm, 0)).see(rank, owner, where)
        peer = integer_or_absent(args.get("Peer"), MOST_RANKS - 1)
        self.highest[comm] = max(self.highest.get(comm, 0), rank, peer)

    def _abandon(self) -> None:
        """Keep the current call without an end."""
        if self.open is not None:
            self.skip("calls without an end: kept without a time", self.open.where)
            self._close(self.open, ABSENT)

    def _close(self, call: _Call, end: int) -> None:
        """End the current call."""
        self.open, call.end = None, end
        # The peer of a proxy is a rank of the communicator: a lower bound of its size.
        self.highest[call.comm] = max(self.highest[call.comm], *call.peers, 0)
        call.number = integer_or_absent(call.args.pop("SeqNum", None))
        call.args = self.once(repr(call.args), call.args)
        call.channels = self.once(call.channels, call.channels)
        call.peers = self.once(call.peers, call.peers)
        call.comm = self.once((call.comm,), call.comm)
        call.name = self.once((call.name,), call.name)
        self.traced.append(call)

    def settle(self) -> None:
        for ident, comm in self.comms.items():
            comm.n_ranks = self.highest[ident] + 1

    def write(self, ranks: Ranks) -> None:
        """Append assumptions and events, in the order of each file."""
        result = self.found
        result.hosts = self._hosts(result, ranks)
        clocks = [call.clock[0] for call in self.traced if call.clock]
        on_gpu = len(clocks) == len(self.traced)
        write_calls(
            result,
            ranks,
            self._complete_calls(ranks, min(clocks) if on_gpu else ABSENT),
        )
        result.assume(
            "sizes of communicators are not recorded: the number of ranks found, also as peers"
        )
        if {event.operation for event in result.events} & set(REDUCING):
            result.assume("reductions are sums: the operation is not recorded")
        if on_gpu:
            result.assume("times are from the GPUs' clocks, assumed synchronised")
        elif any(event.duration_ps > 0 for event in result.events):
            result.assume(
                "times are the host's where the GPU's are missing, with launching and waiting; clocks of processes"
                " begin with their first call"
            )
        if self.mended:
            result.assume(
                f"{self.mended} events were no JSON and were read with quotes added"
            )
        if len(self.comms) > 1:
            result.assume(CONCURRENT)

    def _hosts(self, result: Recording, ranks: Ranks) -> list[str]:
        """Return the node of every rank, with ranks connected by proxies on different nodes."""
        edges = set()
        for call in self.traced:
            members = ranks[call.comm]
            edges |= {
                (members[call.rank], members[peer])
                for peer in call.peers - {call.rank}
            }
        count = result.num_ranks
        fits = (
            size
            for size in range(count, 1, -1)
            if count % size == 0 and all(a // size != b // size for a, b in edges)
        )
        size = next(fits, 1)
        if size == count:
            result.assume("hosts are not recorded: ranks fill nodes in order")
            return []
        result.assume(
            f"hosts are not recorded: {count // size} nodes with {size} rank{'s' * (size > 1)} each are assumed, which"
            " fit the recorded proxies"
        )
        return [f"machine {rank // size}" for rank in range(count)]

    def _complete_calls(self, ranks: Ranks, origin: int) -> Iterator[PluginCall]:
        """Yield the calls that are complete, with times from `origin`, or from the first of a rank."""
        first: dict[tuple[str, int], int] = {}
        for call in self.traced:
            if call.begin >= 0:  # the plugin's clock starts with its process
                key = (call.comm, call.rank)
                first[key] = min(first.get(key, call.begin), call.begin)
        counts, numbers = MatchCounts(), MatchCounts()
        for call in self.traced:
            result = self._resolve_call(call, len(ranks[call.comm]))
            if result is None:
                continue
            if result.kind == "collective":
                kind = call.comm, result.operation
                turn = counts.add(by_order(kind, call.rank))
                result.number = turn if call.number == ABSENT else call.number
                if numbers.add(by_number(kind, result.number, call.rank)):
                    self.skip("calls that occur twice", call.where)
                    continue
            result.start, result.took = _times(call, origin, first)
            yield result

    def _resolve_call(self, call: _Call, n_ranks: int) -> PluginCall | None:
        """Return a call without number and times; None if required data are missing."""
        args, lower = call.args, call.name.lower()
        dtype = find_dtype(str(args.get("Datatype")))
        elements = integer(args.get("Count"), MOST_BYTES)
        if dtype is None:
            self.skip(
                f"calls of data type {str(args.get('Datatype'))[:40]!r}, unknown to clusim",
                call.where,
            )
            return None
        if not elements or elements * dtype.size_bytes > MOST_BYTES:
            self.skip("calls without a count", call.where)
            return None
        result = PluginCall(
            call.comm, call.rank, call.where, size=elements * dtype.size_bytes
        )
        result.dtype = dtype.carrier
        result.algorithm = lower_case_name(args.get("Algorithm"))
        result.protocol = lower_case_name(args.get("Protocol"))
        channels = integer(args.get("nChannels", args.get("nMaxChannels")), 64)
        result.channels = channels or len(call.channels)
        if lower in ("send", "recv"):
            result.kind, result.bunch = (
                "send" if lower == "send" else "recv",
                call.bunch,
            )
            result.peer = integer_or_absent(args.get("Peer"), n_ranks - 1)
            if result.peer == ABSENT:
                self.skip("sends and receives without a peer", call.where)
                return None
            return result
        result.operation = operation_starting(call.name)
        result.root = integer(call.root, n_ranks - 1) or 0
        if not result.operation:
            self.skip(f"calls of {call.name!r}, unknown to clusim", call.where)
            return None
        return result


def _inside(call: _Call, kind: str, name: str, args: dict[str, Any]) -> None:
    """Add a kernel or proxy event to its call."""
    if kind == "GPU" and name == "KernelCh":
        channel = integer(args.get("Channel"), 255)
        if channel is not None:
            call.channels |= {channel}
        start, stop = (
            integer(args.get("StartGpuClk")),
            integer(args.get("StopGpuClk")),
        )
        if start and stop and start < stop:
            old = call.clock or (start, stop)
            call.clock = (min(old[0], start), max(old[1], stop))
    elif kind == "PROXY":
        peer = integer(args.get("Peer"), MOST_RANKS - 1)
        if peer is not None:
            call.peers |= {peer}


def _times(
    call: _Call, origin: int, first: dict[tuple[str, int], int]
) -> tuple[int, int]:
    """Return start and duration of a call [ps], by the GPU's clock if recorded."""
    duration = ABSENT
    if call.clock is not None:
        duration = (call.clock[1] - call.clock[0]) * 1000
        if origin >= 0:
            return (call.clock[0] - origin) * 1000, duration
    if call.begin < 0:
        return ABSENT, duration
    if duration < 0 and call.end > call.begin:
        duration = call.end - call.begin
    return call.begin - first[call.comm, call.rank], duration
