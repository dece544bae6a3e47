"""Virtual clocks of one rank: its host thread and its GPU's streams.

**Hardware** A host thread calls operators, which enqueue kernels and collectives on streams. A stream executes in
order. An event marks a place in a stream; another stream, or the host, waits for it. **Model** A time per operator on
the host; a kernel starts when the host has issued it and its stream is free; a collective when the stream that called
it is, and NCCL's stream of its communicator. Every operation is also recorded with its dependencies, so that the
engine can simulate the step again with shared wires and SMs.
**Not modelled** The limit on launches in a queue; several host threads that issue at the same time.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from clusim.base.units import parse_time
from clusim.formats.recordings.model import Event, EventKind, OperatorCall, Recording
from clusim.hardware import Framework
from clusim.hardware.figures import Figure, assumed

DISPATCHED: Figure = assumed(
    3.2,
    "operators that eager PyTorch dispatches per kernel of the layer tables: about 35 for the 11 of a Llama decoder"
    " layer, estimated from its modules and not counted",
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
class Stream:
    """A stream: end of its last operation [ps], that operation, and events that the next one waits for."""

    end_ps: int = 0
    last: int = -1
    waits: set[int] = field(default_factory=set)


@dataclass(frozen=True, slots=True)
class Mark:
    """A place in a stream: its time [ps] and operation (-1: before the first) in the record of this number."""

    time_ps: int = 0
    event: int = -1
    record: int = 0


@dataclass(frozen=True, slots=True)
class IssuedCall:
    """A collective or a message as issued; `bytes` as in `clusim.schedule.CollectiveCall.bytes`."""

    operation: str
    bytes: int
    ranks: tuple[int, ...]
    dtype: str = "uint8"
    redop: str = "sum"
    root: int = -1


@dataclass(slots=True)
class Totals:
    """Work since the start: kernel time [ps] and count by operator, calls with their bytes, time read by the host."""

    kernel_ps: Counter[str] = field(default_factory=Counter)
    kernels: Counter[str] = field(default_factory=Counter)
    calls: Counter[tuple[str, int]] = field(default_factory=Counter)
    call_bytes: Counter[tuple[str, int]] = field(default_factory=Counter)
    call_ps: Counter[tuple[str, int]] = field(default_factory=Counter)
    synchronised: int = 0
    placeholders: int = 0
    unpriced_ps: Counter[str] = field(default_factory=Counter)


class RankClock:
    """Clocks and record of a rank.

    Parameters
    ----------
    time_of : callable
        Time of a call without concurrent work [ps].
    times : IssueTimes
        Host times.

    Attributes
    ----------
    host_ps : int
        Present time of the host thread [ps].
    events : list of Event
        Operations since the last `take`.
    """

    def __init__(self, rank: int, time_of: Callable[[IssuedCall], int], times: IssueTimes) -> None:
        self.rank, self.time_of, self.times = rank, time_of, times
        self.host_ps = 0
        self.streams: dict[int | str, Stream] = defaultdict(Stream)
        self.events: list[Event] = []
        self.groups: dict[tuple[int, ...], int] = {}
        self.totals = Totals()
        self._host = Stream()
        self._sequence: Counter[int] = Counter()
        self._record = 0

    @property
    def now_ps(self) -> int:
        """Time at which all work is complete [ps]."""
        return max(self.host_ps, *(stream.end_ps for stream in self.streams.values()), 0)

    def issue(self, *, backward: bool = False) -> None:
        """Advance the host by the time of an operator."""
        self.pause(self.times.backward_ps if backward else self.times.operator_ps)

    def pause(self, time_ps: int, name: str = "") -> None:
        """Advance the host by a time [ps]."""
        if time_ps <= 0:
            return
        self.host_ps += time_ps
        deps = tuple(sorted(self._host.waits))
        self._host.waits.clear()
        self._host.last = self._add("delay", HOST, name, deps=deps, duration_ps=time_ps)

    def kernel(
        self, stream: int, what: OperatorCall | str, time_ps: int, *, priced: bool = True
    ) -> None:
        """Enqueue a kernel of a known time [ps], of an operator or with a name.

        `priced` is False without a measured form.
        """
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
        if not priced:
            self.totals.unpriced_ps[name] += time_ps

    def call(self, stream: int, call: IssuedCall) -> Mark:
        """Enqueue a call of a communicator; return its end.

        NCCL has a stream per communicator; it waits for the calling stream.
        """
        size = len(call.ranks)
        self.pause(self.times.collective_ps, call.operation)
        queue, source = self.streams[f"nccl {call.ranks}"], self.streams[stream]
        alone_ps = self.time_of(call) if size > 1 and call.bytes > 0 else 0
        queue.end_ps = max(queue.end_ps, source.end_ps, self.host_ps) + alone_ps
        deps = set(self._deps(queue)) | source.waits | ({source.last} - {-1})
        group = self.groups.setdefault(call.ranks, len(self.groups))
        if alone_ps:
            self._sequence[group] += 1
            queue.last = self._add(
                "collective",
                f"nccl {group}",
                call.operation,
                deps=tuple(sorted(deps)),
                group=group,
                sequence=self._sequence[group],
                operation=call.operation,
                bytes=call.bytes,
                dtype=call.dtype,
                redop=call.redop,
                root=call.root,
            )
        else:
            queue.waits |= deps
        key = (call.operation, size)
        self.totals.calls[key] += 1
        self.totals.call_bytes[key] += call.bytes
        self.totals.call_ps[key] += alone_ps
        return Mark(queue.end_ps, queue.last, self._record)

    def mark(self, stream: int | str) -> Mark:
        """Return the present place in a stream."""
        queue = self.streams[stream]
        return Mark(queue.end_ps, queue.last, self._record)

    def wait(self, stream: int, mark: Mark) -> None:
        """Let a stream wait for a place in another one."""
        queue = self.streams[stream]
        queue.end_ps = max(queue.end_ps, mark.time_ps)
        queue.waits |= self._recorded([mark])

    def synchronise(self, marks: Iterable[Mark] | None = None) -> None:
        """Let the host wait for places in streams, or for all streams."""
        known = list(map(self.mark, list(self.streams))) if marks is None else list(marks)
        self.host_ps = max([self.host_ps, *(mark.time_ps for mark in known)])
        self._host.waits |= self._recorded(known)
        self.totals.synchronised += 1

    def shift(self, time_ps: int) -> None:
        """Move all clocks by a time [ps], which may be negative."""
        self.host_ps += time_ps
        for stream in self.streams.values():
            stream.end_ps += time_ps

    def take(self) -> list[Event]:
        """Return the operations since the last call, and begin a new record."""
        events, self.events = self.events, []
        self._record += 1
        for stream in (self._host, *self.streams.values()):
            stream.last = -1
            stream.waits.clear()
        self._sequence.clear()
        return events

    def recording(self, events: list[Event], num_ranks: int) -> Recording:
        """Return operations as a recording of a job in which all ranks do the same work."""
        result = Recording("torch", "step", num_ranks, events=events)
        for ranks in self.groups:
            result.group(f"group of {len(ranks)}", ranks)
        return result

    def _recorded(self, marks: Iterable[Mark]) -> set[int]:
        """Return the operations of marks in this record; those of earlier ones are complete before it."""
        return {mark.event for mark in marks if mark.event >= 0 and mark.record == self._record}

    def _deps(self, queue: Stream) -> tuple[int, ...]:
        """Return and clear the dependencies of a stream's next operation, its issue included."""
        deps = queue.waits | ({self._host.last} - {-1})
        queue.waits = set()
        return tuple(sorted(deps))

    def _add(self, kind: EventKind, stream: str, name: str, **given: Any) -> int:
        self.events.append(Event(kind, self.rank, stream, name, **given))
        return len(self.events) - 1
