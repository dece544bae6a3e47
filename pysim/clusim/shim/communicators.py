"""Communicators of programs: ranks that join, launches that meet, their times and data.

**Model** A kernel starts when the last rank's stream has reached it and ends on all ranks at once, after the kernels of
its group and the gap to the next kernel (`clusim.nccl.launch`). A broadcast or reduce ends on each rank at its own
time, and the next one may start before. A launch of sends and receives meets the launches of all ranks that its
messages connect. **Not modelled** Concurrent kernels of different communicators do not slow each other down.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from clusim.base.errors import InputError
from clusim.base.match import (
    LaunchGraph,
    LiveMatch,
    LiveMatcher,
    MatchCounts,
    by_order,
    by_pair,
    contradiction,
)
from clusim.base.terms.operations import GATHERING, OPERATIONS, SCATTERING
from clusim.nccl.launch import Host, host_of
from clusim.nccltests.jobs import PerfKernel
from clusim.shim.calls import MESSAGES, CommTimes, NcclCall, Peers, copy_ps, pattern_of, peers_of
from clusim.shim.elements import stored
from clusim.shim.memory import SharedMemory, Span, typed
from clusim.shim.queues import CudaStream
from clusim.shim.reductions import reduced, scaled
from clusim.simulation.plan import OVERLAPPING
from clusim.simulation.setup import Setup


@dataclass(frozen=True, slots=True)
class CommMember:
    """A rank: its process, and its GPU's rank in the topology."""

    process: int
    gpu: int


@dataclass(eq=False)
class KernelLaunch:
    """Calls of one rank that are launched together; times are of this rank [ps].

    Work of a stream (`clusim.shim.queues.StreamWork`); `match` has the launches of all ranks of a collective.
    """

    comm: ProgramComm
    rank: int
    calls: tuple[NcclCall, ...]
    issued_ps: int
    graph: bool = False
    match: LiveMatch[KernelLaunch] | None = None
    ready_ps: int = -1
    end_ps: int = -1
    lag_ps: int = 0

    @property
    def messages(self) -> bool:
        """Return True for sends and receives."""
        return self.calls[0].operation in MESSAGES

    def run(self, stream: CudaStream) -> bool:
        """Meet the other ranks, and move the stream to the end."""
        if self.ready_ps < 0:
            overlaps = self.calls[0].operation in OVERLAPPING
            free_ps = stream.clock_ps if overlaps else stream.end_ps
            self.ready_ps = max(free_ps, self.issued_ps)
            self.comm.arrive(self)
        if self.end_ps < 0:
            return False
        stream.advance(self.end_ps, self.lag_ps)
        return True


@dataclass(eq=False)
class ProgramComm:
    """A communicator.

    Attributes
    ----------
    members : tuple of Member
        By rank.
    windows : dict
        Symmetric windows: (process, address) -> size [bytes].
    """

    number: int
    members: tuple[CommMember, ...]
    setup: Setup
    memory: SharedMemory
    chip: str
    windows: dict[tuple[int, int], int] = field(default_factory=dict)
    left: int = 0

    def __post_init__(self) -> None:
        """Plan the communicator."""
        self._collectives: LiveMatcher[KernelLaunch] = LiveMatcher()
        self._turns = MatchCounts()
        self._messages: LaunchGraph[KernelLaunch, NcclCall] = LaunchGraph()
        comm = self.setup.comm
        host = host_of(comm)
        self.host = Host(host.architecture, host.vendor, len(self.members), host.alone)
        self.times = CommTimes(self.setup, self.host)

    @property
    def alone(self) -> bool:
        """Return True for one rank: collectives are copies."""
        return len(self.members) == 1

    def next_split(self, rank: int) -> int:
        """Return the number of this split of a rank, and count it."""
        return self._turns.add(by_order("split", rank)) + 1

    def channels(self, rank: int, calls: Sequence[NcclCall]) -> int:
        """Return the channels of a group's collectives, planned by simulation."""
        if self.alone or calls[0].operation in MESSAGES:
            return 1
        asked = [call for call in calls if call.bytes]
        return max((self._kernel(rank, call).channels for call in asked), default=1)

    def _kernel(self, rank: int, call: NcclCall) -> PerfKernel:
        return self.times.kernel(self.times.request(call, symmetric=self._symmetric(rank, call)))

    def _symmetric(self, rank: int, call: NcclCall) -> bool:
        """Return True if the buffers of a call are in symmetric windows."""
        process = self.members[rank].process

        def inside(address: int) -> bool:
            return any(
                of == process and start <= address < start + size
                for (of, start), size in self.windows.items()
            )

        return bool(self.windows) and inside(call.send) and inside(call.receive)

    def launch(
        self, rank: int, calls: Sequence[NcclCall], issued_ps: int, *, graph: bool
    ) -> KernelLaunch | None:
        """Return a launch of calls that a rank issued together; None without data.

        Raises `InputError` if another rank has issued other calls at this place.
        """
        calls = tuple(call for call in calls if call.bytes)
        made = KernelLaunch(self, rank, calls, issued_ps, graph)
        if not calls:
            return None
        for call in calls:
            self._check_buffers(rank, call)
        if made.messages:
            return made
        made.match = self._collectives.add(by_order(self.number, rank), made)
        self._check_same(made, next(iter(made.match.ends.values())))
        return made

    def _check_buffers(self, rank: int, call: NcclCall) -> None:
        """Raise `InputError` if a buffer that the rank uses is not memory of CUDA or NCCL."""
        ranks, name = len(self.members), call.operation
        sends = name != "recv" and (name not in ("broadcast", "scatter") or rank == call.root)
        receives = name != "send" and (name not in ("reduce", "gather") or rank == call.root)
        if sends:
            size = call.bytes * (ranks if name in (*SCATTERING, "alltoall") else 1)
            self._span(rank, call.send, size)
        if receives:
            size = call.bytes * (ranks if name in (*GATHERING, "alltoall") else 1)
            self._span(rank, call.receive, size)

    def _check_same(self, mine: KernelLaunch, other: KernelLaunch) -> None:
        for call, theirs in zip(mine.calls, other.calls, strict=False):
            if call.same != theirs.same:
                raise InputError(
                    contradiction((mine.rank, call.text(), ""), (other.rank, theirs.text(), ""))
                )
        if len(mine.calls) != len(other.calls):
            raise InputError(
                f"rank {mine.rank} has {len(mine.calls)} collectives in a group, rank {other.rank} has"
                f" {len(other.calls)}: not simulated"
            )

    def arrive(self, launch: KernelLaunch) -> None:
        """Complete the launches that match this one, if all ranks are ready."""
        match = launch.match
        if match is None:
            self._arrive_messages(launch)
        elif len(match.ends) == len(self.members) and all(
            item.ready_ps >= 0 for item in match.ends.values()
        ):
            self._collectives.close(match)
            self._complete(match.ends)

    def _complete(self, met: dict[int, KernelLaunch]) -> None:
        launches = [met[rank] for rank in range(len(self.members))]
        time_ps = 0
        for calls in zip(*(item.calls for item in launches), strict=True):
            if self.alone:
                in_place = calls[0].send == calls[0].receive
                time_ps += 0 if in_place else copy_ps(self.chip, 2 * calls[0].bytes)
                self._move(calls)
                continue
            kernel = self._kernel(0, calls[0])
            time_ps += kernel.time_ps
            for rank, item in enumerate(launches):
                item.lag_ps = kernel.lags_ps[rank] if kernel.lags_ps else 0
            self._move(calls)
        self._end(launches, time_ps)

    def _end(self, launches: Sequence[KernelLaunch], time_ps: int) -> None:
        gap_ps = 0 if self.alone else self.times.gap_ps(graph=launches[0].graph)
        end_ps = max(item.ready_ps for item in launches) + time_ps + gap_ps
        for item in launches:
            item.end_ps = end_ps

    # ---- sends and receives
    def _arrive_messages(self, launch: KernelLaunch) -> None:
        for call in launch.calls:
            end = by_pair(self.number, call.operation, launch.rank, call.root)
            self._messages.add(launch, (end.key, self._turns.add(end)), call)
        messages = self._messages.complete(launch)
        if messages is None:
            return
        pairs = [_pair(ends) for ends in messages]
        launches = dict.fromkeys(item for ends in messages for item, _ in ends)
        by_rank: dict[int, list[NcclCall]] = defaultdict(list)
        for item in launches:
            by_rank[item.rank] += item.calls
        self._end([*launches], self._messages_ps(by_rank, pairs))
        for source, target, sent, got in pairs:
            sends = self._span(source, sent.send, sent.bytes)
            self._copies([(sends, self._span(target, got.receive, got.bytes))])

    def _messages_ps(
        self, calls: dict[int, list[NcclCall]], pairs: Sequence[tuple[int, int, NcclCall, NcclCall]]
    ) -> int:
        for source, target, sent, got in pairs:
            if sent.bytes != got.bytes:
                raise InputError(
                    f"rank {source} sends {sent.bytes} B to rank {target}, which receives {got.bytes} B"
                )
        if self.alone:
            return copy_ps(self.chip, 2 * sum(sent.bytes for _, _, sent, _ in pairs))
        peers: dict[int, Peers] = {
            rank: peers_of(calls.get(rank, ())) for rank in range(len(self.members))
        }
        pattern = pattern_of(peers)
        if pattern is not None:
            return self.times.pattern_ps(pattern)
        others = [
            (source, target, sent.bytes) for source, target, sent, _ in pairs if source != target
        ]
        own = max((copy_ps(self.chip, 2 * s.bytes) for a, b, s, _ in pairs if a == b), default=0)
        return max(own, self.times.other_ps(others) if others else 0)

    # ---- data
    def _span(self, rank: int, address: int, size: int) -> Span:
        return self.memory.span(self.members[rank].process, address, size)

    def _copies(self, pairs: Sequence[tuple[Span, Span]]) -> None:
        """Defer copies that happen at once: a buffer may be the source of one and the target of another."""
        moved = [(source, target) for source, target in pairs if source != target]
        memory = self.memory

        def run() -> None:
            held = [memory.view(source).copy() for source, _ in moved]
            for (_, target), values in zip(moved, held, strict=True):
                memory.view(target)[:] = values

        if moved:
            memory.defer([source for source, _ in moved], [target for _, target in moved], run)

    def _move(self, calls: Sequence[NcclCall]) -> None:
        """Defer the data of a collective; `calls` has an entry per rank."""
        first, size = calls[0], calls[0].bytes
        ranks = range(len(calls))
        operation, root = first.operation, first.root
        if OPERATIONS[operation].reduces:
            self._reduce(calls)
            return
        pairs: list[tuple[int, int, int, int]] = []  # source, its block, target, its block
        if operation == "broadcast":
            pairs = [(root, 0, rank, 0) for rank in ranks]
        elif operation in GATHERING:
            targets = [root] if operation == "gather" else list(ranks)
            pairs = [(source, 0, target, source) for target in targets for source in ranks]
        elif operation in SCATTERING:
            pairs = [(root, rank, rank, 0) for rank in ranks]
        else:
            pairs = [(source, target, target, source) for source in ranks for target in ranks]
        self._copies(
            [
                (
                    self._span(source, calls[source].send + at * size, size),
                    self._span(target, calls[target].receive + to * size, size),
                )
                for source, at, target, to in pairs
            ]
        )

    def _reduce(self, calls: Sequence[NcclCall]) -> None:
        first, number = calls[0], len(calls)
        size = first.bytes * (number if first.operation == "reduce_scatter" else 1)
        reads = [self._span(rank, call.send, size) for rank, call in enumerate(calls)]
        targets = [first.root] if first.operation == "reduce" else list(range(number))
        writes = [self._span(rank, calls[rank].receive, first.bytes) for rank in targets]
        self.memory.defer(reads, writes, self._reduction(calls, reads, (targets, writes)))

    def _reduction(
        self,
        calls: Sequence[NcclCall],
        reads: Sequence[Span],
        into: tuple[Sequence[int], Sequence[Span]],
    ) -> Callable[[], None]:
        memory = self.memory
        kind = stored(calls[0].dtype.name)

        def run() -> None:
            inputs = [typed(memory.view(span), kind.storage) for span in reads]
            request = None if self.alone else self.times.request(calls[0])
            outputs = scaled(calls, inputs) if request is None else reduced(calls, inputs, request)
            for rank, span in zip(*into, strict=True):
                memory.view(span)[:] = np.ascontiguousarray(outputs[rank]).view(np.uint8)

        return run


def _pair(ends: Sequence[tuple[KernelLaunch, NcclCall]]) -> tuple[int, int, NcclCall, NcclCall]:
    """Return source, target, send and receive of a message."""
    (sender, sent), (receiver, got) = sorted(ends, key=lambda end: end[1].operation == "recv")
    return sender.rank, receiver.rank, sent, got
