"""Streams, events and graphs of the simulated GPUs, in virtual time.

**Hardware** A stream's work runs in order; work on an idle GPU starts `Host.first_start` after its launch; a polling
host detects its end `Host.notice` later. **Model** A stream has the time at which its last work ends. Work waits for
its stream, its launch, events, and for collectives the other ranks. The host notices the end when it polls or waits.
**Not modelled** Streams of one device share it without conflict; launches other than NCCL's and graphs cost the host
no time; a graph has the work of one stream. **Parameters** `HostCosts`; the memory rate of the GPU for copies.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from clusim.base.errors import InputError


class StreamWork(Protocol):
    """Work in a stream."""

    def run(self, stream: CudaStream) -> bool:
        """Do it if it can be done: move the stream's time and return True."""


Maker = Callable[[int, bool], "StreamWork | None"]
"""Creates work from the time of its launch [ps], and whether it is in a graph."""


@dataclass(eq=False)
class CudaStream:
    """A stream.

    Attributes
    ----------
    waits : bool
        True if it and the device's default stream wait for each other; the default stream has it, too.
    clock_ps : int
        Start of the next work, if it may overlap the last [ps].
    lag_ps : int
        End of the last work on this GPU after `clock_ps`: of a broadcast or reduce, which the next one overlaps [ps].
    captured : list or None
        Work since the start of a capture.
    """

    process: int
    device: int
    waits: bool = True
    clock_ps: int = 0
    lag_ps: int = 0
    queue: deque[StreamWork] = field(default_factory=deque)
    captured: list[Maker] | None = None

    @property
    def end_ps(self) -> int:
        """End of the last work [ps]."""
        return self.clock_ps + self.lag_ps

    def advance(self, clock_ps: int, lag_ps: int = 0) -> None:
        """Complete work: the next may start at `clock_ps`, or `lag_ps` later [ps]."""
        self.clock_ps, self.lag_ps = clock_ps, lag_ps


@dataclass(eq=False)
class CudaEvent:
    """An event: number of recordings so far, completed recordings, and the time of the last [ps]."""

    recorded: int = 0
    done: int = 0
    time_ps: int = 0

    @property
    def complete(self) -> bool:
        """Return True if the last recording is complete."""
        return self.done == self.recorded


@dataclass(slots=True)
class LocalWork:
    """Work of one GPU: not before `ready_ps`, for `duration_ps`."""

    ready_ps: int
    duration_ps: int
    action: Callable[[], None]

    def run(self, stream: CudaStream) -> bool:
        """Do it."""
        stream.advance(max(stream.end_ps, self.ready_ps) + self.duration_ps)
        self.action()
        return True


@dataclass(slots=True)
class EventRecord:
    """Recording of an event."""

    event: CudaEvent
    number: int
    issued_ps: int

    def run(self, stream: CudaStream) -> bool:
        """Note the stream's time in the event."""
        self.event.done = self.number
        self.event.time_ps = max(stream.end_ps, self.issued_ps)
        return True


@dataclass(slots=True)
class EventWait:
    """Wait of a stream for a recording of an event."""

    event: CudaEvent
    number: int

    def run(self, stream: CudaStream) -> bool:
        """Continue after the event."""
        if self.event.done < self.number:
            return False
        if self.event.time_ps > stream.end_ps:
            stream.advance(self.event.time_ps)
        return True


class Queues:
    """All streams, events and graphs, by their handles."""

    def __init__(self) -> None:
        self._streams: dict[object, CudaStream] = {}
        self.events: dict[int, CudaEvent] = {}
        self._graphs: dict[int, list[Maker]] = {}
        self._handles = 16  # below are CUDA's names of streams
        self._busy: dict[CudaStream, None] = {}

    def handle(self) -> int:
        """Return a new handle."""
        self._handles += 1
        return self._handles

    def new_stream(self, process: int, device: int, *, waits: bool) -> int:
        """Create a stream and return its handle."""
        number = self.handle()
        self._streams[number] = CudaStream(process, device, waits)
        return number

    def new_event(self) -> int:
        """Create an event and return its handle."""
        number = self.handle()
        self.events[number] = CudaEvent()
        return number

    def stream(self, process: int, device: int, number: int) -> CudaStream:
        """Return the stream of a handle; 0 to 2 are the default stream of the device."""
        if number <= 2:
            return self._streams.setdefault((process, device), CudaStream(process, device))
        if number not in self._streams:
            raise InputError(f"stream {number}: does not exist")
        return self._streams[number]

    def drop_stream(self, number: int) -> None:
        """Forget a stream; its work is completed."""
        self._streams.pop(number, None)

    def event(self, number: int) -> CudaEvent:
        """Return the event of a handle."""
        if number not in self.events:
            raise InputError(f"event {number}: does not exist")
        return self.events[number]

    def of_device(self, process: int, device: int) -> list[CudaStream]:
        """Return the streams of a device."""
        streams = dict.fromkeys((*self._streams.values(), *self._busy))
        return [item for item in streams if (item.process, item.device) == (process, device)]

    def push(self, stream: CudaStream, issued_ps: int, make: Maker) -> None:
        """Append work to a stream, or to its capture."""
        if stream.captured is not None:
            stream.captured.append(make)
            return
        if stream.waits:
            self._wait_for_default(stream)
        self._append(stream, make(issued_ps, False))

    def _wait_for_default(self, stream: CudaStream) -> None:
        """Let the default stream wait for the device's other streams, or another stream for the default."""
        default = self._streams.get((stream.process, stream.device))
        if default is None:
            return
        others = [default]
        if stream is default:
            streams = self.of_device(stream.process, stream.device)
            others = [item for item in streams if item.waits and item is not default]
        for other in others:
            event = CudaEvent(1)
            self._append(other, EventRecord(event, 1, 0))
            self._append(stream, EventWait(event, 1))

    def _append(self, stream: CudaStream, item: StreamWork | None) -> None:
        if item is not None:
            stream.queue.append(item)
            self._busy[stream] = None

    def settle(self) -> None:
        """Do all work that can be done."""
        moved = True
        while moved:
            moved = False
            for stream in list(self._busy):
                while stream.queue and stream.queue[0].run(stream):
                    stream.queue.popleft()
                    moved = True
                if not stream.queue:
                    self._busy.pop(stream, None)

    # ---- graphs
    def begin(self, stream: CudaStream) -> None:
        """Start a capture."""
        if stream.captured is not None:
            raise InputError("cudaStreamBeginCapture: the stream is being captured")
        stream.captured = []

    def end(self, stream: CudaStream) -> int:
        """End a capture and return the graph's handle."""
        if stream.captured is None:
            raise InputError("cudaStreamEndCapture: the stream is not being captured")
        number = self.handle()
        self._graphs[number], stream.captured = stream.captured, None
        return number

    def copy_of(self, number: int) -> int:
        """Return the handle of an executable graph."""
        copied = self.handle()
        self._graphs[copied] = self._graphs[number]
        return copied

    def drop_graph(self, number: int) -> None:
        """Forget a graph."""
        self._graphs.pop(number, None)

    def launch_graph(self, stream: CudaStream, number: int, issued_ps: int) -> None:
        """Append the work of a graph to a stream."""
        if stream.captured is not None:
            raise InputError("cudaGraphLaunch in a capture is not simulated")
        for make in self._graphs[number]:
            self._append(stream, make(issued_ps, True))
