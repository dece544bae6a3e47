"""Verification of schedules on real numbers, without a topology and without time.

The untimed scheduler runs any legal order of slices and finds deadlocks.
"""

from __future__ import annotations

import random
from collections import deque
from graphlib import TopologicalSorter

from clusim.base.errors import DeadlockError
from clusim.schedule.executor import CallCheck, Executor
from clusim.schedule.ir import ABSENT, Schedule


class _Untimed:
    """One untimed run: queue of runnable instances and waiters of each connection."""

    def __init__(self, executor: Executor, rng: random.Random | None) -> None:
        self.executor = executor
        self.rng = rng
        tasks = executor.schedule.tasks
        self.order = TopologicalSorter(
            {index: task.deps for index, task in enumerate(tasks)}
        )
        self.order.prepare()
        self.left = [
            len(executor.schedule.instances_of(task)) for task in range(len(tasks))
        ]
        self.unfinished = len(tasks)
        self.queue: deque[int] = deque()
        self.waiting: dict[tuple[str, int], int] = {}

    def run(self) -> None:
        """Run until all tasks are done, or raise `DeadlockError`."""
        self._start()
        while self.queue:
            self._advance(self._pick())
        if self.unfinished:
            raise DeadlockError(self._report())

    def _pick(self) -> int:
        if self.rng is not None:
            self.queue.rotate(self.rng.randrange(len(self.queue)))
        return self.queue.popleft()

    def _start(self) -> None:
        """Start all tasks whose dependencies are done."""
        while ready := self.order.get_ready():
            for task in ready:
                for index in self.executor.schedule.instances_of(task):
                    if self.executor.is_finished(index):
                        self.left[task] -= 1
                    else:
                        self.queue.append(index)
                self._finish(task)

    def _finish(self, task: int) -> bool:
        """Mark a task done if all its instances are; return True if it is."""
        if self.left[task]:
            return False
        self.unfinished -= 1
        self.order.done(task)
        return True

    def _advance(self, index: int) -> None:
        """Advance an instance until it blocks, or by one slice if the order is random."""
        executor = self.executor
        while not executor.is_finished(index):
            blocked = executor.blocked_on(index)
            if blocked is not None:
                self.waiting[blocked] = index
                return
            for gate in executor.step(index):
                woken = self.waiting.pop(gate, ABSENT)
                if woken != ABSENT:
                    self.queue.append(woken)
            if self.rng is not None and not executor.is_finished(index):
                self.queue.append(index)
                return
        task = executor.schedule.instances[index].task
        self.left[task] -= 1
        if self._finish(task):
            self._start()

    def _report(self) -> str:
        stuck = [
            index
            for index in self.waiting.values()
            if not self.executor.is_finished(index)
        ]
        listing = "; ".join(
            self.executor.describe_block(index) for index in sorted(stuck)[:8]
        )
        more = f"; and {len(stuck) - 8} more" if len(stuck) > 8 else ""
        return f"{self.executor.schedule.name}: {self.unfinished} tasks cannot finish: {listing}{more}"


def run_untimed(executor: Executor, seed: int | None = None) -> None:
    """Run all instances of `executor` to completion; `seed` selects a random legal order.

    Raises `DeadlockError` if no instance can advance and slices remain.
    """
    _Untimed(executor, random.Random(seed) if seed is not None else None).run()


def verify(
    schedule: Schedule, *, data: str = "exact", seed: int = 0
) -> list[CallCheck]:
    """Run `schedule` untimed and compare every call with its definition.

    With ``data="random"`` float reductions may differ by one unit in the last place per rank.
    """
    executor = Executor(schedule, data=data, seed=seed)
    run_untimed(executor)
    max_ranks = max((len(call.ranks) for call in schedule.calls), default=1)
    return executor.check(float(max_ranks) if data == "random" else None)
