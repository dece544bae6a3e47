"""Order of the events of task graphs, found by playing them.

A graph does not have streams: independent events may run concurrently, but a unit (GPU stream or CPU thread) executes
one at a time, the first in the recording of those that are ready. Calls of a communicator follow each other as in the
recording; messages follow only their dependencies. An eager message is transferred when it is sent, even if its receive
is not posted. The resulting order is feasible, so a schedule that keeps it cannot deadlock.

**Parameters** Recorded times of computation; rough estimates of communication.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Sequence
from dataclasses import replace
from functools import partial
from heapq import heappop, heappush

from clusim.base.errors import InputError
from clusim.base.match import message_ends
from clusim.formats.recordings.model import ABSENT, Event, Recording
from clusim.jobs.live import LiveClock, PlayedOperation, SeparateCalls

_LATENCY_PS = 10_000_000
_PS_PER_BYTE = 10
"""Communication time assumed in playing: 10 us, and 100 GB/s."""

Unit = tuple[int, str]
"""Rank and stream."""


def sort_by_start(recording: Recording) -> Recording:
    """Return a graph with its events in the order in which they start; other recordings are unchanged.

    Raises
    ------
    InputError
        Ranks wait for each other.
    """
    if not recording.is_graph:
        return recording
    order = _GraphClock(recording).sort()
    place = {at: now for now, at in enumerate(order)}
    events = [
        replace(event, deps=tuple(place[dep] for dep in event.deps))
        for event in map(recording.events.__getitem__, order)
    ]
    return replace(recording, events=events, is_graph=False)


class _GraphClock(LiveClock):
    """Clock of a task graph.

    Every event has an operation that begins when it is ready; a match of calls or messages has others, which move data.
    """

    def __init__(self, recording: Recording) -> None:
        super().__init__(SeparateCalls({}), 1)
        self.recording, self.events = recording, recording.events
        self.order: list[int] = []
        self.queues: dict[Unit, list[int]] = defaultdict(list)
        self.busy: set[Unit] = set()
        self.touched: dict[Unit, None] = {}
        self.begins = [
            PlayedOperation(at, event.rank) for at, event in enumerate(self.events)
        ]
        self.ends = [*self.begins]

    def sort(self) -> list[int]:
        """Return the events in the order in which they start."""
        matches: dict[Hashable, list[int]] = defaultdict(list)
        for at, event in enumerate(self.events):
            if event.group != ABSENT:
                matches[_match_of(self.recording, event)].append(at)
        for members in matches.values():
            self._move(members)
        chain = _previous_calls(self.events)
        for at, event in enumerate(self.events):
            deps = [*event.deps, chain[at]] if at in chain else event.deps
            self.add(self.begins[at], [self.ends[dep] for dep in deps])
        while self.advance():
            pass
        for event, end in zip(self.events, self.ends, strict=True):
            if event.group != ABSENT and not end.is_complete:
                raise InputError(
                    f"{event.where}: {event.operation or event.kind} {event.name!r} of rank {event.rank} never gets"
                    " done: ranks wait for each other; the traces contradict each other or are of different runs"
                )
        return self.order

    def _move(self, members: Sequence[int]) -> None:
        """Add the communication of a match, which ends its events."""
        begins = {self.events[at].kind: self.begins[at] for at in members}
        size = max(self.events[at].bytes for at in members)
        move = PlayedOperation(
            len(self.events) + members[0], 0, _LATENCY_PS + size * _PS_PER_BYTE
        )
        for at in members:
            self.ends[at] = move
        if len(members) == 1 or not self.events[members[0]].eager:
            self.add(move, [self.begins[at] for at in members])
            return
        self.add(move, [begins["send"]])
        arrival = PlayedOperation(len(self.events) + members[1], 0)
        self.ends[begins["recv"].number] = arrival
        self.add(arrival, [begins["recv"], move])

    def _begin(self, at: int) -> None:
        number = self._operations[at].number
        if number >= len(self.events):
            super()._begin(at)
            return
        event = self.events[number]
        if event.group != ABSENT:
            self.order.append(number)
            self._complete((at,))
            return
        unit = event.rank, event.stream
        heappush(self.queues[unit], number)
        self.touched[unit] = None

    def _settle(self) -> None:
        """Start the first ready event of every free unit."""
        touched, self.touched = self.touched, {}
        for unit in touched:
            if self.queues[unit] and unit not in self.busy:
                self.busy.add(unit)
                number = heappop(self.queues[unit])
                self.order.append(number)
                event, begin = self.events[number], self.begins[number]
                begin.action = partial(self._free, unit)
                counted_ps = event.flops // 100 + event.mem_bytes
                time_ps = event.duration_ps if event.duration_ps > 0 else counted_ps
                self._run(begin.at, time_ps, 0)

    def _free(self, unit: Unit) -> None:
        self.busy.discard(unit)
        self.touched[unit] = None


def _match_of(recording: Recording, event: Event) -> Hashable:
    """Return what all events of a call or message have in common."""
    if event.kind == "collective":
        return event.group, event.sequence
    ranks = recording.groups[event.group].ranks
    ends = message_ends(event.kind, event.rank, ranks[event.peer])
    return event.group, *ends, event.tag, event.sequence


def _previous_calls(events: Sequence[Event]) -> dict[int, int]:
    """Return the previous call of each call's communicator, if its ranks call in the order of their numbers."""
    last: dict[tuple[int, int], int] = {}
    result: dict[int, int] = {}
    unordered: set[int] = set()
    for at, event in enumerate(events):
        if event.kind != "collective":
            continue
        before = last.get((event.rank, event.group))
        last[event.rank, event.group] = at
        if before is not None:
            result[at] = before
            if events[before].sequence > event.sequence:
                unordered.add(event.group)
    return {at: b for at, b in result.items() if events[at].group not in unordered}
