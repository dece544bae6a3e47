"""Verification of schedules on real numbers, without a topology and without time.

The untimed scheduler runs any legal order of slices and finds deadlocks.
"""

from __future__ import annotations

import random
from collections import deque

from clusim.base.errors import DeadlockError
from clusim.schedule.executor import CallCheck, Executor
from clusim.schedule.ir import ABSENT, Schedule


class _Graph:
    """Counts down tasks and their successors."""

    def __init__(self, executor: Executor) -> None:
        tasks = executor.schedule.tasks
        self.waiting = [len(set(task.deps)) for task in tasks]
        self.successors: list[list[int]] = [[] for _ in tasks]
        for index, task in enumerate(tasks):
            for dep in set(task.deps):
                self.successors[dep].append(index)
        self.instances: list[list[int]] = [[] for _ in tasks]
        for index, instance in enumerate(executor.schedule.instances):
            self.instances[instance.task].append(index)
        self.left = [len(prims) for prims in self.instances]

    def finish(self, task: int) -> list[int]:
        """Mark a task done and return the tasks that start."""
        started = []
        for successor in self.successors[task]:
            self.waiting[successor] -= 1
            if self.waiting[successor] == 0:
                started.append(successor)
        return started


class _Untimed:
    """One untimed run: queue of runnable instances and waiters of each connection."""

    def __init__(self, executor: Executor, rng: random.Random | None) -> None:
        self.executor = executor
        self.rng = rng
        self.graph = _Graph(executor)
        self.queue: deque[int] = deque()
        self.waiting: dict[tuple[str, int], int] = {}
        self.unfinished = len(executor.schedule.tasks)
        self.started = [False] * len(executor.schedule.instances)

    def run(self) -> None:
        """Run until all tasks are done, or raise `DeadlockError`."""
        for task, count in enumerate(self.graph.waiting):
            if count == 0:
                self._start([task])
        while self.queue:
            self._advance(self._pick())
        if self.unfinished:
            raise DeadlockError(self._report())

    def _pick(self) -> int:
        if self.rng is not None:
            self.queue.rotate(self.rng.randrange(len(self.queue)))
        return self.queue.popleft()

    def _start(self, tasks: list[int]) -> None:
        pending = list(tasks)
        while pending:
            task = pending.pop()
            for index in self.graph.instances[task]:
                self.started[index] = True
                if self.executor.finished(index):
                    self.graph.left[task] -= 1
                else:
                    self.queue.append(index)
            if self.graph.left[task] == 0:
                self.unfinished -= 1
                pending.extend(self.graph.finish(task))

    def _advance(self, index: int) -> None:
        """Advance an instance until it blocks, or by one slice if the order is random."""
        executor = self.executor
        instance = executor.schedule.instances[index]
        while not executor.finished(index):
            blocked = executor.blocked_on(index)
            if blocked is not None:
                self.waiting[blocked] = index
                return
            for gate in executor.step(index):
                woken = self.waiting.pop(gate, ABSENT)
                if woken != ABSENT:
                    self.queue.append(woken)
            if self.rng is not None and not executor.finished(index):
                self.queue.append(index)
                return
        self.graph.left[instance.task] -= 1
        if self.graph.left[instance.task] == 0:
            self.unfinished -= 1
            self._start(self.graph.finish(instance.task))

    def _report(self) -> str:
        stuck = [index for index in self.waiting.values() if not self.executor.finished(index)]
        shown = "; ".join(self.executor.describe_block(index) for index in sorted(stuck)[:8])
        more = f"; and {len(stuck) - 8} more" if len(stuck) > 8 else ""
        return (
            f"{self.executor.schedule.name}: {self.unfinished} tasks cannot finish: {shown}{more}"
        )


def run_untimed(executor: Executor, seed: int | None = None) -> None:
    """Run all instances of `executor` to completion; `seed` selects a random legal order.

    Raises `DeadlockError` if no instance can advance and slices remain.
    """
    _Untimed(executor, random.Random(seed) if seed is not None else None).run()


def verify(schedule: Schedule, *, data: str = "exact", seed: int = 0) -> list[CallCheck]:
    """Run `schedule` untimed and compare every call with its definition.

    With ``data="random"`` float reductions may differ by one unit in the last place per rank.
    """
    executor = Executor(schedule, data=data, seed=seed)
    run_untimed(executor)
    most = max((len(call.ranks) for call in schedule.calls), default=1)
    return executor.check(float(most) if data == "random" else None)
