"""Host threads as tasks: what a rank's host issues, in its order, on a stream of its own.

**Hardware** A host puts kernels into a queue of its GPU and goes on; the GPU works them off. A kernel starts when it
was issued and what it needs is done; a full queue stops the host until there is room again. Some calls wait until the
GPU has done everything. **Model** A pause on the stream ``host`` for every run of kernels, block or collective. What
comes behind a run waits for both, so a step takes the slower of the two wherever they meet, and a host that is ahead
stays so. A run waits for the host of the one before: its kernels can start while it is still being issued. **Not
modelled** The first kernel of a run starts as soon as the host begins with the run, and not one operator later.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from clusim.schedule.builder import ProgramBuilder
from clusim.workload.host import HostTimes, Issue

STREAM = "host"
"""Stream of the tasks of host threads."""


class HostThreads:
    """The host threads of all ranks."""

    def __init__(self, host: HostTimes, builder: ProgramBuilder) -> None:
        self.host, self.builder = host, builder
        self._queues: dict[int, deque[tuple[int, int]]] = {}
        self._ahead: dict[int, int] = {}

    def issue(self, rank: int, work: Issue, name: str) -> int:
        """Add what a host does to issue work; return the task. It waits for room in the queue."""
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
        """Note that `task` stands for so many launches in the queue of a rank."""
        self._queues.setdefault(rank, deque()).append((task, launches))
        self._ahead[rank] = self._ahead.get(rank, 0) + launches

    def wait(self, rank: int, tasks: Iterable[int]) -> None:
        """Let the host of a rank wait until its GPU has done `tasks`."""
        self.builder.wait(rank, tuple(tasks), stream=STREAM)
        self._queues.pop(rank, None)
        self._ahead.pop(rank, None)
