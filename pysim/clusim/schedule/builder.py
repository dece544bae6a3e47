"""Builds schedules: tasks on streams, with programs and connections."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import replace
from operator import attrgetter

from clusim.base.errors import InputError
from clusim.base.records import dataclass
from clusim.schedule.checks import validate
from clusim.schedule.ir import (
    ABSENT,
    CollectiveCall,
    Connection,
    Instance,
    Mode,
    Prim,
    Schedule,
    Task,
    Template,
)
from clusim.schedule.variables import Awaited, Names, Variables


class ProgramBuilder:
    """Builder of a checked `Schedule` from tasks, templates, connections and instances.

    Tasks of one rank and stream run in sequence; streams run concurrently. `after` adds dependencies.
    """

    def __init__(self, num_ranks: int, name: str = "schedule") -> None:
        if num_ranks < 1:
            raise InputError(f"schedule {name!r}: {num_ranks} ranks; must be >= 1")
        self.num_ranks = num_ranks
        self.name = name
        self._calls: list[CollectiveCall] = []
        self._templates: dict[Template, int] = {}
        self._by_tuple: dict[
            tuple[int, str, int, Mode], tuple[tuple[Prim, ...], int]
        ] = {}
        self._connections: list[Connection] = []
        self._instances: list[Instance] = []
        self._tasks: list[Task] = []
        self._last: dict[tuple[int, str], tuple[int, ...]] = {}
        self._groups = 0
        self._shared: dict[Hashable, int] = {}
        self._variables = Variables()

    def task(self, task: Task, after: Iterable[int] = ()) -> int:
        """Append `task` to its rank's stream and return its index."""
        deps = self._waits(task.rank, task.stream, (*task.deps, *after))
        return self._append(task if deps == task.deps else replace(task, deps=deps))

    def _waits(
        self, rank: int, stream: str, after: Iterable[int]
    ) -> tuple[int, ...]:
        """Return the dependencies of the next task of a stream."""
        return tuple(sorted({*self._last.get((rank, stream), ()), *after}))

    def _append(self, task: Task) -> int:
        """Append a task that has all its dependencies."""
        if not 0 <= task.rank < self.num_ranks:
            raise InputError(
                f"rank {task.rank}: out of range; must be 0..{self.num_ranks - 1}"
            )
        self._tasks.append(task)
        self._last[task.rank, task.stream] = (len(self._tasks) - 1,)
        return len(self._tasks) - 1

    def kernel(
        self,
        rank: int,
        *,
        stream: str = "compute",
        compute_ps: int = 0,
        flops: int = 0,
        precision: str = "",
        hbm_bytes: int = 0,
        sms: int = 0,
        name: str = "kernel",
        after: Iterable[int] = (),
    ) -> int:
        """Add a kernel: `compute_ps` [ps] or `flops` on `sms` SMs (0 = all), and `hbm_bytes` of memory traffic."""
        if compute_ps < 0 or flops < 0 or hbm_bytes < 0 or (compute_ps and flops):
            raise InputError(
                f"kernel {name!r}: set compute_ps or flops, not negative"
            )
        deps = self._waits(rank, stream, after)
        work = (compute_ps, flops, precision, hbm_bytes, sms)
        return self._append(Task("kernel", rank, stream, name, deps, ABSENT, *work))

    def delay(
        self,
        rank: int,
        delay_ps: int,
        *,
        stream: str = "compute",
        name: str = "",
        after: Iterable[int] = (),
    ) -> int:
        """Add a pause of `delay_ps` [ps]."""
        if delay_ps < 0:
            raise InputError(f"delay of rank {rank}: {delay_ps} ps; must be >= 0")
        deps = self._waits(rank, stream, after)
        return self._append(
            Task("delay", rank, stream, name, deps, delay_ps=delay_ps)
        )

    def marker(
        self,
        rank: int,
        name: str,
        *,
        stream: str = "compute",
        after: Iterable[int] = (),
    ) -> int:
        """Add a named moment."""
        return self.task(Task("marker", rank, stream, name=name), after)

    def wait(
        self, rank: int, tasks: int | Iterable[int], *, stream: str = "compute"
    ) -> None:
        """Make all later tasks of the stream depend on `tasks` as well."""
        awaited = (tasks,) if isinstance(tasks, int) else tuple(tasks)
        self._last[(rank, stream)] = self._last.get((rank, stream), ()) + awaited

    def push(
        self,
        operation: Callable[[Awaited], object],
        *,
        read: Names = (),
        mutate: Names = (),
    ) -> tuple[int, ...]:
        """Add an operation with dependencies from the variables that it reads and mutates.

        Parameters
        ----------
        operation : callable
            Adds tasks to this builder, on any streams and ranks; the first must wait for its argument: ``after``
            of a kernel, ``after.by_rank`` of a collective.
        read, mutate : sequence, or dict of int to sequence
            Names of variables; one that is in both is mutated. Names by rank are variables of that rank.

        Returns
        -------
        tuple of int
            The operation's last tasks.

        Raises
        ------
        InputError
            The operation added no task, or tasks that do not wait.

        Examples
        --------
        >>> builder = ProgramBuilder(1)
        >>> def load(after):
        ...     return builder.kernel(0, compute_ps=10, stream="copies", after=after)
        >>> def add(after):
        ...     return builder.kernel(0, compute_ps=10, stream="compute", after=after)
        >>> builder.push(load, mutate=["A"]), builder.push(add, read=["A"], mutate=["B"])
        ((0,), (1,))
        >>> builder.build().tasks[1].deps
        (0,)
        """
        return self._variables.push(self._tasks, operation, read, mutate)

    def call(self, call: CollectiveCall) -> int:
        """Add a collective call and return its index."""
        self._calls.append(call)
        return len(self._calls) - 1

    @property
    def last_call(self) -> CollectiveCall:
        """The collective call that was added last."""
        return self._calls[-1]

    def assign(self, task: int, call: int) -> None:
        """Let a program task belong to a call that was added after it."""
        self._tasks[task] = replace(self._tasks[task], call=call)

    def template(
        self,
        name: str,
        prims: Iterable[Prim],
        nchunks: int = 1,
        mode: Mode = "interleaved",
    ) -> int:
        """Return the index of a template with these primitives, sharing equal ones.

        Passing the same tuple object again skips the comparison.
        """
        key = id(prims), name, nchunks, mode
        if key in self._by_tuple:
            return self._by_tuple[key][1]
        template = Template(name, tuple(prims), nchunks, mode)
        index = self._templates.setdefault(template, len(self._templates))
        if isinstance(prims, tuple):  # keeps the tuple alive while its id is a key
            self._by_tuple[key] = prims, index
        return index

    def shared_template(
        self,
        key: Hashable,
        name: str,
        make: Callable[[], Iterable[Prim]],
        nchunks: int = 1,
        mode: Mode = "interleaved",
    ) -> int:
        """Return the index of the template of many primitives that `make` returns, called once per `key`."""
        if key not in self._shared:
            self._shared[key] = self.template(name, make(), nchunks, mode)
        return self._shared[key]

    def connection(self, connection: Connection) -> int:
        """Add a connection and return its index."""
        self._connections.append(connection)
        return len(self._connections) - 1

    def new_group(self) -> int:
        """Return the number of a new aggregation group: the `key` of its connections."""
        self._groups += 1
        return self._groups - 1

    def instance(self, instance: Instance) -> None:
        """Add an instance of a template."""
        self._instances.append(instance)

    def build(self) -> Schedule:
        """Return the checked schedule."""
        instances = sorted(self._instances, key=attrgetter("task"))
        schedule = Schedule(
            self.name,
            self.num_ranks,
            tuple(self._calls),
            tuple(self._templates),
            tuple(self._connections),
            tuple(instances),
            tuple(self._tasks),
        )
        validate(schedule)
        return schedule


@dataclass(frozen=True, slots=True)
class Site:
    """Target of appended tasks: a schedule under construction, the stream of its ranks, and dependencies.

    Attributes
    ----------
    after : sequence of iterable of int, or None
        Dependencies beside the stream's order, per rank of the group in its order.
    """

    builder: ProgramBuilder
    stream: str = "comm0"
    after: Sequence[Iterable[int]] | None = None
