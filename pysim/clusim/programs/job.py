"""Processes of a job meet here: calls of several ranks, and the ends of their steps.

**Model** A rank either runs as a process, or a running rank *represents* it. A call of ranks with one representative
ends after its time in isolation. Other calls are *meetings*: they start when the last of their running ranks is ready,
and end at equal times on all. Values that a call moves are passed among its ranks, unread.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from clusim.base.errors import InputError
from clusim.base.match import LiveMatcher, MatchedEnd, contradiction
from clusim.formats.recordings.model import tile
from clusim.programs.clock import IssuedCall
from clusim.programs.step import RankRecord, StepTime

MOST_PROCESSES = 16
"""Largest number of ranks that become processes because they exchange messages, or differ in an all-to-all."""

Sent = Any
"""Values that a rank contributes to a call, opaque here; None if unknown."""


@dataclass(slots=True)
class Issued:
    """Reply to an issued call.

    Attributes
    ----------
    number : int
        Number of the meeting; -1 if one process represents all ranks of the call.
    alone_ps : int
        Time without concurrent work [ps].
    end_ps : int or None
        End; None if other ranks determine it [ps].
    """

    number: int
    alone_ps: int
    end_ps: int | None


@dataclass(slots=True)
class MeetingEnd:
    """End of a meeting [ps], and the values of its running ranks."""

    end_ps: int
    sent: dict[int, Sent]


@dataclass(slots=True)
class _Meeting:
    call: IssuedCall
    posts: dict[int, Sent]
    needed: frozenset[int] = frozenset()
    alone_ps: int = 0
    ready_ps: int = 0
    after: set[int] = field(default_factory=set)
    before: list[int] = field(default_factory=list)
    end_ps: int | None = None


def represented(running: Sequence[int], num_ranks: int) -> list[int]:
    """Return the running rank that represents each rank of a job.

    If the running ranks are a row of a regular grid, each represents its column; otherwise a rank is represented by
    the last running rank before it.
    """
    ordered = sorted(running)
    result = []
    for rank in range(num_ranks):
        row = tile(ordered, rank) if num_ranks % len(ordered) == 0 else None
        if row is not None and max(row) < num_ranks:
            result.append(ordered[row.index(rank)])
        else:
            result.append(max((r for r in ordered if r <= rank), default=ordered[0]))
    return result


class ProgramJob:
    """Running ranks of a job and their meetings.

    Parameters
    ----------
    time_of : callable
        Time of a call without concurrent work [ps].
    simulate : callable
        Time of a step of the records of all running ranks.
    running : sequence of int
        Ranks that run.
    grows : bool
        Ranks that exchange messages are started when the first sends or receives; otherwise they must run.
    """

    def __init__(
        self,
        time_of: Callable[[IssuedCall], int],
        simulate: Callable[[dict[int, RankRecord], Sequence[int]], StepTime],
        num_ranks: int,
        running: Sequence[int],
        *,
        grows: bool = True,
    ) -> None:
        self.time_of, self.simulate = time_of, simulate
        self.num_ranks, self.grows = num_ranks, grows
        self.running = sorted(running)
        self.of = represented(self.running, num_ranks)
        self.ended: set[int] = set()
        self.steps: list[StepTime] = []
        self._meetings: dict[int, _Meeting] = {}
        self._matcher: LiveMatcher[Sent] = LiveMatcher()
        self._records: dict[int, RankRecord] = {}
        self._stepped: Counter[int] = Counter()

    def starts(self, rank: int, call: IssuedCall) -> list[int]:
        """Return ranks that must be started for a call of a rank, and add them to the running ranks.

        The ranks of a message run; up to `MOST_PROCESSES` ranks of an uneven all-to-all run.

        Raises
        ------
        InputError
            A message of a rank that does not run.
        """
        if call.peer < 0 and not call.splits:
            return []
        more = sorted(set(call.ranks) - set(self.running))
        fits = self.grows and len(self.running) + len(more) <= MOST_PROCESSES
        missing = [r for r in self._ends(call) if r not in self.running] if call.peer >= 0 else more
        if not missing or (call.splits and not fits):
            return []
        if not self.grows:
            raise InputError(
                f"rank {rank} exchanges a message with rank {missing[0]}, which does not run; add it to --distinct"
            )
        if len(self.running) + len(more) > MOST_PROCESSES:
            raise InputError(
                f"rank {rank} exchanges messages in a group of {len(call.ranks)} ranks; at most {MOST_PROCESSES} are"
                " started without --distinct, which lists the ranks that differ"
            )
        self.running = sorted({*self.running, *more})
        self.of = represented(self.running, self.num_ranks)
        return more

    def issue(
        self, rank: int, call: IssuedCall, ready_ps: int, after: Iterable[int], sent: Sent = None
    ) -> Issued:
        """Add a rank to a call that it is ready for, once the meetings `after` have ended."""
        alone_ps = self.time_of(call) if call.timed else 0
        ends = self._ends(call) if call.peer >= 0 else {self.of[r] for r in call.ranks}
        needed = frozenset(ends & set(call.ranks)) | {rank}
        match = self._matcher.add(MatchedEnd(call.meeting, rank), sent)
        number = match.number
        meeting = self._meetings.setdefault(number, _Meeting(call, match.ends))
        meeting.needed |= needed
        meeting.alone_ps = max(meeting.alone_ps, alone_ps)
        met = meeting.call
        if call.peer < 0 and met.operation != call.operation:
            first = next(iter(match.ends)), met.operation, met.where
            raise InputError(contradiction((rank, call.operation, call.where), first))
        meeting.ready_ps = max(meeting.ready_ps, ready_ps)
        if needed == {rank}:
            # The meeting stays open for ranks that start later.
            return Issued(-1, alone_ps, ready_ps + alone_ps)
        for other in after:
            earlier = self._meetings[other]
            if earlier.end_ps is None:
                meeting.after.add(other)
                earlier.before.append(number)
            else:
                meeting.ready_ps = max(meeting.ready_ps, earlier.end_ps)
        self._resolve(number)
        return Issued(number, alone_ps, None)

    @staticmethod
    def _ends(call: IssuedCall) -> set[int]:
        """Return the two ranks of a message."""
        return {call.ranks[call.root], call.ranks[call.peer]}

    def _resolve(self, number: int) -> None:
        """Set the end of a meeting that has all its ranks, and of later meetings of its streams."""
        queue = deque([number])
        while queue:
            meeting = self._meetings[at := queue.popleft()]
            if meeting.after or not meeting.needed <= set(meeting.posts):
                continue
            meeting.end_ps = meeting.ready_ps + meeting.alone_ps
            for other in meeting.before:
                later = self._meetings[other]
                later.after.discard(at)
                later.ready_ps = max(later.ready_ps, meeting.end_ps)
                queue.append(other)
            meeting.before.clear()

    def end(self, number: int) -> MeetingEnd | None:
        """Return the end of a meeting; None if it is not known yet."""
        meeting = self._meetings[number]
        if meeting.end_ps is None:
            return None
        of = {rank: self.of[rank] for rank in meeting.call.ranks}
        sent = {rank: meeting.posts[own] for rank, own in of.items() if own in meeting.posts}
        return MeetingEnd(meeting.end_ps, sent)

    def record(self, rank: int, record: RankRecord) -> None:
        """Add the record of a rank at the end of its step."""
        self._records[rank] = record

    def stepped(self, rank: int) -> StepTime | None:
        """Return the time of the step that a rank has ended; None until all running ranks have."""
        at = self._stepped[rank]
        if at == len(self.steps) and self._records.keys() >= set(self.running) - self.ended:
            self.steps.append(self.simulate(dict(self._records), self.of))
        if at == len(self.steps):
            return None
        self._stepped[rank] += 1
        del self._records[rank]
        return self.steps[at]

    def release(self, rank: int) -> None:
        """Let a rank continue without the end of a step, as other ranks wait for it."""
        del self._records[rank]

    def waits(self, rank: int, number: int) -> str:
        """Return a description of a meeting that a rank waits for."""
        meeting = self._meetings[number]
        others = sorted(meeting.needed - set(meeting.posts))
        gone = [r for r in others if r in self.ended]
        missing = ", ".join(map(str, others)) or "earlier calls"
        where = f" ({meeting.call.where})" if meeting.call.where else ""
        return f"rank {rank} waits in {meeting.call.operation}{where} for rank {missing}" + (
            ", which has ended" if gone else ""
        )
