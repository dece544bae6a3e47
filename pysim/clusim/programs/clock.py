"""Host thread and streams of one rank: the operations that it issues to the clock of its job.

**Hardware** A host thread calls operators, which enqueue kernels and collectives on streams. A stream executes in
order. An event marks a place in a stream; another stream, or the host, waits for it. **Model** A time per operator on
the host. Kernels and collectives are issued with their predecessors to the clock of all ranks
(`clusim.programs.job`), which has their times once the host waits for them. Every operation is also recorded.
**Not modelled** The limit on launches in a queue; several host threads that issue at the same time.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from clusim.base.match import MatchCounts, MatchedEnd
from clusim.base.units import parse_time
from clusim.formats.recordings.model import Event, EventKind, Group, OperatorCall
from clusim.hardware import Framework
from clusim.hardware.figures import Figure, assumed
from clusim.programs.issued import IssuedCall, IssuedOperation, Mark, Peers

DISPATCHED: Figure = assumed(
    6.3,
    "operators that eager PyTorch dispatches per kernel of the layer tables: 69 for the 11 of a Llama decoder layer"
    " (forward), counted in plain modules (docs/examples/language_model.py); GPT with fused attention has 32",
)
"""Dispatched operators per operator of `clusim.hardware.frameworks.Framework`."""

HOST = "host"
"""Stream of the host thread in recordings."""

DEFAULT_STREAM = 0
"""Identifier of the default stream."""


@dataclass(frozen=True, slots=True)
class IssueTimes:
    """Host time of an operator, of one that the autograd engine issues, and of a collective [ps]."""

    operator_ps: int
    backward_ps: int
    collective_ps: int

    @classmethod
    def of(cls, framework: Framework, pace: float) -> IssueTimes:
        """Return the times of a framework on a processor of relative speed `pace`."""
        dispatch = pace * float(str(DISPATCHED.value))
        operator, node, collective = (
            parse_time(str(figure.value))
            for figure in (framework.operator, framework.node, framework.collective)
        )
        return cls(
            round(operator / dispatch),
            round(node / dispatch),
            round(collective / pace),
        )


@dataclass(slots=True)
class Stream:
    """A stream: last operations (several of a launch), and further predecessors of the next one."""

    ends: frozenset[int] = frozenset()
    waits: set[int] = field(default_factory=set)


@dataclass(slots=True)
class CapturedOperations:
    """Operations of a CUDA graph in its stream: functions with arguments; waits for earlier places are omitted."""

    stream: int
    operations: list[tuple[Callable[..., Mark], tuple[Any, ...]]] = field(
        default_factory=list
    )

    def add(self, run: Callable[..., Mark], *given: Any) -> Mark:
        """Append an operation; return its place."""
        self.operations.append((run, given))
        return Mark(captured=len(self.operations) - 1)


@dataclass(slots=True)
class Totals:
    """Work since the start: kernel time [ps] and count by operator, calls with their bytes, time read by the host.

    `call_ps` is of isolated calls. Program lines: `placeholders` (unknown values), `unused` annotations, `eager` code.
    """

    kernel_ps: Counter[str] = field(default_factory=Counter)
    kernels: Counter[str] = field(default_factory=Counter)
    calls: Counter[tuple[str, int]] = field(default_factory=Counter)
    call_bytes: Counter[tuple[str, int]] = field(default_factory=Counter)
    call_ps: Counter[tuple[str, int]] = field(default_factory=Counter)
    synchronised: int = 0
    placeholders: Counter[str] = field(default_factory=Counter)
    unused: dict[str, str] = field(default_factory=dict)
    eager: list[str] = field(default_factory=list)
    unpriced_ps: Counter[str] = field(default_factory=Counter)
    unpriced_at: dict[str, str] = field(default_factory=dict)


class RankClock:
    """Host thread, streams and record of a rank.

    Parameters
    ----------
    peers : Peers
        Clock of the job.
    times : IssueTimes
        Host times.

    Attributes
    ----------
    host_ps : int
        Present time of the host thread [ps].
    events : list of Event
        Operations since the last `take`.
    splits : dict
        `IssuedCall.splits` of uneven all-to-alls among them, by number.
    line : callable or None
        Line of the program, recorded with every operation.
    captured : CapturedOperations or None
        Graph in capture: its operations are recorded and not run.
    """

    def __init__(self, rank: int, peers: Peers, times: IssueTimes) -> None:
        self.rank, self.peers, self.times = rank, peers, times
        self.host_ps = 0
        self.streams: dict[int | str, Stream] = defaultdict(Stream)
        self.events: list[Event] = []
        self.line: Callable[[], str] | None = None
        self.splits: dict[int, tuple[tuple[int, ...], ...]] = {}
        self._lines: list[str] = []
        self._seen = 0
        self.groups: dict[Group, int] = {}
        self.totals = Totals()
        self.captured: CapturedOperations | None = None
        self._host_last, self._host_waits = -1, set[int]()
        self._issuing_ps = 0
        self._counts = MatchCounts()
        self._calls = 0
        self._first = 0
        self._bunches = 0
        self._bunch: dict[str, tuple[frozenset[int], frozenset[int]]] | None = None

    def issue(self, *, backward: bool = False) -> None:
        """Advance the host by the time of an operator."""
        self.pause(self.times.backward_ps if backward else self.times.operator_ps)

    def pause(self, time_ps: int, name: str = "") -> None:
        """Advance the host by a time [ps]."""
        if time_ps <= 0:
            return
        if name:
            self.complete()
        self.host_ps += time_ps
        self._issuing_ps += time_ps
        if name:
            self.complete(name)

    def complete(self, name: str = "") -> None:
        """Record the host's time since its last operation, as one operation."""
        time_ps, self._issuing_ps = self._issuing_ps, 0
        if time_ps:
            waits, self._host_waits = self._host_waits, set()
            self._host_last = self._add(
                "delay", HOST, name, waits, duration_ps=time_ps
            )

    def kernel(
        self,
        stream: int,
        what: OperatorCall | str,
        time_ps: int,
        *,
        unpriced_at: str = "",
    ) -> Mark:
        """Enqueue a kernel of a known time [ps], of an operator or with a name; return its end.

        `unpriced_at` is the line of the program that called an operator without a measured form.
        """
        if self.captured is not None:
            run = partial(self.kernel, unpriced_at=unpriced_at)
            return self.captured.add(run, stream, what, time_ps)
        name, operator = (what, None) if isinstance(what, str) else (what.name, what)
        self.complete()
        queue = self.streams[stream]
        waits, queue.waits = queue.waits, set()
        fields = {"duration_ps": time_ps, "operator": operator}
        number = self._add("compute", f"stream {stream}", name, waits, **fields)
        deps = tuple(waits | queue.ends)
        self.peers.issue(IssuedOperation(number, self.host_ps, deps, time_ps))
        queue.ends = frozenset((number,))
        self.totals.kernel_ps[name] += time_ps
        self.totals.kernels[name] += 1
        if unpriced_at:
            self.totals.unpriced_ps[name] += time_ps
            self.totals.unpriced_at.setdefault(name, unpriced_at)
        return self.mark(stream)

    def capture(self, stream: int) -> CapturedOperations:
        """Begin to record the operations of a graph."""
        self.captured = CapturedOperations(stream)
        return self.captured

    def replay(self, stream: int, graph: CapturedOperations) -> None:
        """Enqueue the operations of a graph on a stream with one launch."""
        self.issue()
        times, self.times = self.times, IssueTimes(0, 0, 0)
        places: list[Mark] = []
        for run, (time_ps, *details) in graph.operations:
            details = [
                places[value.captured] if isinstance(value, Mark) else value
                for value in details
            ]
            places.append(
                run(stream if time_ps == graph.stream else time_ps, *details)
            )
        self.times = times

    @contextmanager
    def bunch(self) -> Iterator[None]:
        """Issue calls as one launch (``ncclGroupStart`` and ``ncclGroupEnd``): they do not wait for each other."""
        self._bunch, self._bunches = {}, self._bunches + 1
        try:
            yield
        finally:
            self._bunch = None

    def call(self, stream: int, call: IssuedCall, sent: Any = None) -> Mark:
        """Enqueue a call of a communicator with the values that it sends; return its end.

        NCCL has a stream per communicator; it waits for the calling stream.
        """
        self.pause(self.times.collective_ps, call.operation)
        if self.captured is not None:
            return self.captured.add(self.call, stream, call)
        group = self.groups.setdefault(call.group, len(self.groups))
        self.totals.calls[call.size] += 1
        self.totals.call_bytes[call.size] += call.bytes
        name = f"nccl {group}"
        if call.peer >= 0 and not call.shared:
            name += f" {call.root}>{call.peer}"
        queue, source = self.streams[name], self.streams[stream]
        self.complete()
        waits = queue.waits | source.waits | source.ends
        queue.waits = set()
        if len(call.ranks) < 2 or call.bytes <= 0:
            queue.waits |= waits
            return Mark(queue.ends | waits, self.host_ps)
        self.peers.announce(call, sent)
        bunch = self._bunch if call.peer >= 0 else None
        before, row = queue.ends, frozenset[int]()
        if bunch is not None:
            before, row = bunch.get(name, (before, row))
        number = self._add(
            "collective"
            if call.peer < 0
            else "send"
            if call.operation == "send"
            else "recv",
            name,
            call.operation,
            waits,
            group=group,
            sequence=self._counts.add(MatchedEnd(call.meeting, self.rank)),
            bytes=call.bytes,
            dtype=call.dtype,
            where=call.where,
            **_message_fields(call, self._bunches if bunch is not None else -1),
        )
        deps = tuple(waits | before)
        self.peers.issue(IssuedOperation(number, self.host_ps, deps, 0, call, sent))
        queue.ends = row | {number}
        if bunch is not None:
            bunch[name] = before, queue.ends
        if call.splits:
            self.splits[number - self._first] = call.splits
        return Mark(frozenset((number,)), self.host_ps, call=self._count_call())

    def meet(self, call: IssuedCall, sent: Any) -> Mark:
        """Exchange values of the host with other ranks; the host waits for them when they are needed."""
        self.peers.announce(call, sent)
        self.peers.issue(IssuedOperation(-1, self.host_ps, call=call, sent=sent))
        return Mark(call=self._count_call())

    def values(self, mark: Mark) -> dict[int, Any]:
        """Wait until all ranks have issued a call; return the values of all ranks."""
        time_ps, sent = self.peers.values(mark.call)
        self.host_ps = max(self.host_ps, time_ps)
        return sent

    def _count_call(self) -> int:
        """Return the number of the last call with values of other ranks; -1 without."""
        self._calls += 1
        return -1 if self.peers.alone else self._calls - 1

    def mark(self, stream: int | str) -> Mark:
        """Return the present place in a stream."""
        if self.captured is not None:
            return self.captured.add(self.mark, stream)
        queue = self.streams[stream]
        return Mark(queue.ends | queue.waits, self.host_ps)

    def wait(self, stream: int, mark: Mark) -> Mark:
        """Let a stream wait for a place in another one; return its place."""
        if self.captured is not None:
            if mark.captured >= 0:
                self.captured.add(self.wait, stream, mark)
            return mark
        self.streams[stream].waits |= mark.operations
        return mark

    def synchronise(self, marks: Iterable[Mark] | None = None) -> None:
        """Let the host wait for places in streams, or for all streams.

        Raises
        ------
        RuntimeError
            As of CUDA: during a capture.
        """
        if self.captured is not None:
            raise RuntimeError(
                "CUDA error: operation not permitted when stream is capturing"
            )
        places = map(self.mark, list(self.streams)) if marks is None else marks
        operations = frozenset[int]().union(*(mark.operations for mark in places))
        self.complete()
        self._wait(operations)
        self._host_waits |= operations
        self.totals.synchronised += 1

    def end_of(self, mark: Mark) -> int:
        """Let the host wait for a place in a stream; return its time [ps]."""
        return max(mark.issued_ps, self._wait(mark.operations))

    def is_past(self, mark: Mark) -> bool:
        """Return True if a place in a stream is reached at the host's present time."""
        return (
            not mark.operations
            or self.peers.end(mark.operations, self.host_ps) is not None
        )

    def _wait(self, operations: frozenset[int]) -> int:
        end_ps = (self.peers.end(operations) if operations else None) or 0
        self.host_ps = max(self.host_ps, end_ps)
        return end_ps

    @property
    def last(self) -> frozenset[int]:
        """All operations that are complete when the GPU is idle."""
        places = (queue.ends | queue.waits for queue in self.streams.values())
        return frozenset[int]().union(*places)

    def take(self) -> list[Event]:
        """Return the operations since the last call, and begin a new record."""
        self.complete()
        events, self.events = self.events, []
        self._first += len(events)
        self._lines, self._seen, self.splits = [], 0, {}
        self._host_last, self._host_waits = -1, set()
        self._counts = MatchCounts()
        return events

    def unseen(self) -> list[tuple[Event, str]]:
        """Return the operations since the last call, and their lines."""
        self.complete()
        first, self._seen = self._seen, len(self.events)
        return list(zip(self.events[first:], self._lines[first:], strict=True))

    def _add(
        self, kind: EventKind, stream: str, name: str, waits: set[int], **given: Any
    ) -> int:
        """Record an operation that waits for others and for its issue; return its number.

        Operations of earlier records are complete before it.
        """
        if self._host_last >= 0 and stream != HOST:
            waits = waits | {self._host_last}
        deps = tuple(n - self._first for n in sorted(waits) if n >= self._first)
        self.events.append(Event(kind, self.rank, stream, name, deps=deps, **given))
        if self.line is not None:
            self._lines.append(given.get("where") or self.line())
        return self._first + len(self.events) - 1


def _message_fields(call: IssuedCall, bunch: int) -> dict[str, Any]:
    """Return the fields of an event with the ends of a message, or the kind of a collective."""
    if call.peer < 0:
        return {"operation": call.operation, "redop": call.redop, "root": call.root}
    other = call.ends[call.operation == "send"]
    return {"peer": call.group.ranks.index(other), "tag": call.tag, "bunch": bunch}
