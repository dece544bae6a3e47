"""Streams, events and graphs of the simulated GPUs, as operations on the clock of the program.

**Hardware** A stream's work runs in order; work on an idle GPU starts `Host.first_start` after its launch; a polling
host detects its end `Host.notice` later. **Model** Work is an operation that waits for its stream, its launch, events,
and for collectives the other ranks. The clock (`clusim.jobs.live`) continues while a host waits for its time; work
that a thread issues after that, for an earlier time, is done in the past.
**Not modelled** Streams of one device share it without conflict; launches other than NCCL's and graphs cost the host
no time; a graph has the work of one stream. **Parameters** `HostCosts`; the memory rate of the GPU for copies.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from itertools import count

from clusim.base.errors import InputError
from clusim.jobs.live import LiveClock, PlayedOperation

Maker = Callable[["CudaStream", int, bool], None]
"""Appends work to a stream, from the time of its launch [ps], and whether it is in a graph."""

Operations = frozenset[PlayedOperation]


@dataclass(eq=False)
class CudaStream:
    """A stream.

    Attributes
    ----------
    waits : bool
        True if it and the device's default stream wait for each other; the default stream has it, too.
    ends : frozenset
        Operations that the next work waits for.
    starts : frozenset
        Operations that it waits for if it may overlap the last work: a broadcast or reduce ends later on some GPUs.
    captured : list or None
        Work since the start of a capture.
    """

    process: int
    device: int
    waits: bool = True
    ends: Operations = frozenset()
    starts: Operations = frozenset()
    captured: list[Maker] | None = None

    def advance(self, end: PlayedOperation, start: PlayedOperation) -> None:
        """Let the next work wait for an operation, or for another one if it may overlap the last."""
        self.ends, self.starts = frozenset((end,)), frozenset((start,))

    def wait(self, operations: Operations) -> None:
        """Let the next work also wait for other operations."""
        self.ends |= operations
        self.starts |= operations


class Queues:
    """All streams, events and graphs, by their handles.

    Attributes
    ----------
    events : dict
        Last recording of each event, if there is one, by handle.
    unmet : dict
        Calls that other ranks have not issued.
    """

    def __init__(self, clock: LiveClock) -> None:
        self.clock = clock
        self.unmet: dict[PlayedOperation, None] = {}
        self._streams: dict[object, CudaStream] = {}
        self.events: dict[int, Operations] = {}
        self._graphs: dict[int, list[Maker]] = {}
        self._numbers = count(17)  # below are CUDA's names of streams

    # ---- operations
    def create(self, ready_ps: int = 0, time_ps: int = 0) -> PlayedOperation:
        """Return an operation not before a time [ps], for `add`."""
        return PlayedOperation(
            next(self._numbers),
            0,
            time_ps,
            not_before_ps=ready_ps,
        )

    def add(
        self, operation: PlayedOperation, before: Iterable[PlayedOperation]
    ) -> PlayedOperation:
        """Add an operation with its predecessors to the clock."""
        self.clock.rewind()
        self.clock.add(operation, before)
        return operation

    def can_end(self, waits: Iterable[Operations]) -> list[Operations]:
        """Return the operations that end without further calls, of several waits."""
        open_ = self.clock.after(self.unmet)
        return [
            item
            for item in waits
            if open_.isdisjoint(operation.at for operation in item)
        ]

    def play(self, waits: Collection[Operations]) -> None:
        """Continue until all operations of one of several waits have ended."""
        while not any(is_past(operations) for operations in waits):
            self.clock.advance()

    # ---- streams and events
    def new_stream(self, process: int, device: int, *, waits: bool) -> int:
        """Create a stream and return its handle."""
        number = next(self._numbers)
        self._streams[number] = CudaStream(process, device, waits)
        return number

    def new_event(self) -> int:
        """Create an event and return its handle."""
        number = next(self._numbers)
        self.events[number] = frozenset()
        return number

    def stream(self, process: int, device: int, number: int) -> CudaStream:
        """Return the stream of a handle; 0 to 2 are the default stream of the device."""
        if number <= 2:
            return self._streams.setdefault(
                (process, device), CudaStream(process, device)
            )
        if number not in self._streams:
            raise InputError(f"stream {number}: does not exist")
        return self._streams[number]

    def event(self, number: int) -> Operations:
        """Return the last recording of an event."""
        if number not in self.events:
            raise InputError(f"event {number}: does not exist")
        return self.events[number]

    def of_device(self, process: int, device: int) -> list[CudaStream]:
        """Return the streams of a device."""
        streams = self._streams.values()
        return [
            item
            for item in streams
            if (item.process, item.device) == (process, device)
        ]

    def push(self, stream: CudaStream, issued_ps: int, make: Maker) -> None:
        """Append work to a stream, or to its capture."""
        if stream.captured is not None:
            stream.captured.append(make)
            return
        self._wait_for_default(stream)
        make(stream, issued_ps, False)

    def record(self, stream: CudaStream, number: int, issued_ps: int) -> None:
        """Record an event."""
        self.event(number)
        self._continue(stream)
        self.events[number] = frozenset(
            (self.add(self.create(issued_ps), stream.ends),)
        )

    def wait(self, stream: CudaStream, number: int) -> None:
        """Let a stream wait for an event."""
        self._continue(stream)
        stream.wait(self.event(number))

    def _continue(self, stream: CudaStream) -> None:
        """Prepare a stream for an event."""
        if stream.captured is not None:
            raise InputError("events in a capture are not simulated")
        self._wait_for_default(stream)

    def _wait_for_default(self, stream: CudaStream) -> None:
        """Let the default stream wait for the device's other streams, or another stream for the default."""
        default = self._streams.get((stream.process, stream.device))
        if default is None or not stream.waits:
            return
        other_streams = [default]
        if stream is default:
            streams = self.of_device(stream.process, stream.device)
            other_streams = [
                item for item in streams if item.waits and item is not default
            ]
        for other in other_streams:
            stream.wait(other.ends)

    # ---- graphs
    def begin(self, stream: CudaStream) -> None:
        """Start a capture."""
        if stream.captured is not None:
            raise InputError("cudaStreamBeginCapture: the stream is being captured")
        stream.captured = []

    def end(self, stream: CudaStream) -> int:
        """End a capture and return the graph's handle."""
        if stream.captured is None:
            raise InputError(
                "cudaStreamEndCapture: the stream is not being captured"
            )
        number = next(self._numbers)
        self._graphs[number], stream.captured = stream.captured, None
        return number

    def copy_of(self, number: int) -> int:
        """Return the handle of an executable graph."""
        copied = next(self._numbers)
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
            make(stream, issued_ps, True)


def is_past(operations: Iterable[PlayedOperation]) -> bool:
    """Return True if all operations have ended."""
    return all(operation.is_complete for operation in operations)
