"""One schedule of several: each on its ranks of the fabric, repeated, with its start.

First tasks of a copy wait for the last tasks of their rank in the copy before, or for the start. Each
copy has its connections.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from clusim.schedule.checks import validate
from clusim.schedule.ir import (
    CollectiveCall,
    Connection,
    Instance,
    Schedule,
    Task,
    Template,
)


@dataclass(frozen=True, slots=True)
class PlacedSchedule:
    """A job's schedule, and where and when it runs.

    Attributes
    ----------
    ranks : sequence of int
        Rank of the fabric for each rank of the schedule.
    compute_ps : int
        Kernel of each rank before each copy [ps].
    """

    name: str
    schedule: Schedule
    ranks: Sequence[int]
    start_ps: int = 0
    repeat: int = 1
    compute_ps: int = 0


@dataclass
class _Joiner:
    """Parts of the joined schedule so far."""

    calls: list[CollectiveCall] = field(default_factory=list)
    templates: list[Template] = field(default_factory=list)
    connections: list[Connection] = field(default_factory=list)
    instances: list[Instance] = field(default_factory=list)
    tasks: list[Task] = field(default_factory=list)
    groups: int = 0

    def add(self, placed: PlacedSchedule) -> tuple[list[range], list[range]]:
        """Append the copies of a schedule; return the tasks and the connections of each."""
        first_template = len(self.templates)
        self.templates += placed.schedule.templates
        wait = Task("delay", 0, "start", "start", delay_ps=placed.start_ps)
        before = self._on_ranks(placed, wait, {}) if placed.start_ps else {}
        tasks, connections = [], []
        for _ in range(placed.repeat):
            first, first_connection = len(self.tasks), len(self.connections)
            if placed.compute_ps:
                kernel = Task(
                    "kernel", 0, "compute", "compute", compute_ps=placed.compute_ps
                )
                before = self._on_ranks(placed, kernel, before)
            self._copy(placed, first_template, before)
            tasks.append(range(first, len(self.tasks)))
            connections.append(range(first_connection, len(self.connections)))
            before = self._last_tasks(first)
        return tasks, connections

    def _on_ranks(
        self, placed: PlacedSchedule, task: Task, before: dict[int, tuple[int, ...]]
    ) -> dict[int, tuple[int, ...]]:
        """Append a task to each rank of a job, after others; return the new tasks by rank."""
        result: dict[int, tuple[int, ...]] = {}
        for rank in dict.fromkeys(task.rank for task in placed.schedule.tasks):
            at = placed.ranks[rank]
            stream = f"{placed.name} {task.stream}"
            deps = before.get(at, ())
            result[at] = (len(self.tasks),)
            self.tasks.append(replace(task, rank=at, stream=stream, deps=deps))
        return result

    def _copy(
        self,
        placed: PlacedSchedule,
        first_template: int,
        before: dict[int, tuple[int, ...]],
    ) -> None:
        schedule, ranks = placed.schedule, placed.ranks
        first_call, first_task = len(self.calls), len(self.tasks)
        first_connection = len(self.connections)
        for call in schedule.calls:
            members = tuple(ranks[rank] for rank in call.ranks)
            self.calls.append(replace(call, ranks=members))
        for task in schedule.tasks:
            rank = ranks[task.rank]
            deps = tuple(first_task + at for at in task.deps)
            self.tasks.append(
                replace(
                    task,
                    rank=rank,
                    stream=f"{placed.name} {task.stream}",
                    deps=deps or before.get(rank, ()),
                    call=task.call if task.call < 0 else first_call + task.call,
                )
            )
        self.connections += (
            self._connection(one, ranks) for one in schedule.connections
        )
        self.groups = max(
            (
                1 + one.key
                for one in self.connections[first_connection:]
                if one.kind == "aggregation"
            ),
            default=self.groups,
        )
        for one in schedule.instances:
            self.instances.append(
                replace(
                    one,
                    task=first_task + one.task,
                    rank=ranks[one.rank],
                    template=first_template + one.template,
                    connections=tuple(
                        number if number < 0 else first_connection + number
                        for number in one.connections
                    ),
                )
            )

    def _connection(self, one: Connection, ranks: Sequence[int]) -> Connection:
        """Return a connection between ranks of the fabric; groups of switches get new numbers."""
        moved = replace(
            one,
            src=ranks[one.src],
            dst=ranks[one.dst],
            members=tuple(ranks[rank] for rank in one.members),
        )
        if one.kind != "aggregation":
            return moved
        return replace(moved, key=self.groups + one.key)

    def _last_tasks(self, first: int) -> dict[int, tuple[int, ...]]:
        """Return the tasks from `first` on that no other waits for, by rank."""
        awaited = {at for task in self.tasks[first:] for at in task.deps}
        result: dict[int, list[int]] = defaultdict(list)
        for number in range(first, len(self.tasks)):
            if number not in awaited:
                result[self.tasks[number].rank].append(number)
        return {rank: tuple(numbers) for rank, numbers in result.items()}


def join_schedules(
    name: str, num_ranks: int, placed: Sequence[PlacedSchedule]
) -> tuple[Schedule, list[list[range]], list[list[range]]]:
    """Return the schedule of several jobs, and the tasks and the connections of every copy of each.

    Raises
    ------
    ScheduleError
        The schedules cannot run together.
    """
    joiner = _Joiner()
    ranges = [joiner.add(one) for one in placed]
    if not placed:
        joiner.tasks.append(Task("marker", 0, name="start"))
    schedule = Schedule(
        name,
        num_ranks,
        tuple(joiner.calls),
        tuple(joiner.templates),
        tuple(joiner.connections),
        tuple(joiner.instances),
        tuple(joiner.tasks),
    )
    validate(schedule)
    return schedule, [tasks for tasks, _ in ranges], [conns for _, conns in ranges]
