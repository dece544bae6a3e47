"""Conversion of jobs to schedules: the operations of every rank, on a system.

A unit (`clusim.jobs.match`) is written once all earlier operations of its ranks are written; a job in which that is
impossible contradicts itself. The receive of an eager message is a mark that waits for its arrival.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise

from clusim.base.errors import InputError
from clusim.base.limits import pause_collector
from clusim.base.match import find_cycle
from clusim.base.terms.dtypes import DTYPES
from clusim.base.terms.operations import OF_NCCL, ROOTED
from clusim.formats.recordings.model import ABSENT, Group
from clusim.jobs.emitter import NcclEmitter
from clusim.jobs.match import Matcher, MessageEnds
from clusim.jobs.model import CallWork, DelayWork, JobGraph, KernelWork, MessageWork
from clusim.schedule.builder import ProgramBuilder, Site
from clusim.schedule.ir import Schedule
from clusim.workload.prices import Prices

MOST_SHOWN = 4
"""Most operations of a deadlock that an error names."""


@dataclass(slots=True)
class WrittenUnit:
    """Operations written together; `tasks` by operation, `missing` the ranks that are not in the job."""

    operations: list[int]
    tasks: dict[int, tuple[int, ...]] = field(default_factory=dict)
    missing: int = 0


@dataclass(slots=True)
class Translation:
    """Job as a schedule.

    Attributes
    ----------
    units : list of WrittenUnit
        Units in the order in which they were written.
    tasks : list of tuple of int
        Tasks of each operation of the job; empty for an operation without work.
    notes : Counter
        Assumption or omission -> count.
    """

    schedule: Schedule
    units: list[WrittenUnit]
    tasks: list[tuple[int, ...]]
    notes: Counter[str]


def to_schedule(
    job: JobGraph,
    emitter: NcclEmitter,
    *,
    gap: str | int = "logged",
    most: int | None = None,
) -> Translation:
    """Write a job as a schedule.

    Parameters
    ----------
    gap : str or int
        Time between an operation and its dependencies: ``logged`` keeps recorded pauses, ``none`` removes them,
        a number is a pause before every operation [ps].
    most : int or None
        Limit on collectives and messages per rank; later operations are omitted.

    Raises
    ------
    InputError
        The operations cannot be ordered, or name ranks or groups that do not exist.
    """
    with pause_collector():
        return _Writer(job, emitter, gap, most).translation()


def precision_of(peaks: Mapping[str, float], dtype: str) -> str:
    """Return the precision of a data type on a GPU with these rates, or a substitute it has."""
    peak = DTYPES[dtype].peak if dtype in DTYPES else ""
    return next(
        (name for name in (peak, "bf16", "f16", "f32") if name in peaks), peak
    )


class _Writer:
    """State of one translation."""

    def __init__(
        self, job: JobGraph, emitter: NcclEmitter, gap: str | int, most: int | None
    ) -> None:
        self.job, self.emitter, self.gap = job, emitter, gap
        self.notes: Counter[str] = Counter()
        self.endpoints = {node.name: node.endpoint for node in emitter.fabric.nodes}
        self.builder = ProgramBuilder(
            emitter.fabric.num_ranks, f"replay of {job.name}"
        )
        self.prices: dict[int, Prices] = {}
        self.kept = self._checked_operations(most)
        self.matcher = Matcher(job, self.kept)
        self.source = self.matcher.source
        self.received = set(self.source.values())
        self.arrived: dict[int, tuple[int, ...]] = {}
        self.before = self._predecessors()
        self.tasks: list[tuple[int, ...]] = [()] * len(job)
        self.units = [WrittenUnit(unit) for unit in self.matcher.units()]
        self.unit_of = {
            at: n for n, unit in enumerate(self.units) for at in unit.operations
        }

    def _checked_operations(self, most: int | None) -> list[int]:
        """Return the operations that are written, checked."""
        job, done = self.job, Counter[int]()
        result = []
        for at, rank in enumerate(job.rank):
            if not 0 <= rank < job.num_ranks:
                raise job.failure(
                    at, f"rank {rank}; the job has ranks 0..{job.num_ranks - 1}"
                )
            if most is not None and done[rank] >= most:
                self.notes[f"events after {most} calls of their rank omitted"] += 1
                continue
            done[rank] += isinstance(job.work[at], CallWork | MessageWork)
            result.append(at)
        return result

    def _predecessors(self) -> list[tuple[int, ...]]:
        """Return the dependencies of every operation: by its stream, and by name."""
        job = self.job
        last: dict[tuple[int, str], tuple[int, ...]] = {}
        result: list[tuple[int, ...]] = [()] * len(job)
        launch_before: dict[Hashable, tuple[int, ...]] = {}
        written_numbers = set(self.kept)
        for at in self.kept:
            key = (job.rank[at], job.stream[at])
            before = last.get(key, ())
            unit: tuple[int, ...] = ()
            if job.launch[at] != ABSENT and isinstance(job.work[at], MessageWork):
                # Messages of a launch all wait for the operations before the first of them.
                launch = (*key, job.launch[at])
                unit = before if launch in launch_before else ()
                before = launch_before.setdefault(launch, before)
            result[at] = tuple(
                dict.fromkeys(
                    (*before, *(d for d in job.deps[at] if d in written_numbers))
                )
            )
            last[key] = (*unit, at)
        return result

    def translation(self) -> Translation:
        """Write all units in an order that is valid for every rank."""
        waits: list[set[int]] = [set() for _ in self.units]
        wakes: list[list[int]] = [[] for _ in self.units]
        for number, unit in enumerate(self.units):
            for at in unit.operations:
                waits[number] |= {self.unit_of[n] for n in self.before[at]} - {
                    number
                }
                if at in self.source:
                    waits[number].add(self.unit_of[self.source[at]])
            for other in waits[number]:
                wakes[other].append(number)
        open_ = [len(wait) for wait in waits]
        ready = deque(number for number, count in enumerate(open_) if not count)
        order: list[WrittenUnit] = []
        while ready:
            number = ready.popleft()
            self._write(self.units[number])
            order.append(self.units[number])
            for other in wakes[number]:
                open_[other] -= 1
                if not open_[other]:
                    ready.append(other)
        if len(order) < len(self.units):
            raise self._deadlock(
                waits, {number for number, count in enumerate(open_) if count}
            )
        return Translation(self.builder.build(), order, self.tasks, self.notes)

    def _deadlock(self, waits: list[set[int]], stuck: set[int]) -> InputError:
        """Return the error of units that wait for each other, with a cycle of their operations."""
        first = self.units[min(stuck)].operations[0]
        cycle = find_cycle(min(stuck), lambda number: waits[number] & stuck)
        orders = [self._wait_of(number, other) for number, other in pairwise(cycle)]
        return self.job.failure(
            first,
            f"rank {self.job.rank[first]} cannot reach {self._call_of_work(first)}: ranks call in different orders"
            f" ({len(stuck)} of {len(self.units)} steps are left): {', '.join(orders[:MOST_SHOWN])}",
        )

    def _wait_of(self, number: int, other: int) -> str:
        """Return the description of operations of one rank, of which one unit waits for another."""
        pairs = next(
            (at, before)
            for at in self.units[number].operations
            for before in (*self.before[at], self.source.get(at, at))
            if self.unit_of[before] == other
        )
        places = (
            f"{self._call_of_work(at)} ({self.job.where[at] or self.job.name})"
            for at in pairs
        )
        return f"rank {self.job.rank[pairs[0]]} has {' after '.join(places)}"

    def _call_of_work(self, at: int) -> str:
        work = self.job.work[at]
        name = (isinstance(work, CallWork) and work.operation) or work.kind
        return f"{name} {self.job.label[at]!r}"

    def _write(self, unit: WrittenUnit) -> None:
        first = unit.operations[0]
        work = self.job.work[first]
        if first in self.source:
            self._arrive(first)
            return
        if isinstance(work, CallWork):
            self._collective(unit, work)
        elif isinstance(work, MessageWork):
            self._messages(unit, work)
        else:
            self._local(first, work)
        for at in unit.operations:
            unit.tasks[at] = tuple(
                dict.fromkeys((*self.tasks[at], *self.arrived.get(at, ())))
            )

    def _place(self, at: int) -> int:
        return self.emitter.place[self.job.rank[at]]

    def _name(self, at: int) -> str:
        return self.job.label[at] or self.job.work[at].kind

    def _arrive(self, at: int) -> None:
        """Let a receive wait for its message, which is written already."""
        after = (*self._after(at), *self.arrived[self.source[at]])
        stream = f"recv {self.job.stream[at]} {at}"
        self.tasks[at] = (
            self.builder.marker(
                self._place(at), self._name(at), stream=stream, after=after
            ),
        )

    def _after(self, at: int) -> tuple[int, ...]:
        """Return the tasks an operation waits for, with the pause before it."""
        tasks = tuple(task for n in self.before[at] for task in self.tasks[n])
        pause = self._pause(at)
        if pause <= 0:
            return tasks
        stream = f"pause {self.job.stream[at]} {at}"
        return (
            self.builder.delay(
                self._place(at), pause, stream=stream, name="gap", after=tasks
            ),
        )

    def _pause(self, at: int) -> int:
        if isinstance(self.gap, int):
            return self.gap if self.before[at] else 0
        start_ps, duration_ps = self.job.start_ps, self.job.duration_ps
        if self.gap != "logged" or start_ps[at] == ABSENT:
            return 0
        timed = [n for n in self.before[at] if start_ps[n] != ABSENT]
        ends = [start_ps[n] + max(0, duration_ps[n]) for n in timed]
        return start_ps[at] - max(ends, default=0)

    def _local(self, at: int, work: KernelWork | DelayWork) -> None:
        rank, after = self._place(at), self._after(at)
        stream, name = f"rank {self.job.stream[at]}", self._name(at)
        if isinstance(work, DelayWork):
            task = self.builder.delay(
                rank, work.time_ps, stream=stream, name=name, after=after
            )
        elif work.operator is not None or work.time_ps > 0:
            task = self.builder.kernel(
                rank,
                compute_ps=self._kernel_ps(rank, work),
                hbm_bytes=work.mem_bytes,
                sms=work.sms,
                stream=stream,
                name=name,
                after=after,
            )
        elif work.flops > 0 or work.mem_bytes > 0:
            task = self.builder.kernel(
                rank,
                flops=work.flops,
                precision=self._precision(rank, work.dtype)
                if work.flops > 0
                else "",
                hbm_bytes=work.mem_bytes,
                stream=stream,
                name=name,
                after=after,
            )
        else:
            task = self.builder.marker(rank, name, stream=stream, after=after)
        self.tasks[at] = (task,)

    def _kernel_ps(self, rank: int, work: KernelWork) -> int:
        """Return the time of a kernel as recorded, or of its operator on the rank's GPU [ps]."""
        endpoint = self.endpoints.get(self.emitter.fabric.ranks[rank])
        if work.operator is None or endpoint is None:
            return work.time_ps
        if rank not in self.prices:
            same = (
                prices
                for prices in self.prices.values()
                if prices.endpoint == endpoint
            )
            self.prices[rank] = next(same, None) or Prices(endpoint)
        return self.prices[rank].price(work.operator).time_ps

    def _precision(self, rank: int, dtype: str) -> str:
        """Return the precision of a data type on a rank's GPU, or a substitute it has."""
        endpoint = self.endpoints.get(self.emitter.fabric.ranks[rank])
        return precision_of(
            endpoint.peak_flops if endpoint is not None else {}, dtype
        )

    def _collective(self, unit: WrittenUnit, call: CallWork) -> None:
        first = unit.operations[0]
        group = self.job.members(first)
        of_rank = self._callers(unit, call, group)
        unit.missing = len(group.ranks) - len(of_rank)
        problem = _no_program(group, call, self.job.label[first])
        if problem:
            self.notes[problem] += 1
            for at in unit.operations:
                self.tasks[at] = self._after(at)
            return
        if call.operation in ROOTED and call.root == ABSENT:
            self.notes[
                "roots are not recorded; taken as position 0 of the group"
            ] += 1
        elif call.operation in ROOTED and not 0 <= call.root < len(group.ranks):
            raise self.job.failure(
                first,
                f"root {call.root} of {call.operation}; group {group.name!r} has positions 0..{len(group.ranks) - 1}",
            )
        if unit.missing:
            self.notes[
                "ranks without a recording, assumed to be ready for their collectives"
            ] += unit.missing
        after = [
            self._after(of_rank[r]) if r in of_rank else () for r in group.ranks
        ]
        site = Site(self.builder, f"group {self.job.group[first]}", after)
        tasks = self.emitter.collective(site, group.ranks, call)
        for rank, task in zip(group.ranks, tasks, strict=True):
            if rank in of_rank:
                self.tasks[of_rank[rank]] = (task,)

    def _callers(
        self, unit: WrittenUnit, call: CallWork, group: Group
    ) -> dict[int, int]:
        """Return the operation of each rank in a collective."""
        result: dict[int, int] = {}
        for at in unit.operations:
            rank, other = self.job.rank[at], self.job.work[at]
            if rank in result or rank not in group.ranks:
                raise self.job.failure(
                    at,
                    f"rank {rank} participates in call {self.job.number[at]} of"
                    f" group {group.name!r} {'twice' if rank in result else 'and is not in it'}",
                )
            result[rank] = at
            assert isinstance(other, CallWork)
            if (other.operation, other.bytes) != (call.operation, call.bytes):
                self.notes[
                    "collectives on which ranks contradict each other: the first rank is believed"
                ] += 1
        return result

    def _messages(self, unit: WrittenUnit, work: MessageWork) -> None:
        """Write a launch; if a rank has several messages in it, each message separately."""
        job, first = self.job, unit.operations[0]
        ranks = job.members(first).ranks
        messages = self._transfers(unit, put=work.put)
        after: dict[int, tuple[int, ...]] = {}
        for at in unit.operations:
            rank = job.rank[at]
            after[rank] = tuple(
                dict.fromkeys((*after.get(rank, ()), *self._after(at)))
            )
        if not messages or len(ranks) < 2:
            for at in unit.operations:
                self.tasks[at] = after[job.rank[at]]
            self.arrived[first] = self.tasks[first]
            return
        is_sent = work.eager and work.kind == "send"
        if is_sent:
            after[ranks[job.peer[first]]] = after[job.rank[first]]
        waits = [after.get(rank, ()) for rank in ranks]
        site = Site(self.builder, f"p2p {job.group[first]} {first}", waits)
        tasks = self.emitter.messages(site, ranks, messages, put=work.put)
        for at in unit.operations:
            self.tasks[at] = tasks[ranks.index(job.rank[at])]
        if is_sent:
            self.arrived[first] = tasks[job.peer[first]]

    def _transfers(
        self, unit: WrittenUnit, *, put: bool
    ) -> list[tuple[int, int, int]]:
        """Return source, target and bytes of the messages of a unit."""
        sizes: dict[MessageEnds, list[int]] = {}
        for at in unit.operations:
            work = self.job.work[at]
            assert isinstance(work, MessageWork)
            sizes.setdefault(self.matcher.ends(at), []).append(work.bytes)
        # The receive of an eager message is another unit.
        lonely = sum(len(message_ends) < 2 for message_ends in sizes.values())
        if lonely and unit.operations[0] not in self.received:
            self.notes[
                "messages recorded at one end only: the other end is assumed ready"
            ] += lonely
        largest = {ends: max(message_ends) for ends, message_ends in sizes.items()}
        return [
            (ends[1], ends[2], size)
            for ends, size in largest.items()
            if size > 0 or put
        ]


def _no_program(group: Group, call: CallWork, name: str) -> str:
    """Return the reason why a collective is omitted, empty if it is not."""
    if len(group.ranks) < 2:
        return "collectives of a single rank: no data to send"
    if call.operation == "barrier":
        return ""
    if call.operation not in OF_NCCL:
        return f"collectives {call.operation or name!r} are not supported by clusim"
    if call.bytes < 1:
        return "collectives without a size"
    return ""
