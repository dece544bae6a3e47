"""Requests on replicas over time: arrivals and steps on the clock of running programs.

Requests are assigned to the replica with the fewest sequences. Operations of equal times follow in the order in
which they were added, so that a run is deterministic, and requests that arrive together join the same step.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Rows
from dataclasses import dataclass, field
from typing import Any

from clusim.jobs.live import LiveClock, PlayedOperation, SeparateCalls
from clusim.serving.replica import FlightBatch, Replica
from clusim.serving.requests import ServingRequest
from clusim.serving.scheduler import Sequence

Tell = Callable[[int, int], Any]
"""Called with the numbers of ended and of all requests."""


@dataclass
class ServingRun:
    """A run of requests.

    Attributes
    ----------
    requests : sequence of ServingRequest
        In the order of arrival.
    concurrency : int
        Requests that are always in the server; 0: they arrive at their times.
    sequences : list of Sequence
        Requests in the order of arrival.
    """

    replicas: list[Replica]
    requests: Rows[ServingRequest]
    concurrency: int = 0
    tell: Tell | None = None
    clock: LiveClock = field(default_factory=lambda: LiveClock(SeparateCalls({}), 1))
    sequences: list[Sequence] = field(default_factory=list)
    ended: int = 0
    _operations: int = 0

    def play(self) -> None:
        """Serve all requests.

        Raises
        ------
        InputError
            A request does not fit into the cache.
        """
        for _ in range(
            min(self.concurrency or len(self.requests), len(self.requests))
        ):
            self._arrive()
        self.clock.rewind()
        while self.clock.advance():
            pass

    def at(self, time_ps: int, action: Callable[[], Any]) -> None:
        """Call a function at a time [ps]."""
        operation = PlayedOperation(
            self._operations, 0, not_before_ps=time_ps, action=action
        )
        self._operations += 1
        self.clock.add(operation, ())

    def _arrive(self) -> None:
        """Let the next request arrive; the engine has it after the host's time."""
        number = len(self.sequences)
        request = self.requests[number]
        arrival_ps = max(self.clock.now_ps, request.arrival_ps)
        sequence = Sequence(number, arrival_ps, request.prompt, request.output)
        self.sequences.append(sequence)
        ready_ps = arrival_ps + self.replicas[0].host.request_ps
        self.at(ready_ps, lambda: self.admit(sequence))

    def admit(self, sequence: Sequence) -> None:
        """Assign a request to a replica."""
        self.admit_to(self.replicas, sequence)

    def admit_to(self, replicas: Rows[Replica], sequence: Sequence) -> Replica:
        """Assign a request to the replica with the fewest sequences; return it."""
        replica = min(replicas, key=lambda item: item.sequences)
        batch = replica.add(sequence)
        self.at(self.clock.now_ps, lambda: self._start(replica, batch))
        return replica

    def _start(self, replica: Replica, batch: FlightBatch) -> None:
        if batch.is_busy:
            return
        end_ps = replica.start_step(batch, self.clock.now_ps, self.clock.next_ps)
        if end_ps is not None:
            self.at(end_ps, lambda: self._end(replica, batch))

    def _end(self, replica: Replica, batch: FlightBatch) -> None:
        for sequence in replica.end_step(batch, self.clock.now_ps):
            self.finish(sequence)
        self._start(replica, batch)

    def finish(self, sequence: Sequence) -> None:
        """Count a complete request; in a closed loop the next arrives."""
        assert sequence.is_done
        self.ended += 1
        if self.tell is not None:
            self.tell(self.ended, len(self.requests))
        if self.concurrency and len(self.sequences) < len(self.requests):
            self._arrive()
