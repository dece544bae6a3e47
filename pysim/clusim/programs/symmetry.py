"""Proof that ranks do the same work: each operation equals the representative's.

**Model** Some represented ranks also run: *compared* ranks, outside the simulation. At each request (a call, the end of
a step, the end of the program) all operations so far are compared with the representative's: kernels with shapes,
streams and dependencies, host times, and calls with groups by role, the distances among a group's ranks. The compared
rank receives the replies to its representative's requests, and values. A
comparison ends after
`COMPARED_STEPS` steps, or at the first different operation.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from clusim.base.json_schema import JsonObject
from clusim.formats.recordings.model import Event, Group
from clusim.programs.issued import IssuedCall
from clusim.programs.job import ProgramJob

COMPARED_STEPS = 2
"""Compared optimizer steps; a program without steps is compared in full."""

Operation = tuple[Event, tuple[int, ...]]
"""An operation without its rank, and the distances between its group's first rank and each."""


def operation_of(event: Event, groups: Sequence[Group]) -> Operation:
    """Return an operation in terms that are equal on ranks that do the same work."""
    ranks = groups[event.group].ranks if event.group >= 0 else ()
    return replace(event, rank=0, where=""), _distances(ranks)


def _distances(ranks: Sequence[int]) -> tuple[int, ...]:
    return tuple(rank - ranks[0] for rank in ranks)


@dataclass(frozen=True, slots=True)
class RankDifference(JsonObject):
    """First different operation of a rank and its representative.

    Attributes
    ----------
    representative : int
        Rank that represents it.
    after : int
        Equal operations before.
    own, other : str
        Its operation and its representative's, with lines of the program.
    """

    KEYS = ("rank", "representative", "after", "own", "other")

    rank: int
    representative: int
    after: int
    own: str
    other: str


@dataclass(frozen=True, slots=True)
class ProgramSymmetry(JsonObject):
    """Comparison of ranks with their representatives.

    Attributes
    ----------
    equal : list of int
        Compared ranks with equal operations.
    operations : int
        Compared operations per rank.
    steps : int
        Compared optimizer steps; 0: the complete program.
    cached : bool
        True if an earlier run of the same program compared them.
    """

    KEYS = ("equal", "operations", "steps", "cached", "differences")

    equal: list[int]
    operations: int
    steps: int
    cached: bool = False
    differences: list[RankDifference] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class ComparedRanks:
    """Ranks to be compared with their representatives.

    Attributes
    ----------
    ranks : tuple of int
        The ranks.
    digest : str
        Digest of the running ranks' operations in an earlier run that proved equality; empty without such a run.
    operations : int
        Compared operations per rank in that run.
    """

    ranks: tuple[int, ...] = ()
    digest: str = ""
    operations: int = 0


@dataclass(slots=True)
class _Request:
    kind: str
    position: int
    call: IssuedCall | None = None
    sent: Any = None
    content: tuple[Any, ...] = ()
    reply: Any = None
    answered: bool = False

    @property
    def form(self) -> tuple[Any, ...]:
        """Content in terms that are equal on ranks that do the same work."""
        if self.call is None:
            return self.kind, self.content
        return self.kind, replace(self.call, ranks=()), _distances(self.call.ranks)


@dataclass(slots=True)
class _Trail:
    """Operations and requests of a rank; for compared ranks, representative and number of equal requests."""

    operations: list[Operation] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)
    requests: list[_Request] = field(default_factory=list)
    calls: list[_Request] = field(default_factory=list)
    steps: int = 0
    equal: int = 0
    representative: int = -1


@dataclass(frozen=True, slots=True)
class RankReply:
    """Reply to a compared rank; `over` if its comparison has ended."""

    value: Any = None
    over: bool = False


class RankComparison:
    """Comparison of ranks with their representatives.

    Parameters
    ----------
    job : ProgramJob
        Running ranks.
    compared : iterable of int
        Ranks to be compared.
    stop : callable
        Ends the process of a compared rank that becomes a running one, if it has one.
    """

    def __init__(
        self, job: ProgramJob, compared: Iterable[int], stop: Callable[[int], None]
    ) -> None:
        self.job, self.stop = job, stop
        self.wanted = sorted(set(compared) - set(job.running))
        self.live = set(self.wanted)
        self.equal: list[int] = []
        self.differences: list[RankDifference] = []
        self.cached = False
        self._trails: dict[int, _Trail] = {}
        self._count = 0

    def runs(self, ranks: Iterable[int]) -> None:
        """Start ranks as running ranks."""
        for rank in ranks:
            self.live.discard(rank)
            self.stop(rank)
            self._trails.pop(rank, None)

    def note(
        self,
        rank: int,
        kind: str,
        operations: Sequence[tuple[Operation, str]],
        content: Sequence[Any],
    ) -> None:
        """Add a report or a request of a rank, and its operations since the previous one."""
        trail = self._trails.setdefault(rank, _Trail())
        if trail.steps >= COMPARED_STEPS:
            return
        trail.operations += [operation for operation, _ in operations]
        trail.lines += [line for _, line in operations]
        request = _Request(kind, len(trail.operations))
        trail.requests.append(request)
        if kind == "call":
            request.call, request.sent = content
            trail.calls.append(request)
        elif kind == "end":
            request.content = tuple(content)

    def stepped(self, rank: int) -> None:
        """Add the end of a step of a running rank."""
        trail = self._trails[rank]
        trail.steps = min(trail.steps + 1, COMPARED_STEPS)

    def answered(self, rank: int, reply: Any) -> None:
        """Add the reply to the last request of a running rank."""
        trail = self._trails.get(rank)
        if trail is not None and trail.requests and trail.steps < COMPARED_STEPS:
            trail.requests[-1].reply, trail.requests[-1].answered = reply, True

    def answer(self, rank: int) -> RankReply | None:
        """Return the reply to the last request of a compared rank; None before the reply to the representative."""
        own = self._trails[rank]
        representative = self.job.of[rank]
        if representative != own.representative:
            own.representative, own.equal, own.steps = representative, 0, 0
        trail = self._trails.get(representative, _Trail())
        while own.equal < len(own.requests):
            if own.equal >= len(trail.requests):
                return (
                    self._differs(rank, len(trail.operations))
                    if self._is_over(rank)
                    else None
                )
            mine, other = own.requests[own.equal], trail.requests[own.equal]
            at = own.requests[own.equal - 1].position if own.equal else 0
            end = min(mine.position, other.position)
            pairs = zip(
                own.operations[at:end], trail.operations[at:end], strict=True
            )
            first = next((n for n, (a, b) in enumerate(pairs, at) if a != b), end)
            if first < max(mine.position, other.position):
                return self._differs(rank, first)
            if mine.form != other.form:
                return self._differs(rank, first, in_request=True)
            if mine.kind in ("end", "done") and not other.answered:
                return None
            own.equal += 1
            if mine.kind in ("step", "done"):
                self._count = max(self._count, mine.position)
                own.steps += mine.kind == "step"
            if mine.kind == "done" or own.steps == COMPARED_STEPS:
                self.live.discard(rank)
                self.equal.append(rank)
                return RankReply(over=True)
        return RankReply(other.reply)

    def _is_over(self, rank: int) -> bool:
        """Return True after the last request of a compared rank's representative."""
        representative = self.job.of[rank]
        trail = self._trails.get(representative, _Trail())
        is_done = bool(trail.requests) and trail.requests[-1].kind == "done"
        return (
            is_done
            or representative in self.job.ended
            or trail.steps >= COMPARED_STEPS
        )

    def values(self, rank: int, number: int) -> RankReply | None:
        """Return the reply to a request for values of a compared rank; None before the call is complete."""
        call, representative = self._trails[rank].calls[number], self.job.of[rank]
        trail = self._trails.get(representative, _Trail())
        if number >= len(trail.calls):
            return (
                self._differs(rank, len(trail.operations))
                if self._is_over(rank)
                else None
            )
        other = trail.calls[number]
        assert call.call is not None
        assert other.call is not None
        values = self.job.values(representative, number)
        if values is None:
            return None
        moved = zip(call.call.ranks, other.call.ranks, strict=False)
        sent = {
            r: values.sent[theirs] for r, theirs in moved if theirs in values.sent
        }
        if call.call.peer < 0:
            sent[rank] = call.sent
        return RankReply(values._replace(sent=sent))

    def failed(self, rank: int, words: str) -> None:
        """End the comparison of a rank with an error."""
        self.live.discard(rank)
        trail = self._trails.get(rank, _Trail())
        words, after = f"fails: {words}", len(trail.operations)
        self.differences.append(
            RankDifference(rank, self.job.of[rank], after, words, "does not fail")
        )

    def result(self) -> ProgramSymmetry:
        """Return the result of the comparison."""
        steps = max((trail.steps for trail in self._trails.values()), default=0)
        return ProgramSymmetry(
            sorted(self.equal),
            self._count,
            steps,
            self.cached,
            sorted(self.differences, key=lambda d: d.rank),
        )

    def digest(self) -> str:
        """Return the digest of the compared operations of all running ranks."""
        text = [
            (rank, self._trails[rank].operations)
            for rank in self.job.running
            if rank in self._trails
        ]
        return hashlib.sha256(repr(text).encode()).hexdigest()

    def known(self, operations: int) -> None:
        """Accept an earlier run's proof for equal operations of the running ranks."""
        self.cached, self._count = True, operations
        self.equal, self.live = sorted(self.live), set()

    def _differs(self, rank: int, at: int, *, in_request: bool = False) -> RankReply:
        """End the comparison of a rank at its first different operation, or request.

        A rank without operations is outside the program's job.
        """
        self.live.discard(rank)
        own = self._trails[rank]
        if own.operations or len(own.requests) > 1:
            other = self._trails[self.job.of[rank]]
            words = [
                _operation(trail, sys.maxsize if in_request else at, own.equal)
                for trail in (own, other)
            ]
            self.differences.append(
                RankDifference(rank, self.job.of[rank], at, *words)
            )
        return RankReply(over=True)


def _operation(trail: _Trail, at: int, request: int) -> str:
    """Return an operation of a trail with its line, or a request without an operation."""
    if at < len(trail.operations):
        line = trail.lines[at]
        return _words(trail.operations[at][0]) + (f" ({line})" if line else "")
    request_of = trail.requests[request] if request < len(trail.requests) else None
    if request_of is not None and request_of.call is not None:
        call = request_of.call
        ranks = ", ".join(map(str, call.ranks[:4])) + (
            ", ..." if len(call.ranks) > 4 else ""
        )
        words = f"{call.operation} of {call.bytes} bytes on ranks {ranks}"
        return words + (f" ({call.where})" if call.where else "")
    ends_step = request_of is not None and request_of.kind == "step"
    return "the end of a step" if ends_step else "the end of the program"


def _words(event: Event) -> str:
    """Return a description of an operation."""
    if event.operator is not None:
        shapes = ", ".join(
            "x".join(map(str, s.sizes)) or "1" for s in event.operator.inputs
        )
        return f"{event.name} of {shapes or 'no tensors'}"
    if event.group >= 0:
        return f"{event.name} of {event.bytes} bytes"
    return event.name or "an operator of the host"
