"""Order of the operations of a GOAL schedule, and matching of its messages.

The schedule is played with messages of zero duration. A cpu executes one calc at a time, in the order in which they
become ready; a receive matches the first suitable message, with wildcards for rank and tag. The resulting order is
feasible, so a schedule that keeps it cannot deadlock.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Final, NamedTuple

from clusim.base.match import Address, Mailbox, suitable
from clusim.formats.recordings.model import ABSENT, EventKind
from clusim.jobs.live import LiveClock, PlayedOperation, SeparateCalls

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


class _Player(LiveClock):
    """Clock of a schedule, in ns; an operation has one operation of the clock until its start, and one for its work."""

    def __init__(
        self, ranks: Mapping[int, list[GoalStep]], eager_bytes: int
    ) -> None:
        super().__init__(SeparateCalls({}), 1)
        self.order = Order(ranks, eager_bytes)
        self.starts: dict[GoalOp, PlayedOperation] = {}
        self.works: dict[GoalOp, PlayedOperation] = {}
        self.cpus: dict[tuple[int, int], deque[GoalOp]] = {}
        self.boxes: dict[tuple[int, EventKind], Mailbox[GoalOp]] = {}
        self.arrivals = 0
        self.blocked: dict[GoalOp, None] = {}
        self.coming: dict[tuple[int, EventKind], Counter[Address]] = {}

    def run(self) -> Order:
        """Play all operations."""
        for rank, steps in self.order.ranks.items():
            for at, step in enumerate(steps):
                op = GoalOp(rank, at)
                self.starts[op] = PlayedOperation(2 * at, rank)
                self.works[op] = PlayedOperation(2 * at + 1, rank)
                if step.kind != "compute":
                    end, key = _address(op, step)
                    self.coming.setdefault((end, step.kind), Counter())[key] += 1
        for op, start in self.starts.items():
            step = self.order.step(op)
            needs = [self.works[GoalOp(op.rank, other)] for other in step.needs]
            needs += [self.starts[GoalOp(op.rank, other)] for other in step.starts]
            self.add(start, needs)
            self.add(self.works[op], [start])
        while self.advance() or self._release():
            pass
        incomplete = [op for op, work in self.works.items() if not work.is_complete]
        started = [op for op in incomplete if self.starts[op].is_complete]
        self.order.stuck = min(started or incomplete, default=None)
        return self.order

    def _begin(self, at: int) -> None:
        operation = self._operations[at]
        number, is_work = divmod(operation.number, 2)
        op = GoalOp(operation.rank, number)
        step = self.order.step(op)
        if step.kind != "compute":
            if is_work:
                self._message(op, step)
            else:
                self._start_step(op)
            return
        if is_work:
            operation.action = partial(self._free, (op.rank, step.cpu))
            self._run(at, step.size, 0)
            return
        queue = self.cpus.setdefault((op.rank, step.cpu), deque())
        queue.append(op)
        if len(queue) == 1:
            self._start_step(op)

    def _start_step(self, op: GoalOp) -> None:
        self.order.started.append(op)
        self._complete((self.starts[op].at,))

    def _free(self, cpu: tuple[int, int]) -> None:
        queue = self.cpus[cpu]
        queue.popleft()
        if queue:
            self._start_step(queue[0])

    def _message(self, op: GoalOp, step: GoalStep) -> None:
        rank, key = _address(op, step)
        self.coming[rank, step.kind][key] -= 1
        if step.kind == "send" and step.size <= self.order.eager_bytes:
            self._end(op)
        other = self._box(rank, _OTHER[step.kind]).take(key)
        if other is not None:
            self._join_ends(*((op, other) if step.kind == "send" else (other, op)))
            return
        self.arrivals += 1
        self._box(rank, step.kind).put(key, self.arrivals, op)
        if not self.works[op].is_complete:
            self.blocked[op] = None

    def _box(self, rank: int, kind: EventKind) -> Mailbox[GoalOp]:
        """Return the sends or receives that wait at a rank."""
        return self.boxes.setdefault((rank, kind), Mailbox())

    def _end(self, op: GoalOp) -> None:
        self._complete((self.works[op].at,))

    def _join_ends(self, send: GoalOp, recv: GoalOp) -> None:
        self.order.match[recv] = send
        for op in (send, recv):
            self.blocked.pop(op, None)
            if not self.works[op].is_complete:
                self._end(op)

    def _release(self) -> bool:
        """Complete blocked messages whose other end cannot start; return True if there are any."""
        result = []
        for op in self.blocked:
            step = self.order.step(op)
            rank, key = _address(op, step)
            coming = self.coming.get((rank, _OTHER[step.kind]), Counter())
            if not any(coming[at] for at in suitable(key, coming)):
                result.append(op)
        for op in result:
            del self.blocked[op]
            self._end(op)
        return bool(result)


def _address(op: GoalOp, step: GoalStep) -> tuple[int, Address]:
    """Return the receiving rank of a message, and its source and tag."""
    if step.kind == "send":
        return step.peer, (op.rank, step.tag)
    return op.rank, (step.peer, step.tag)
