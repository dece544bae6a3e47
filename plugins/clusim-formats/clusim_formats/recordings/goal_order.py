"""Order of the operations of a GOAL schedule, and matching of its messages.

The schedule is played with messages of zero duration. A cpu executes one calc at a time, in the order in which they
become ready; a receive matches the first suitable message, with wildcards for rank and tag. The resulting order is
feasible, so a schedule that keeps it cannot deadlock.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from clusim.base.match import Address, Mailbox, suitable
from clusim.formats.recordings.model import ABSENT, EventKind
from clusim.schedule.timeline import Timeline

MAX_RANKS = 1 << 17
MAX_NS = 10**15
MAX_BYTES = 2**40


class GoalOp(NamedTuple):
    """Operation: its rank, and its position in the rank's list."""

    rank: int
    at: int


@dataclass(slots=True)
class GoalStep:
    """Operation of a rank; it waits for the end of `needs` and the start of `starts`.

    Attributes
    ----------
    size : int
        Time of a calc [ns], or size of a message [bytes].
    """

    kind: EventKind
    line: int
    label: str
    size: int = 0
    peer: int = ABSENT
    tag: int = 0
    cpu: int = 0
    needs: list[int] = field(default_factory=list)
    starts: list[int] = field(default_factory=list)


@dataclass(slots=True)
class Order:
    """Result of playing a schedule.

    Attributes
    ----------
    ranks : mapping
        Operations of every rank.
    eager_bytes : int
        Largest message that does not block its sender [bytes].
    started : list of GoalOp
        Operations that started, in order.
    match : dict
        Receive -> its send.
    stuck : GoalOp or None
        An operation that is never complete, since ranks wait for each other; None if all are complete.
    """

    ranks: Mapping[int, list[GoalStep]]
    eager_bytes: int
    started: list[GoalOp] = field(default_factory=list)
    match: dict[GoalOp, GoalOp] = field(default_factory=dict)
    stuck: GoalOp | None = None

    def step(self, op: GoalOp) -> GoalStep:
        """Return an operation."""
        return self.ranks[op.rank][op.at]


def play(ranks: Mapping[int, list[GoalStep]], eager_bytes: int) -> Order:
    """Play the operations of all ranks.

    Messages above `eager_bytes` block their sender until they are received.
    """
    return _Player(ranks, eager_bytes).run()


_OTHER: Final[dict[EventKind, EventKind]] = {"send": "recv", "recv": "send"}


class _Started(NamedTuple):
    """Condition that an operation has started."""

    op: GoalOp


class _Player(Timeline[GoalOp]):
    """State of playing a schedule; times are ns."""

    def __init__(
        self, ranks: Mapping[int, list[GoalStep]], eager_bytes: int
    ) -> None:
        super().__init__()
        self.order = Order(ranks, eager_bytes)
        self.count = 0
        self.cpus: dict[tuple[int, int], deque[GoalOp]] = {}
        self.calculates: set[GoalOp] = set()
        self.boxes: dict[tuple[int, EventKind], Mailbox[GoalOp]] = {}
        self.blocked: dict[GoalOp, None] = {}
        self.coming: dict[tuple[int, EventKind], Counter[Address]] = {}
        for rank, steps in ranks.items():
            for at, step in enumerate(steps):
                op = GoalOp(rank, at)
                starts = (_Started(GoalOp(rank, other)) for other in step.starts)
                self.add(
                    op, [*(GoalOp(rank, other) for other in step.needs), *starts]
                )
                if step.kind != "compute":
                    end, key = _address(op, step)
                    self.coming.setdefault((end, step.kind), Counter())[key] += 1

    def run(self) -> Order:
        """Play all operations."""
        self.play()
        if self.left:
            self.order.stuck = min(
                [op for op, count in self.left.items() if not count] or self.left
            )
        return self.order

    def ready(self, task: GoalOp) -> None:
        """Start an operation after those that were ready before."""
        self._arrive(self.now, task)

    def _arrive(self, time: int, op: GoalOp) -> None:
        self.count += 1
        self.schedule(time, op, self.count)

    def arrives(self, task: GoalOp) -> None:
        """Start an operation, or end a calc."""
        step = self.order.step(task)
        if step.kind != "compute":
            self._message(task, step)
            return
        queue = self.cpus.setdefault((task.rank, step.cpu), deque())
        if task not in self.calculates:
            queue.append(task)
            if len(queue) == 1:
                self._calculate(task)
            return
        self.calculates.remove(task)
        queue.popleft()
        if queue:
            self._calculate(queue[0])
        self.complete(task)

    def _message(self, op: GoalOp, step: GoalStep) -> None:
        self._begin(op)
        rank, key = _address(op, step)
        self.coming[rank, step.kind][key] -= 1
        if step.kind == "send" and step.size <= self.order.eager_bytes:
            self.complete(op)
        other = self._box(rank, _OTHER[step.kind]).take(key)
        if other is not None:
            self._meet(*((op, other) if step.kind == "send" else (other, op)))
            return
        self.count += 1
        self._box(rank, step.kind).put(key, self.count, op)
        if op in self.left:
            self.blocked[op] = None

    def _box(self, rank: int, kind: EventKind) -> Mailbox[GoalOp]:
        """Return the sends or receives that wait at a rank."""
        return self.boxes.setdefault((rank, kind), Mailbox())

    def _begin(self, op: GoalOp) -> None:
        self.order.started.append(op)
        self.complete(_Started(op))

    def _calculate(self, op: GoalOp) -> None:
        self._begin(op)
        self.calculates.add(op)
        self._arrive(self.now + self.order.step(op).size, op)

    def _meet(self, send: GoalOp, recv: GoalOp) -> None:
        self.order.match[recv] = send
        for op in (send, recv):
            self.blocked.pop(op, None)
            if op in self.left:
                self.complete(op)

    def turn(self) -> None:
        """At the end of all events, complete blocked messages whose other end cannot start."""
        if self.busy:
            return
        result = []
        for op in self.blocked:
            step = self.order.step(op)
            rank, key = _address(op, step)
            coming = self.coming.get((rank, _OTHER[step.kind]), Counter())
            if not any(coming[at] for at in suitable(key, coming)):
                result.append(op)
        for op in result:
            del self.blocked[op]
            self.complete(op)


def _address(op: GoalOp, step: GoalStep) -> tuple[int, Address]:
    """Return the receiving rank of a message, and its source and tag."""
    if step.kind == "send":
        return step.peer, (op.rank, step.tag)
    return op.rank, (step.peer, step.tag)
