"""Host threads as tasks: the host of a rank issues work in order, on a separate stream.

**Hardware** A host queues kernels on its GPU and continues; the GPU processes the queue. A kernel starts
once it is issued and its dependencies are complete; a full queue blocks the host until a slot is free.
Some calls wait until the GPU is idle. **Model** A pause on the stream ``host`` for every run of kernels,
block or collective. The work after a run waits for both, so a step lasts as long as the slower of the
two wherever they meet, and a host that is ahead stays ahead. A run waits for the host of the previous
run: its kernels can start while it is still being issued. **Not modelled** The first kernel of a run
starts when the host begins the run, not one operator later.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from clusim.schedule.builder import ProgramBuilder
from clusim.workload.host import HostTimes, Issue

STREAM = "host"
"""Stream of the tasks of host threads."""


class HostThreads:
    """Host threads of all ranks."""

    def __init__(self, host: HostTimes, builder: ProgramBuilder) -> None:
        self.host, self.builder = host, builder
        self._queues: dict[int, deque[tuple[int, int]]] = {}
        self._ahead: dict[int, int] = {}

    def issue(self, rank: int, work: Issue, name: str) -> int:
        """Add the host time for issuing work, after a wait for queue slots; return the task."""
        queue, ahead = self._queues.setdefault(rank, deque()), self._ahead.get(rank, 0)
        after: tuple[int, ...] = ()
        while queue and ahead + work.launches > self.host.queue:
            task, launches = queue.popleft()
            ahead -= launches
            after = (task,)
        self._ahead[rank] = ahead
        return self.builder.delay(
            rank, work.time_ps, stream=STREAM, name=f"host {name}", after=after
        )

    def issued(self, rank: int, task: int, launches: int) -> None:
        """Record that `task` holds this number of launches in the queue of a rank."""
        self._queues.setdefault(rank, deque()).append((task, launches))
        self._ahead[rank] = self._ahead.get(rank, 0) + launches

    def wait(self, rank: int, tasks: Iterable[int]) -> None:
        """Make the host of a rank wait until its GPU has completed `tasks`."""
        self.builder.wait(rank, tuple(tasks), stream=STREAM)
        self._queues.pop(rank, None)
        self._ahead.pop(rank, None)
