"""Scheduled events, in the order of section 1 of the contract."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import IntEnum


class Class(IntEnum):
    """Classes of phase A at one timestamp, in their order; the last two only touch wires."""

    FAULT = 1
    ARRIVE = 2
    RESPOND = 3
    RESULT = 4
    FREE = 5
    PAUSE = 6  # and RESUME
    NOTIFY = 7
    TIMER = 8
    CREDIT = 9  # adds credit; nothing in phase A looks at it
    WAKE = 10  # makes phase B of this timestamp look at a wire


@dataclass(order=True, slots=True)
class _Event:
    time_ps: int
    kind: Class
    major: int  # fault, wire or unit index
    minor: int  # order within `major`
    sequence: int
    action: Callable[[], None] = field(compare=False)


class Scheduler:
    """A heap of events ordered by (time, class, the contract's ids, order of insertion)."""

    def __init__(self) -> None:
        self._heap: list[_Event] = []
        self._sequence = 0

    def add(
        self, time_ps: int, kind: Class, action: Callable[[], None], order: tuple[int, int] = (0, 0)
    ) -> None:
        """Let `action` happen at `time_ps`; `order` ranks it inside its class."""
        self._sequence += 1
        event = _Event(time_ps, kind, order[0], order[1], self._sequence, action)
        heapq.heappush(self._heap, event)

    def next_time(self) -> int | None:
        """Return the time of the earliest event [ps], or None."""
        return self._heap[0].time_ps if self._heap else None

    def pop(self, now_ps: int) -> Callable[[], None] | None:
        """Remove and return the next event of `now_ps`, or None if there is no more."""
        if not self._heap or self._heap[0].time_ps != now_ps:
            return None
        return heapq.heappop(self._heap).action
