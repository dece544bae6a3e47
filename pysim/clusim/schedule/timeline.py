"""Task graph on streams with a clock, played in the order of time.

A task is ready when all tasks that it waits for are complete, the previous one of its stream included. A player derives
from `Timeline` and decides in `ready` how a task continues: it ends at a known time (`schedule`), or is kept until
others of a call are ready.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Iterable
from heapq import heappop, heappush
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class Timeline(ABC, Generic[T]):
    """Play of a task graph; times are integers of any unit.

    Attributes
    ----------
    now : int
        Present time.
    left : dict
        Incomplete tasks, with the number of tasks that each waits for.
    """

    def __init__(self) -> None:
        self.now = 0
        self.left: dict[T, int] = {}
        self._wakes: dict[Any, list[T]] = defaultdict(list)
        self._last: dict[str, T] = {}
        self._events: list[tuple[int, Any, T]] = []

    @property
    def busy(self) -> bool:
        """True if a task has an end."""
        return bool(self._events)

    def add(self, task: T, needs: Iterable[Any], stream: str | None = None) -> None:
        """Add a task that waits for all of `needs`, and for the previous task of its stream."""
        before = dict.fromkeys(needs)
        if stream is not None:
            if stream in self._last:
                before[self._last[stream]] = None
            self._last[stream] = task
        self.left[task] = len(before)
        for other in before:
            self._wakes[other].append(task)

    def schedule(self, time: int, task: T, turn: Any) -> None:
        """Let a task arrive at a time; tasks of the same time arrive in the order of `turn`."""
        heappush(self._events, (time, turn, task))

    def woken(self, done: Any) -> list[T]:
        """Complete a task or another condition; return the tasks that waited only for it."""
        self.left.pop(done, None)
        result = []
        for task in self._wakes.pop(done, ()):
            self.left[task] -= 1
            if not self.left[task]:
                result.append(task)
        return result

    def complete(self, done: Any) -> None:
        """Complete a task or another condition, and continue with the tasks that waited only for it."""
        for task in self.woken(done):
            self.ready(task)

    def play(self) -> None:
        """Play until no task has an end."""
        for task in [task for task, count in self.left.items() if not count]:
            self.ready(task)
        self.turn()
        while self.busy:
            self.now = self._events[0][0]
            while self._events and self._events[0][0] == self.now:
                self.arrives(heappop(self._events)[2])
            self.turn()

    @abstractmethod
    def ready(self, task: T) -> None:
        """Continue with a task that waits for no other one."""

    def arrives(self, task: T) -> None:
        """Continue with a task at its scheduled time; by default it is complete."""
        self.complete(task)

    def turn(self) -> None:
        """Act when all events of a time are handled."""
