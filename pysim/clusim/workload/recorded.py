"""Conversion of recordings to schedules: the events of every rank, on a topology.

Simultaneous events form one *unit*: a collective is the events of all ranks with one group and sequence,
a launch of sends and receives the bunches that share messages. A unit is written once all earlier events
of its ranks are written; a recording in which that is impossible contradicts itself. An eager message is
a unit of its sender only: it is sent at once, as if the other end were always ready; its receive is a
mark that waits for its arrival.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass, field

from clusim.base.errors import InputError
from clusim.base.limits import uncollected
from clusim.base.terms.dtypes import DTYPES
from clusim.base.terms.operations import OF_NCCL, ROOTED
from clusim.formats.recordings.model import ABSENT, Event, Group, Recording
from clusim.schedule.builder import ProgramBuilder
from clusim.schedule.ir import Schedule
from clusim.workload.prices import Prices
from clusim.workload.recorded_emitter import NcclEmitter

MESSAGES = ("send", "recv")


@dataclass(slots=True)
class WrittenUnit:
    """Events written together; `tasks` by event, `missing` the ranks that did not record."""

    events: list[int] = field(default_factory=list)
    tasks: dict[int, tuple[int, ...]] = field(default_factory=dict)
    missing: int = 0


@dataclass(slots=True)
class Translation:
    """Recording as a schedule.

    Attributes
    ----------
    units : list of WrittenUnit
        Units in the order in which they were written.
    tasks : list of tuple of int
        Tasks of each event of the recording; empty for an event without work.
    notes : Counter
        Assumption or omission -> count.
    """

    schedule: Schedule
    units: list[WrittenUnit]
    tasks: list[tuple[int, ...]]
    notes: Counter[str]


def to_schedule(
    recording: Recording,
    emitter: NcclEmitter,
    *,
    gap: str | int = "logged",
    most: int | None = None,
) -> Translation:
    """Write a recording as a schedule.

    Parameters
    ----------
    gap : str or int
        Time between an event and its dependencies: ``logged`` keeps recorded pauses, ``none`` removes them,
        a number is a pause before every event [ps].
    most : int or None
        Limit on collectives and messages per rank; later ones are omitted.

    Raises
    ------
    InputError
        The events cannot be ordered, or name ranks or groups that do not exist.
    """
    with uncollected():
        return _Writer(recording, emitter, gap, most).translation()


def precision_of(peaks: Mapping[str, float], dtype: str) -> str:
    """Return the precision of a data type on a GPU with these rates, or a substitute it has."""
    wanted = DTYPES[dtype].peak if dtype in DTYPES else ""
    return next((name for name in (wanted, "bf16", "f16", "f32") if name in peaks), wanted)


class _Writer:
    """State of one translation."""

    def __init__(
        self, recording: Recording, emitter: NcclEmitter, gap: str | int, most: int | None
    ) -> None:
        self.recording, self.emitter, self.gap = recording, emitter, gap
        self.notes: Counter[str] = Counter()
        starts = [event.start_ps for event in recording.events if event.start_ps != ABSENT]
        self.origin_ps = min(starts, default=0)
        self.endpoints = {node.name: node.endpoint for node in emitter.fabric.nodes}
        self.builder = ProgramBuilder(emitter.fabric.num_ranks, f"replay of {recording.name}")
        self.groups = [*recording.groups, Group("all ranks", tuple(range(recording.num_ranks)))]
        self.prices: dict[int, Prices] = {}
        self.kept = self._kept(most)
        self.source = self._sources()
        self.eager = {*self.source, *self.source.values()}
        self.arrived: dict[int, tuple[int, ...]] = {}
        self.before = self._predecessors()
        self.tasks: list[tuple[int, ...]] = [()] * len(recording.events)
        self.units = self._units()
        self.unit_of = {number: at for at, unit in enumerate(self.units) for number in unit.events}

    def _bad(self, event: Event, message: str) -> InputError:
        return InputError(f"{event.where or self.recording.name}: {message}")

    def _group(self, event: Event) -> Group:
        if event.group == ABSENT:
            return self.groups[-1]
        if not 0 <= event.group < len(self.recording.groups):
            raise self._bad(event, f"group {event.group} does not exist")
        return self.groups[event.group]

    def _kept(self, most: int | None) -> list[int]:
        """Return the events that are written, checked."""
        done: Counter[int] = Counter()
        kept = []
        for number, event in enumerate(self.recording.events):
            if not 0 <= event.rank < self.recording.num_ranks:
                raise self._bad(
                    event, f"rank {event.rank}; the job has ranks 0..{self.recording.num_ranks - 1}"
                )
            if most is not None and done[event.rank] >= most:
                self.notes[f"events after {most} calls of their rank omitted"] += 1
                continue
            done[event.rank] += event.kind in ("collective", *MESSAGES)
            kept.append(number)
        return kept

    def _sources(self) -> dict[int, int]:
        """Return the eager receives, with their sends."""
        events = self.recording.events
        eager = [n for n in self.kept if events[n].eager and events[n].kind in MESSAGES]
        sent = {self.ends(n): n for n in eager if events[n].kind == "send"}
        taken = ((n, sent.get(self.ends(n))) for n in eager if events[n].kind == "recv")
        return {number: send for number, send in taken if send is not None}

    def _predecessors(self) -> list[tuple[int, ...]]:
        """Return the dependencies of every event: its stream, and its named ones."""
        last: dict[tuple[int, str], tuple[int, ...]] = {}
        result: list[tuple[int, ...]] = [()] * len(self.recording.events)
        bunch_before: dict[Hashable, tuple[int, ...]] = {}
        kept = set(self.kept)
        for number in self.kept:
            event = self.recording.events[number]
            key = (event.rank, event.stream)
            before = last.get(key, ())
            together: tuple[int, ...] = ()
            if event.kind in MESSAGES and event.bunch != ABSENT:
                # Events of a bunch are one launch: all wait for the events before the first of them.
                bunch = (*key, event.bunch)
                together = before if bunch in bunch_before else ()
                before = bunch_before.setdefault(bunch, before)
            result[number] = tuple(dict.fromkeys((*before, *(d for d in event.deps if d in kept))))
            last[key] = (*together, number)
        return result

    def _units(self) -> list[WrittenUnit]:
        """Return the units; bunches that share messages are one, unless a rank has two in it."""
        units = _by_key((self._key(number), number) for number in self.kept)
        joined = self._joined(units)
        if joined is not None:
            return joined
        numbers = [(at, number) for at, unit in enumerate(units) for number in unit.events]
        return _by_key(
            (self.ends(number) if self._is_met(number) else at, number) for at, number in numbers
        )

    def _key(self, number: int) -> Hashable:
        event = self.recording.events[number]
        if event.kind == "collective":
            return ("collective", event.group, event.sequence)
        if event.kind in MESSAGES and event.bunch != ABSENT and not event.eager:
            return ("bunch", event.rank, event.stream, event.group, event.bunch)
        return ("event", number)

    def _is_met(self, number: int) -> bool:
        """Return True for an end of a message that is transferred when both ends are ready."""
        message = self.recording.events[number].kind in MESSAGES
        return message and number not in self.eager

    def _joined(self, units: list[WrittenUnit]) -> list[WrittenUnit] | None:
        """Join bunches that share messages; None if a rank would have two bunches in one launch."""
        first: dict[Hashable, int] = {}
        joined: dict[int, int] = {}

        def root(at: int) -> int:
            while at in joined:
                at = joined[at]
            return at

        ranks = [{self.recording.events[n].rank for n in unit.events} for unit in units]
        for at, number in ((at, n) for at, unit in enumerate(units) for n in unit.events):
            if not self._is_met(number):
                continue
            one, two = root(first.setdefault(self.ends(number), at)), root(at)
            if one != two and ranks[one] & ranks[two]:
                return None
            if one != two:
                joined[two] = one
                ranks[one] |= ranks[two]
        for at, unit in enumerate(units):
            top = root(at)
            if top != at:
                units[top].events += unit.events
                unit.events = []
        return [unit for unit in units if unit.events]

    def ends(self, number: int) -> tuple[int, int, int, int, int]:
        """Return the identity of a send's or recv's message: group, source, target, tag, sequence."""
        event = self.recording.events[number]
        group = self._group(event)
        if event.rank not in group.ranks or not 0 <= event.peer < len(group.ranks):
            raise self._bad(
                event,
                f"{event.kind} of rank {event.rank} with peer {event.peer}"
                f" of group {group.name!r} ({len(group.ranks)} ranks)",
            )
        rank = group.ranks.index(event.rank)
        pair = (rank, event.peer) if event.kind == "send" else (event.peer, rank)
        return (event.group, *pair, event.tag, event.sequence)

    def translation(self) -> Translation:
        """Write all units in an order that is valid for every rank."""
        waits: list[set[int]] = [set() for _ in self.units]
        wakes: list[list[int]] = [[] for _ in self.units]
        for at, unit in enumerate(self.units):
            for number in unit.events:
                waits[at] |= {self.unit_of[n] for n in self.before[number]} - {at}
                if number in self.source:
                    waits[at].add(self.unit_of[self.source[number]])
            for other in waits[at]:
                wakes[other].append(at)
        open_ = [len(wait) for wait in waits]
        ready = deque(at for at, count in enumerate(open_) if not count)
        order: list[WrittenUnit] = []
        while ready:
            at = ready.popleft()
            self._write(self.units[at])
            order.append(self.units[at])
            for other in wakes[at]:
                open_[other] -= 1
                if not open_[other]:
                    ready.append(other)
        if len(order) < len(self.units):
            stuck = next(at for at, count in enumerate(open_) if count)
            event = self.recording.events[self.units[stuck].events[0]]
            raise self._bad(
                event,
                f"rank {event.rank} cannot reach {event.operation or event.kind}"
                f" {event.name!r}: ranks call in different orders ({len(self.units) - len(order)} of"
                f" {len(self.units)} steps are left)",
            )
        return Translation(self.builder.build(), order, self.tasks, self.notes)

    def _write(self, unit: WrittenUnit) -> None:
        first = unit.events[0]
        event = self.recording.events[first]
        if first in self.source:
            self._arrive(first, event)
            return
        if event.kind == "collective":
            self._collective(unit, event)
        elif event.kind in MESSAGES:
            self._messages(unit, event)
        else:
            self._local(first, event)
        for number in unit.events:
            unit.tasks[number] = tuple(
                dict.fromkeys((*self.tasks[number], *self.arrived.get(number, ())))
            )

    def _arrive(self, number: int, event: Event) -> None:
        """Make a receive wait for its message, which is written already."""
        after = (*self._after(number), *self.arrived[self.source[number]])
        rank = self.emitter.place[event.rank]
        name = event.name or event.kind
        self.tasks[number] = (
            self.builder.marker(rank, name, stream=f"recv {event.stream} {number}", after=after),
        )

    def _after(self, number: int) -> tuple[int, ...]:
        """Return the tasks an event waits for, with the pause before it."""
        event = self.recording.events[number]
        tasks = tuple(task for n in self.before[number] for task in self.tasks[n])
        pause = self._pause(number, event)
        if pause <= 0:
            return tasks
        stream = f"pause {event.stream} {number}"
        rank = self.emitter.place[event.rank]
        return (self.builder.delay(rank, pause, stream=stream, name="gap", after=tasks),)

    def _pause(self, number: int, event: Event) -> int:
        if isinstance(self.gap, int):
            return self.gap if self.before[number] else 0
        if self.gap != "logged" or event.start_ps == ABSENT:
            return 0
        ends = [
            other.start_ps + max(0, other.duration_ps)
            for other in (self.recording.events[n] for n in self.before[number])
            if other.start_ps != ABSENT
        ]
        return event.start_ps - max(ends, default=self.origin_ps)

    def _pass(self, number: int) -> None:
        """Pass the dependencies of an event without work to its successors."""
        self.tasks[number] = self._after(number)

    def _local(self, number: int, event: Event) -> None:
        rank, after = self.emitter.place[event.rank], self._after(number)
        stream, name = f"rank {event.stream}", event.name or event.kind
        if event.kind == "delay":
            task = self.builder.delay(
                rank, max(0, event.duration_ps), stream=stream, name=name, after=after
            )
        elif event.operator is not None or event.duration_ps > 0:
            task = self.builder.kernel(
                rank,
                compute_ps=self._kernel_ps(rank, event),
                hbm_bytes=event.mem_bytes,
                sms=event.sms,
                stream=stream,
                name=name,
                after=after,
            )
        elif event.flops > 0 or event.mem_bytes > 0:
            task = self.builder.kernel(
                rank,
                flops=event.flops,
                precision=self._precision(rank, event.dtype) if event.flops > 0 else "",
                hbm_bytes=event.mem_bytes,
                stream=stream,
                name=name,
                after=after,
            )
        else:
            task = self.builder.marker(rank, name, stream=stream, after=after)
        self.tasks[number] = (task,)

    def _kernel_ps(self, rank: int, event: Event) -> int:
        """Return the time of a kernel as recorded, or of its operator on the rank's GPU [ps]."""
        endpoint = self.endpoints.get(self.emitter.fabric.ranks[rank])
        if event.operator is None or endpoint is None:
            return max(0, event.duration_ps)
        if rank not in self.prices:
            known = (prices for prices in self.prices.values() if prices.endpoint == endpoint)
            self.prices[rank] = next(known, None) or Prices(endpoint)
        return self.prices[rank].price(event.operator).time_ps

    def _precision(self, rank: int, dtype: str) -> str:
        """Return the precision of a data type on a rank's GPU, or a substitute it has."""
        endpoint = self.endpoints.get(self.emitter.fabric.ranks[rank])
        return precision_of(endpoint.peak_flops if endpoint is not None else {}, dtype)

    def _collective(self, unit: WrittenUnit, event: Event) -> None:
        group = self._group(event)
        of_rank: dict[int, int] = {}
        for number in unit.events:
            other = self.recording.events[number]
            if other.rank in of_rank or other.rank not in group.ranks:
                raise self._bad(
                    other,
                    f"rank {other.rank} participates in call {event.sequence} of"
                    f" group {group.name!r} {'twice' if other.rank in of_rank else 'and is not in it'}",
                )
            of_rank[other.rank] = number
            if (other.operation, other.bytes) != (event.operation, event.bytes):
                self.notes[
                    "collectives on which ranks contradict each other: the first rank is believed"
                ] += 1
        unit.missing = len(group.ranks) - len(of_rank)
        problem = _no_program(group, event)
        if problem:
            self.notes[problem] += 1
            for number in unit.events:
                self._pass(number)
            return
        if event.operation in ROOTED and event.root == ABSENT:
            self.notes["roots are not recorded; taken as position 0 of the group"] += 1
        elif event.operation in ROOTED and not 0 <= event.root < len(group.ranks):
            raise self._bad(
                event,
                f"root {event.root} of {event.operation}; group {group.name!r} has positions 0..{len(group.ranks) - 1}",
            )
        if unit.missing:
            self.notes["ranks without a recording, assumed to be ready for their collectives"] += (
                unit.missing
            )
        after = [self._after(of_rank[r]) if r in of_rank else () for r in group.ranks]
        tasks = self.emitter.collective(
            self.builder, group.ranks, event, f"group {event.group}", after
        )
        for rank, task in zip(group.ranks, tasks, strict=True):
            if rank in of_rank:
                self.tasks[of_rank[rank]] = (task,)

    def _messages(self, unit: WrittenUnit, event: Event) -> None:
        """Write a launch; if a rank has several messages in it, each message separately."""
        group = self._group(event)
        result: dict[tuple[int, int, int, int, int], list[int]] = {}
        for number in unit.events:
            result.setdefault(self.ends(number), []).append(number)
        taken = set(self.source.values())
        lonely = sum(len(numbers) < 2 and numbers[0] not in taken for numbers in result.values())
        if lonely:
            self.notes["messages recorded at one end only: the other end is assumed ready"] += (
                lonely
            )
        sizes = {
            ends: max(self.recording.events[n].bytes for n in ns) for ends, ns in result.items()
        }
        after: dict[int, tuple[int, ...]] = {}
        for number in unit.events:
            rank = self.recording.events[number].rank
            after[rank] = tuple(dict.fromkeys((*after.get(rank, ()), *self._after(number))))
        put = event.algorithm == "put"
        messages = [(ends[1], ends[2], size) for ends, size in sizes.items() if size > 0 or put]
        number = unit.events[0]
        if not messages or len(group.ranks) < 2:
            for other in unit.events:
                self.tasks[other] = after[self.recording.events[other].rank]
            self.arrived[number] = self.tasks[number]
            return
        if event.eager and event.kind == "send":
            after[group.ranks[event.peer]] = after[event.rank]
        append = self.emitter.puts if put else self.emitter.messages
        tasks = append(
            self.builder, group.ranks, messages, f"p2p {event.group} {number}",
            [after.get(rank, ()) for rank in group.ranks],
        )  # fmt: skip
        for other in unit.events:
            self.tasks[other] = tasks[group.ranks.index(self.recording.events[other].rank)]
        if event.eager and event.kind == "send":
            self.arrived[number] = tasks[event.peer]


def _no_program(group: Group, event: Event) -> str:
    """Return the reason why a collective is omitted, empty if it is not."""
    if len(group.ranks) < 2:
        return "collectives of a single rank: no data to send"
    if event.operation == "barrier":
        return ""
    if event.operation not in OF_NCCL:
        return f"collectives {event.operation or event.name!r} are not supported by clusim"
    if event.bytes < 1:
        return "collectives without a size"
    return ""


def _by_key(numbers: Iterable[tuple[Hashable, int]]) -> list[WrittenUnit]:
    """Return units of the events with equal keys, in the order of their first events."""
    units: dict[Hashable, WrittenUnit] = {}
    for key, number in numbers:
        units.setdefault(key, WrittenUnit()).events.append(number)
    return list(units.values())
