"""The waves of phase A (section 1, 5.): what is due at the present time, and in which order."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol


class Actor(Protocol):
    """The part of the schedule that waves set in motion."""

    def start_task(self, task: int) -> None:
        """Start a task."""
        ...

    def start_instances(self) -> None:
        """Give free CTA slots to instances that wait for one."""
        ...

    def advance(self, instance: int) -> None:
        """Let an instance go as far as it can."""
        ...


class Waves:
    """What is due now.

    Attributes
    ----------
    tasks, runnable : set of int
        Tasks whose predecessors are done; instances that may be able to go on.
    slots_changed : bool
        Whether a CTA slot was freed or an instance began to wait for one.
    """

    def __init__(self) -> None:
        self.tasks: set[int] = set()
        self.runnable: set[int] = set()
        self.slots_changed = False
        self._delays: list[Callable[[], None]] = []

    def later(self, action: Callable[[], None]) -> None:
        """Let `action` happen at the beginning of the next wave: a delay of 0."""
        self._delays.append(action)

    def run(self, actor: Actor) -> None:
        """Run waves until nothing is due."""
        while self._delays or self.tasks or self.runnable or self.slots_changed:
            delays, self._delays = self._delays, []
            for action in delays:
                action()
            tasks, self.tasks = sorted(self.tasks), set()
            for task in tasks:
                actor.start_task(task)
            self.slots_changed = False
            actor.start_instances()
            runnable, self.runnable = sorted(self.runnable), set()
            for instance in runnable:
                actor.advance(instance)
