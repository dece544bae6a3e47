"""Communicators of programs: ranks that join, launches that meet, their times and data.

**Model** A kernel starts when the last rank's stream has reached it and ends on all ranks at once, after the kernels of
its group and the gap to the next kernel (`clusim.nccl.launch`). A broadcast or reduce ends on each rank at its own
time, and the next one may start before. A launch of sends and receives meets the launches of all ranks that its
messages connect. Calls that overlap slow each other (`clusim.jobs.player`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np

from clusim.base.errors import InputError
from clusim.base.match import (
    LaunchGraph,
    LiveMatcher,
    MatchCounts,
    by_order,
    by_pair,
    contradiction,
)
from clusim.base.terms.operations import GATHERING, OPERATIONS, SCATTERING
from clusim.jobs.live import CallMeeting, PlayedOperation
from clusim.jobs.model import LaunchWork
from clusim.jobs.player import CallBundle
from clusim.nccl.launch import host_of
from clusim.shim.calls import (
    MESSAGES,
    CommTimes,
    NcclCall,
    Peers,
    copy_ps,
    pattern_of,
    peers_of,
)
from clusim.shim.elements import element_type
from clusim.shim.memory import SharedMemory, Span, as_elements
from clusim.shim.queues import CudaStream, Operations, Queues
from clusim.shim.reductions import reduce_inputs, scale_inputs
from clusim.simulation.nccl_choice import OVERLAPPING
from clusim.simulation.setup import Setup


@dataclass(frozen=True, slots=True)
class CommMember:
    """A rank: its process, and its GPU's rank in the topology."""

    process: int
    gpu: int


@dataclass(eq=False)
class KernelLaunch:
    """Calls of one rank that are launched together.

    Attributes
    ----------
    before : frozenset
        Operations that it waits for.
    works : tuple
        Operations of the collectives, or of all messages.
    end : PlayedOperation
        End on this GPU, after the gap to the next kernel; a broadcast or reduce ends on each at its own time.
    """

    rank: int
    calls: tuple[NcclCall, ...]
    before: Operations
    works: tuple[PlayedOperation, ...]
    end: PlayedOperation


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
    queues: Queues
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
        self.host = replace(host, num_ranks=len(self.members))
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
        sized = [call for call in calls if call.bytes]
        requests = (
            self.times.request(c, symmetric=self._symmetric(rank, c)) for c in sized
        )
        return max(
            (self.times.kernel(request).channels for request in requests), default=1
        )

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
        self,
        rank: int,
        calls: Sequence[NcclCall],
        stream: CudaStream,
        issued_ps: int,
        graph: bool,
    ) -> None:
        """Append calls that a rank issued together to a stream.

        Raises `InputError` if another rank has issued other calls at this place.
        """
        calls = tuple(call for call in calls if call.bytes)
        if not calls:
            return
        for call in calls:
            self._check_buffers(rank, call)
        first, create = calls[0].operation, self.queues.create
        gap_ps = 0 if self.alone else self.times.gap_ps(graph=graph)
        messages, overlaps = first in MESSAGES, first in OVERLAPPING
        works = tuple(create(issued_ps) for _ in (calls[:1] if messages else calls))
        before = stream.starts if overlaps else stream.ends
        launch = KernelLaunch(
            rank,
            calls,
            before,
            works,
            create(0, gap_ps),
        )
        self.queues.unmet |= dict.fromkeys(works)
        if messages:
            self._meet_messages(launch)
        else:
            self._meet_collectives(launch)
        end = start = self.queues.add(launch.end, works[-1:])
        if overlaps:
            start = self.queues.add(create(0, gap_ps), works[-1:])
        stream.advance(end, start)

    def _start(self, launch: KernelLaunch) -> None:
        """Add the works of a launch, which all ranks have issued, to the clock."""
        before: Iterable[PlayedOperation] = launch.before
        for work in launch.works:
            del self.queues.unmet[work]
            before = (self.queues.add(work, before),)

    def _check_buffers(self, rank: int, call: NcclCall) -> None:
        """Raise `InputError` if a buffer that the rank uses is not memory of CUDA or NCCL."""
        ranks, name = len(self.members), call.operation
        sends = name != "recv" and (
            name not in ("broadcast", "scatter") or rank == call.root
        )
        receives = name != "send" and (
            name not in ("reduce", "gather") or rank == call.root
        )
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
                    contradiction(
                        (mine.rank, call.text(), ""), (other.rank, theirs.text(), "")
                    )
                )
        if len(mine.calls) != len(other.calls):
            raise InputError(
                f"rank {mine.rank} has {len(mine.calls)} collectives in a group, rank {other.rank} has"
                f" {len(other.calls)}: not simulated"
            )

    # ---- collectives
    def _meet_collectives(self, launch: KernelLaunch) -> None:
        """Start the launches of all ranks if this is the last one."""
        match = self._collectives.add(by_order(self.number, launch.rank), launch)
        self._check_same(launch, next(iter(match.ends.values())))
        if len(match.ends) < len(self.members):
            return
        self._collectives.close(match)
        launches = [match.ends[rank] for rank in range(len(self.members))]
        for item in launches:
            self._check_same(item, launches[0])
        lags_ps: Sequence[int] = ()
        for place, call in enumerate(launch.calls):
            calls = [item.calls[place] for item in launches]
            works = [item.works[place] for item in launches]
            works[0].action = partial(self._move, calls)
            if self.alone:
                in_place = call.send == call.receive
                works[0].time_ps = (
                    0 if in_place else copy_ps(self.chip, 2 * call.bytes)
                )
                continue
            request = self.times.request(
                calls[0], symmetric=self._symmetric(0, calls[0])
            )
            kernel = self.times.kernel(request)
            lags_ps = kernel.lags_ps
            bundle = self.times.bundle(
                request,
                call.root,
                kernel.time_ps,
            )
            meeting = CallMeeting(len(launches), bundle)
            for work in works:
                work.meeting = meeting
        for item, lag_ps in zip(
            launches, lags_ps or [0] * len(launches), strict=True
        ):
            item.end.time_ps += lag_ps
            self._start(item)

    # ---- sends and receives
    def _meet_messages(self, launch: KernelLaunch) -> None:
        """Add the messages of a launch, and start all connected launches if they are complete."""
        for call in launch.calls:
            end = by_pair(self.number, call.operation, launch.rank, call.root)
            self._messages.add(launch, (end.key, self._turns.add(end)), call)
        messages = self._messages.complete(launch)
        if messages is None:
            return
        pairs = [_pair(ends) for ends in messages]
        launches = list(dict.fromkeys(item for ends in messages for item, _ in ends))
        peers: list[Peers] = [Counter() for _ in self.members]
        for item in launches:
            peers[item.rank] += peers_of(item.calls)
        moved = tuple((a, b, sent.bytes) for a, b, sent, _ in pairs if a != b)
        self_bytes = [sent.bytes for a, b, sent, _ in pairs if a == b]
        time_ps, meeting = self._messages_ps(peers, moved, self_bytes), None
        if moved:
            bundle = CallBundle(
                (self.times.ranks,),
                LaunchWork(moved),
                time_ps,
            )
            meeting = CallMeeting(len(launches), bundle)
        launches[0].works[0].action = partial(self._exchange, pairs)
        for item in launches:
            item.works[0].meeting, item.works[0].time_ps = meeting, time_ps
            self._start(item)

    def _messages_ps(
        self,
        peers: Sequence[Peers],
        moved: Sequence[tuple[int, int, int]],
        self_bytes: Sequence[int],
    ) -> int:
        """Return the time of messages: `moved` between ranks, and `self_bytes` that ranks send to themselves [ps]."""
        if self.alone:
            return copy_ps(self.chip, 2 * sum(self_bytes))
        pattern = pattern_of(dict(enumerate(peers)))
        if pattern is not None:
            return self.times.pattern_ps(pattern)
        own_ps = copy_ps(self.chip, 2 * max(self_bytes, default=0))
        return max(own_ps, self.times.other_ps(moved) if moved else 0)

    # ---- data
    def _exchange(
        self, pairs: Sequence[tuple[int, int, NcclCall, NcclCall]]
    ) -> None:
        """Defer the data of messages: source, target, send and receive of each."""
        for source, target, sent, got in pairs:
            if sent.bytes != got.bytes:
                raise InputError(
                    f"rank {source} sends {sent.bytes} B to rank {target}, which receives {got.bytes} B"
                )
            to = self._span(target, got.receive, got.bytes)
            self.memory.copy([(self._span(source, sent.send, sent.bytes), to)])

    def _span(self, rank: int, address: int, size: int) -> Span:
        return self.memory.span(self.members[rank].process, address, size)

    def _move(self, calls: Sequence[NcclCall]) -> None:
        """Defer the data of a collective; `calls` has an entry per rank."""
        first, size = calls[0], calls[0].bytes
        ranks = range(len(calls))
        operation, root = first.operation, first.root
        if OPERATIONS[operation].reduces:
            self._reduce(calls)
            return
        pairs: list[
            tuple[int, int, int, int]
        ] = []  # source, its block, target, its block
        if operation == "broadcast":
            pairs = [(root, 0, rank, 0) for rank in ranks]
        elif operation in GATHERING:
            targets = [root] if operation == "gather" else list(ranks)
            pairs = [
                (source, 0, target, source) for target in targets for source in ranks
            ]
        elif operation in SCATTERING:
            pairs = [(root, rank, rank, 0) for rank in ranks]
        else:
            pairs = [
                (source, target, target, source)
                for source in ranks
                for target in ranks
            ]
        self.memory.copy(
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
        reads = [
            self._span(rank, call.send, size) for rank, call in enumerate(calls)
        ]
        targets = [first.root] if first.operation == "reduce" else range(number)
        writes = {
            rank: self._span(rank, calls[rank].receive, first.bytes)
            for rank in targets
        }
        run = partial(self._write_reduced, calls, reads, writes)
        self.memory.defer(reads, [*writes.values()], run)

    def _write_reduced(
        self,
        calls: Sequence[NcclCall],
        reads: Sequence[Span],
        writes: Mapping[int, Span],
    ) -> None:
        storage, view = element_type(calls[0].dtype.name).storage, self.memory.view
        inputs = [as_elements(view(span), storage) for span in reads]
        request = None if self.alone else self.times.request(calls[0])
        outputs = (
            scale_inputs(calls, inputs)
            if request is None
            else reduce_inputs(calls, inputs, request)
        )
        for rank, span in writes.items():
            view(span)[:] = np.ascontiguousarray(outputs[rank]).view(np.uint8)


def _pair(
    ends: Sequence[tuple[KernelLaunch, NcclCall]],
) -> tuple[int, int, NcclCall, NcclCall]:
    """Return source, target, send and receive of a message."""
    (sender, sent), (receiver, got) = sorted(
        ends, key=lambda end: end[1].operation == "recv"
    )
    return sender.rank, receiver.rank, sent, got
