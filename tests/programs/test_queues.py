"""Laws of streams on the clock of a program, without a program."""

from __future__ import annotations

import pytest

from clusim.jobs.live import CallMeeting, LiveClock, PlayedOperation
from clusim.jobs.model import CallWork
from clusim.jobs.player import CallBundle
from clusim.shim.queues import CudaStream, Queues, is_past
from support.equal_calls import CALL_PS, EqualCalls

SUM = CallWork("allreduce", 4096)


class Streams:
    """Two streams of a device, and their queues."""

    def __init__(self) -> None:
        self.queues = Queues(LiveClock(EqualCalls(), 0))
        self.one, self.two = (self.new() for _ in range(2))

    def new(self) -> CudaStream:
        return self.queues.stream(1, 0, self.queues.new_stream(1, 0, waits=False))

    def work(self, stream: CudaStream, ready_ps: int, time_ps: int) -> PlayedOperation:
        """Append work to a stream."""
        result = self.queues.create(ready_ps, time_ps)
        self.queues.add(result, stream.ends)
        stream.advance(result, result)
        return result

    def call(self, stream: CudaStream, ready_ps: int, *ranks: int) -> PlayedOperation:
        """Append a call of one launch, for all ranks of its communicator, to a stream."""
        result = self.queues.create(ready_ps)
        result.meeting = CallMeeting(1, CallBundle((ranks,), SUM))
        self.queues.add(result, stream.ends)
        stream.advance(result, result)
        return result

    def end_ps(self, operation: PlayedOperation) -> int:
        """Let the host wait for an operation; return its end [ps]."""
        self.queues.play([frozenset((operation,))])
        return operation.end_ps


@pytest.fixture
def streams() -> Streams:
    return Streams()


def test_work_of_a_stream_is_in_order_and_after_events(streams: Streams) -> None:
    event = streams.queues.new_event()
    streams.work(streams.one, 10, 100)
    streams.queues.record(streams.one, event, 0)
    streams.queues.wait(streams.two, event)
    assert streams.end_ps(streams.work(streams.two, 20, 5)) == 115
    assert streams.end_ps(streams.work(streams.one, 50, 5)) == 115


def test_an_end_is_known_only_when_the_clock_has_passed_it(streams: Streams) -> None:
    first, second = streams.work(streams.one, 0, 100), streams.work(streams.two, 0, 200)
    assert not is_past([first])
    assert streams.end_ps(first) == 100
    assert not is_past([second])


def test_work_that_is_issued_late_is_done_in_the_past(streams: Streams) -> None:
    """It begins at its launch, or after the work that it waits for, not when the host waited."""
    first = streams.work(streams.one, 0, 100)
    assert streams.end_ps(first) == 100
    assert streams.end_ps(streams.work(streams.two, 10, 20)) == 30
    assert streams.end_ps(streams.work(streams.one, 10, 20)) == 120


def test_calls_that_overlap_slow_each_other_until_the_host_has_an_end(streams: Streams) -> None:
    """The second call moves the end of the first; after that a late call is timed alone."""
    first = streams.call(streams.one, 0, 0, 1)
    second = streams.call(streams.two, 100, 0, 2)
    assert streams.end_ps(first) == 2 * CALL_PS
    assert streams.end_ps(second) == 100 + 2 * CALL_PS
    late = streams.call(streams.new(), 50, 0, 3)
    assert streams.end_ps(late) == 50 + CALL_PS


def test_work_behind_a_call_that_lacks_ranks_cannot_end(streams: Streams) -> None:
    """A query of it does not move the clock."""
    open_, work = streams.queues.create(), streams.queues.create()
    streams.queues.unmet[open_] = None
    streams.queues.add(work, [open_])
    free = streams.work(streams.two, 0, 100)
    waits = [frozenset((operation,)) for operation in (open_, work, free)]
    assert streams.queues.can_end(waits) == waits[2:]
    del streams.queues.unmet[open_]
    assert streams.queues.can_end(waits) == waits


def test_the_default_stream_waits_for_others_and_they_for_it(streams: Streams) -> None:
    queues = streams.queues
    default = queues.stream(1, 0, 0)
    other = queues.stream(1, 0, queues.new_stream(1, 0, waits=True))

    def push(stream: CudaStream, time_ps: int) -> None:
        queues.push(
            stream, 0, lambda own, ready_ps, _: (streams.work(own, ready_ps, time_ps), None)[1]
        )

    push(other, 100)
    push(default, 10)
    push(other, 1)
    push(streams.one, 1)
    ends = [streams.end_ps(*stream.ends) for stream in (default, other, streams.one)]
    assert ends == [110, 111, 1]
