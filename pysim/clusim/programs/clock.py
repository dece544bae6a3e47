"""Virtual clocks of one rank: its host thread and its GPU's streams.

**Hardware** A host thread calls operators, which enqueue kernels and collectives on streams. A stream executes in
order. An event marks a place in a stream; another stream, or the host, waits for it. **Model** A time per operator on
the host; a kernel starts when the host has issued it and its stream is free; a collective when the stream that called
it is, and NCCL's stream of its communicator. Every operation is also recorded with its dependencies, so that the
engine can simulate the step again with shared wires and SMs. The end of a call of several running ranks is known when
it is waited for (`Peers`).
**Not modelled** The limit on launches in a queue; several host threads that issue at the same time.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

from clusim.base.match import MatchCounts, MatchedEnd
from clusim.base.units import parse_time
from clusim.formats.recordings.model import Event, EventKind, Group, OperatorCall
from clusim.hardware import Framework
from clusim.hardware.figures import Figure, assumed

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
        each = pace * float(str(DISPATCHED.value))
        operator, node, collective = (
            parse_time(str(figure.value))
            for figure in (framework.operator, framework.node, framework.collective)
        )
        return cls(round(operator / each), round(node / each), round(collective / pace))


@dataclass(slots=True)
class PendingCall:
    """A call that other ranks determine: its end [ps], once known, and the values of its ranks."""

    number: int
    end_ps: int | None = None
    sent: dict[int, Any] = field(default_factory=dict)


@dataclass(slots=True)
class Stream:
    """A stream: end of its last operation [ps], that operation, and events that the next one waits for.

    `pending` are calls with an end that is not known yet.
    """

    end_ps: int = 0
    last: int = -1
    waits: set[int] = field(default_factory=set)
    pending: list[PendingCall] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Mark:
    """A place in a stream: its time [ps] and operation (-1: before the first) in the record of this number.

    The time is that of `pending`, if given. In a captured graph, `captured` is the place. `waits` are operations that
    the stream's next one waits for.
    """

    time_ps: int = 0
    event: int = -1
    record: int = 0
    pending: PendingCall | None = field(default=None, compare=False)
    captured: int = -1
    waits: frozenset[int] = field(default=frozenset(), compare=False)


@dataclass(frozen=True, slots=True)
class IssuedCall:
    """A collective or a message as issued; `bytes` as in `clusim.schedule.CollectiveCall.bytes`.

    Attributes
    ----------
    root : int
        Position of the root in the group; of the sender of a message.
    peer : int
        Position of the receiver of a message; -1 for collectives.
    timed : bool
        False for groups of another back end than NCCL: values of the host are exchanged in zero time.
    where : str
        Line of the program.
    splits : tuple
        Bytes sent to and received from each rank of an uneven all-to-all; empty for other calls.
    number : int
        Number of the communicator among communicators of equal ranks, in the order of their creation.
    """

    operation: str
    bytes: int
    ranks: tuple[int, ...]
    dtype: str = "uint8"
    redop: str = "sum"
    root: int = -1
    peer: int = -1
    tag: int = 0
    timed: bool = True
    where: str = field(default="", compare=False)
    splits: tuple[tuple[int, ...], ...] = ()
    number: int = 0

    @property
    def group(self) -> Group:
        """Communicator of the call."""
        name = f"group of {len(self.ranks)}"
        return Group(f"{name}, number {self.number}" if self.number else name, self.ranks)

    @property
    def meeting(self) -> tuple[object, ...]:
        """Identity of the call among ranks, in addition to its number: calls of a group, or of a pair, are in order."""
        ends = (self.root, self.peer, self.tag) if self.peer >= 0 else ()
        return (self.timed, self.ranks, self.number, *ends)

    @property
    def stream(self) -> str:
        """NCCL's stream: one per group, and one per direction of a pair that exchanges messages."""
        ends = f" {self.root}>{self.peer}" if self.peer >= 0 else ""
        return f"{self.communicator}{ends}"

    @property
    def communicator(self) -> str:
        """Name of the communicator's stream."""
        return f"nccl {self.ranks}" + (f" number {self.number}" if self.number else "")


@dataclass(slots=True)
class CapturedOperations:
    """Operations of a CUDA graph: functions with a stream and further arguments; and the stream of the capture.

    Places in streams are numbered; waits for earlier places are omitted.
    """

    stream: int
    operations: list[tuple[Callable[..., Mark], tuple[Any, ...]]] = field(default_factory=list)

    def add(self, run: Callable[..., Mark], *given: Any) -> Mark:
        """Append an operation; return its place."""
        self.operations.append((run, given))
        return Mark(captured=len(self.operations) - 1)


class Peers(Protocol):
    """Other ranks of the job."""

    def issue(
        self, call: IssuedCall, ready_ps: int, after: Iterable[int], sent: Any
    ) -> tuple[int, int, int | None]:
        """Return number, time in isolation and end of a call [ps]; an unknown end is None."""

    def end(self, number: int) -> tuple[int, dict[int, Any]]:
        """Wait for the end of a call [ps]; return it and the values of its ranks."""


@dataclass(slots=True)
class Totals:
    """Work since the start: kernel time [ps] and count by operator, calls with their bytes, time read by the host.

    `placeholders` are values read that are not simulated, by line of the program; `unused` are annotations of
    operators that were not called, with their lines.
    """

    kernel_ps: Counter[str] = field(default_factory=Counter)
    kernels: Counter[str] = field(default_factory=Counter)
    calls: Counter[tuple[str, int]] = field(default_factory=Counter)
    call_bytes: Counter[tuple[str, int]] = field(default_factory=Counter)
    call_ps: Counter[tuple[str, int]] = field(default_factory=Counter)
    synchronised: int = 0
    placeholders: Counter[str] = field(default_factory=Counter)
    unused: dict[str, str] = field(default_factory=dict)
    unpriced_ps: Counter[str] = field(default_factory=Counter)
    unpriced_at: dict[str, str] = field(default_factory=dict)


class RankClock:
    """Clocks and record of a rank.

    Parameters
    ----------
    peers : Peers
        Other ranks, which determine the ends of calls.
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
        self._host = Stream()
        self._issuing_ps = 0
        self._calls = MatchCounts()
        self._record = 0
        self._bunches = 0
        self._bunch: dict[str, tuple[int, list[PendingCall]]] | None = None

    @property
    def now_ps(self) -> int:
        """Time at which all work is complete [ps]."""
        self._settle()
        return max(self.host_ps, *(stream.end_ps for stream in self.streams.values()), 0)

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
            deps = tuple(sorted(self._host.waits))
            self._host.waits.clear()
            self._host.last = self._add("delay", HOST, name, deps=deps, duration_ps=time_ps)

    def kernel(
        self, stream: int, what: OperatorCall | str, time_ps: int, *, unpriced_at: str = ""
    ) -> Mark:
        """Enqueue a kernel of a known time [ps], of an operator or with a name; return its end.

        `unpriced_at` is the line of the program that called an operator without a measured form.
        """
        if self.captured is not None:
            run = partial(self.kernel, unpriced_at=unpriced_at)
            return self.captured.add(run, stream, what, time_ps)
        queue = self.streams[stream]
        queue.end_ps = max(queue.end_ps, self.host_ps) + time_ps
        name, operator = (what, None) if isinstance(what, str) else (what.name, what)
        queue.last = self._add(
            *("compute", f"stream {stream}", name),
            deps=self._deps(queue),
            duration_ps=time_ps,
            operator=operator,
        )
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
        for run, (own, *given) in graph.operations:
            given = [
                places[value.captured] if isinstance(value, Mark) else value for value in given
            ]
            places.append(run(stream if own == graph.stream else own, *given))
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
        size = len(call.ranks)
        self.pause(self.times.collective_ps, call.operation)
        if self.captured is not None:
            return self.captured.add(self.call, stream, call)
        bunch = self._bunch if call.peer >= 0 else None
        name = call.communicator if bunch is not None else call.stream
        queue, source = self.streams[name], self.streams[stream]
        group = self.groups.setdefault(call.group, len(self.groups))
        key = (call.operation, size)
        self.totals.calls[key] += 1
        self.totals.call_bytes[key] += call.bytes
        deps = set(self._deps(queue)) | source.waits | ({source.last} - {-1})
        if size < 2 or call.bytes <= 0:
            queue.end_ps = max(queue.end_ps, source.end_ps, self.host_ps)
            queue.waits |= deps
            return Mark(queue.end_ps, queue.last, self._record)
        before_ps, before = queue.end_ps, queue.pending
        if bunch is not None:
            before_ps, before = bunch.setdefault(name, (queue.end_ps, list(queue.pending)))
        ready_ps = max(before_ps, source.end_ps, self.host_ps)
        after = [other.number for other in before if other.end_ps is None]
        number, alone_ps, end_ps = self.peers.issue(call, ready_ps, after, sent)
        pending = None if end_ps is not None else PendingCall(number)
        if pending is not None:
            queue.pending = [*(queue.pending if bunch is not None else ()), pending]
        queue.end_ps = max(queue.end_ps, ready_ps if end_ps is None else end_ps)
        queue.last = self._add(
            "collective" if call.peer < 0 else "send" if call.operation == "send" else "recv",
            name.replace(call.communicator, f"nccl {group}"),
            call.operation,
            deps=tuple(sorted(deps)),
            group=group,
            sequence=self._calls.add(MatchedEnd(call.meeting, self.rank)),
            bytes=call.bytes,
            dtype=call.dtype,
            where=call.where,
            **_addressed(call, self._bunches if bunch is not None else -1),
        )
        if call.splits:
            self.splits[queue.last] = call.splits
        self.totals.call_ps[key] += alone_ps
        return Mark(queue.end_ps, queue.last, self._record, pending)

    def meet(self, call: IssuedCall, sent: Any) -> PendingCall | None:
        """Exchange values of the host with other ranks; the host waits for them when they are needed."""
        number, _, end_ps = self.peers.issue(call, self.host_ps, (), sent)
        return PendingCall(number) if end_ps is None else None

    def meets(self, mark: Mark) -> None:
        """Let the host wait for values of other ranks."""
        self.host_ps = max(self.host_ps, self._time(mark))

    def end(self, pending: PendingCall) -> int:
        """Wait for the end of a call [ps]."""
        if pending.end_ps is None:
            pending.end_ps, pending.sent = self.peers.end(pending.number)
        return pending.end_ps

    def _settle(self) -> None:
        """Wait until the ends of all calls are known."""
        for queue in list(self.streams.values()):
            for pending in queue.pending:
                queue.end_ps = max(queue.end_ps, self.end(pending))
            queue.pending = []

    def mark(self, stream: int | str) -> Mark:
        """Return the present place in a stream."""
        if self.captured is not None:
            return self.captured.add(self.mark, stream)
        queue = self.streams[stream]
        return Mark(queue.end_ps, queue.last, self._record, waits=frozenset(queue.waits))

    def wait(self, stream: int, mark: Mark) -> Mark:
        """Let a stream wait for a place in another one; return its place."""
        if self.captured is not None:
            if mark.captured >= 0:
                self.captured.add(self.wait, stream, mark)
            return mark
        queue = self.streams[stream]
        queue.end_ps = max(queue.end_ps, self._time(mark))
        queue.waits |= self._recorded([mark])
        return mark

    def synchronise(self, marks: Iterable[Mark] | None = None) -> None:
        """Let the host wait for places in streams, or for all streams.

        Raises
        ------
        RuntimeError
            As of CUDA: during a capture.
        """
        if self.captured is not None:
            raise RuntimeError("CUDA error: operation not permitted when stream is capturing")
        if marks is None:
            self._settle()
        known = list(map(self.mark, list(self.streams))) if marks is None else list(marks)
        self.complete()
        self.host_ps = max([self.host_ps, *map(self._time, known)])
        self._host.waits |= self._recorded(known)
        self.totals.synchronised += 1

    def _time(self, mark: Mark) -> int:
        """Return the time of a mark [ps]."""
        return mark.time_ps if mark.pending is None else self.end(mark.pending)

    def shift(self, time_ps: int) -> None:
        """Move all clocks by a time [ps], which may be negative."""
        self.host_ps += time_ps
        for stream in self.streams.values():
            stream.end_ps += time_ps

    def take(self) -> list[Event]:
        """Return the operations since the last call, and begin a new record."""
        self.complete()
        events, self.events = self.events, []
        self._lines, self._seen, self.splits = [], 0, {}
        self._record += 1
        for stream in (self._host, *self.streams.values()):
            stream.last = -1
            stream.waits.clear()
        self._calls = MatchCounts()
        return events

    def unseen(self) -> list[tuple[Event, str]]:
        """Return the operations since the last call, and their lines."""
        self.complete()
        first, self._seen = self._seen, len(self.events)
        return list(zip(self.events[first:], self._lines[first:], strict=True))

    def _recorded(self, marks: Iterable[Mark]) -> set[int]:
        """Return the operations of marks in this record; earlier records are complete before it."""
        own = [mark for mark in marks if mark.record == self._record]
        return set().union((mark.event for mark in own if mark.event >= 0), *(m.waits for m in own))

    def _deps(self, queue: Stream) -> tuple[int, ...]:
        """Return and clear the dependencies of a stream's next operation, its issue included."""
        self.complete()
        deps = queue.waits | ({self._host.last} - {-1})
        queue.waits = set()
        return tuple(sorted(deps))

    def _add(self, kind: EventKind, stream: str, name: str, **given: Any) -> int:
        self.events.append(Event(kind, self.rank, stream, name, **given))
        if self.line is not None:
            self._lines.append(given.get("where") or self.line())
        return len(self.events) - 1


def _addressed(call: IssuedCall, bunch: int) -> dict[str, Any]:
    """Return the fields of an event with the ends of a message, or the kind of a collective."""
    if call.peer < 0:
        return {"operation": call.operation, "redop": call.redop, "root": call.root}
    return {
        "peer": call.peer if call.operation == "send" else call.root,
        "tag": call.tag,
        "bunch": bunch,
    }
