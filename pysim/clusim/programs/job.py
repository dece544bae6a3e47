"""Clock of a job of running ranks: their operations, calls and steps.

**Model** A rank either runs as a process, or a running rank *represents* it. All operations of running ranks are played
by one clock (`clusim.jobs.live`), which continues only while every rank waits for it, so that ranks issue operations
after its present time. A call starts when the last running rank is ready. Values that a call moves are passed
among its ranks, unread; a host that waits for them continues once all ranks have issued the call. Ranks that start
later than others catch up: until then, calls do not slow each other.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, NamedTuple, Protocol

from clusim.base.errors import InputError
from clusim.base.match import LiveMatcher, MatchedEnd, contradiction
from clusim.formats.recordings.model import ABSENT, tile
from clusim.jobs.joint import overlap_notes
from clusim.jobs.live import CallMeeting, LiveClock, PlayedOperation
from clusim.jobs.model import CallWork, LaunchWork
from clusim.jobs.player import CallBundle, CallTimer
from clusim.programs.issued import IssuedCall, IssuedOperation
from clusim.programs.step import RankRecord, RankResult

MOST_PROCESSES = 16
"""Largest number of processes that messages and uneven all-to-alls start."""

MOST_LIVE = 4096
"""Operations of a rank after which completed operations are dropped."""

Sent = Any
"""Encoded values that a rank contributes to a call, or None."""


class ProgramCalls(CallTimer, Protocol):
    """Times of a program's calls."""

    sms: int
    is_apart: bool

    def bundle(
        self,
        work: CallWork | LaunchWork,
        ranks: tuple[int, ...],
        groups: tuple[tuple[int, ...], ...],
        *,
        sole: bool,
    ) -> CallBundle:
        """Return a call with the calls of all represented groups."""


class ValuesReply(NamedTuple):
    """Time at which all ranks have issued a call [ps], and the values of the running ranks."""

    time_ps: int
    sent: dict[int, Sent]


@dataclass(slots=True)
class _Call:
    """A call: its ranks' values, the ranks that it needs, and their host times of the issue [ps]."""

    call: IssuedCall
    posts: dict[int, Sent]
    needed: set[int] = field(default_factory=set)
    splits: dict[int, tuple[tuple[int, ...], ...]] = field(default_factory=dict)
    issued_ps: int = 0
    met: CallMeeting = field(default_factory=CallMeeting)

    @property
    def is_complete(self) -> bool:
        return self.needed <= self.posts.keys()


@dataclass(slots=True)
class _Rank:
    """Operations of a running rank, ends of dropped operations [ps], calls and steps."""

    live: dict[int, PlayedOperation] = field(default_factory=dict)
    ends: array[int] = field(default_factory=lambda: array("q"))
    calls: list[_Call] = field(default_factory=list)
    steps: list[PlayedOperation] = field(default_factory=list)
    alone_ps: Counter[tuple[str, int]] = field(default_factory=Counter)
    record: RankRecord | None = None

    def end_ps(self, number: int) -> int | None:
        """Return the end of an operation [ps], 0 for host operations; None before it."""
        operation = self.live.get(number)
        if operation is not None:
            return None if operation.end_ps == ABSENT else operation.end_ps
        return self.ends[number] if number < len(self.ends) else 0

    def drop(self) -> None:
        """Keep only the ends of operations that have one."""
        for number, operation in list(self.live.items()):
            if operation.end_ps != ABSENT:
                self.ends.extend([0] * (number + 1 - len(self.ends)))
                self.ends[number] = operation.end_ps
                del self.live[number]


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


def _size_of(call: IssuedCall, rank: int) -> tuple[str, int]:
    """Return operation and number of ranks of a call, as a rank counts it."""
    if call.peer < 0:
        return call.size
    return "send" if rank == call.ends[0] else "recv", len(call.ranks)


class ProgramJob:
    """Running ranks of a job on one clock.

    Parameters
    ----------
    calls : ProgramCalls
        Times of calls.
    running : sequence of int
        Ranks that run.
    grows : bool
        Ranks that exchange messages are started when the first sends or receives; otherwise they must run.
    """

    def __init__(
        self,
        calls: ProgramCalls,
        num_ranks: int,
        running: Sequence[int],
        *,
        grows: bool = True,
    ) -> None:
        self.calls, self.num_ranks, self.grows = calls, num_ranks, grows
        self.running = sorted(running)
        self.of = represented(self.running, num_ranks)
        self.ended: set[int] = set()
        self.clock = LiveClock(calls, calls.sms)
        self._ranks: dict[int, _Rank] = {rank: _Rank() for rank in self.running}
        self._calls: dict[int, _Call] = {}
        self._matcher: LiveMatcher[Sent] = LiveMatcher()
        self._bundles: dict[
            tuple[tuple[int, ...], CallWork | LaunchWork], CallBundle
        ] = {}

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
        missing = (
            [r for r in call.ends if r not in self.running]
            if call.peer >= 0
            else more
        )
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
        self._ranks |= {rank: _Rank() for rank in more}
        self._bundles.clear()
        self.clock.rewind()
        return more

    def issue(self, rank: int, operation: IssuedOperation) -> None:
        """Add an operation of a rank."""
        state = self._ranks[rank]
        call = None if operation.call is None else self._join(rank, operation)
        if call is not None:
            state.calls.append(call)
            if not call.call.timed:
                return
        played = PlayedOperation(
            operation.number,
            rank,
            operation.time_ps,
            meeting=None if call is None else call.met,
            is_kernel=call is None,
            not_before_ps=operation.issued_ps,
        )
        self._add(state, played, operation.deps)

    def step(
        self,
        rank: int,
        issued_ps: int,
        deps: Iterable[int],
        record: RankRecord | None,
    ) -> None:
        """Add the end of a step of a rank, with its record if it may be written."""
        state = self._ranks[rank]
        end = PlayedOperation(
            -1 - len(state.steps),
            rank,
            not_before_ps=issued_ps,
        )
        state.steps.append(end)
        state.record = record
        self._add(state, end, deps)

    def _add(
        self, state: _Rank, operation: PlayedOperation, deps: Iterable[int]
    ) -> None:
        before = (state.live.get(number) for number in deps)
        self.clock.add(operation, [other for other in before if other is not None])
        if operation.number >= 0:
            state.live[operation.number] = operation
            if len(state.live) % MOST_LIVE == 0:
                state.drop()

    def _join(self, rank: int, operation: IssuedOperation) -> _Call:
        """Add a rank to a call."""
        call = operation.call
        assert call is not None
        match = self._matcher.add(MatchedEnd(call.meeting, rank), operation.sent)
        joined = self._calls.setdefault(match.number, _Call(call, match.ends))
        if call.peer < 0 and joined.call.operation != call.operation:
            first = next(iter(match.ends)), joined.call.operation, joined.call.where
            raise InputError(
                contradiction((rank, call.operation, call.where), first)
            )
        ends = call.ends if call.peer >= 0 else [self.of[r] for r in call.ranks]
        needed = {*(set(ends) & set(call.ranks)), rank}
        joined.met.missing += len(needed - joined.needed)
        joined.needed |= needed
        joined.issued_ps = max(joined.issued_ps, operation.issued_ps)
        if call.splits:
            joined.splits[rank] = call.splits
        if call.timed and joined.is_complete:
            new = joined.posts if joined.met.bundle is None else (rank,)
            joined.met.bundle = bundle = self._bundle_of(joined)
            alone_ps = self.calls.isolated_ps(bundle)
            for other in new:
                self._ranks[other].alone_ps[_size_of(call, other)] += alone_ps
        return joined

    def _bundle_of(self, joined: _Call) -> CallBundle:
        """Return a call with the calls of all represented groups; equal bundles are created once."""
        ranks = joined.call.group.ranks
        work = self._work(joined, ranks)
        if (ranks, work) not in self._bundles:
            groups, sole = self._peer_groups(ranks), len(self.running) == 1
            self._bundles[ranks, work] = self.calls.bundle(
                work, ranks, groups, sole=sole
            )
        return self._bundles[ranks, work]

    def _work(self, joined: _Call, ranks: tuple[int, ...]) -> CallWork | LaunchWork:
        """Return the messages of a call, or a collective."""
        call, splits, size = joined.call, joined.splits, joined.call.bytes
        if call.peer >= 0:
            source, target = map(ranks.index, call.ends)
            return LaunchWork(((source, target, size),))
        if splits.keys() >= set(ranks):
            rows = (
                (source, target, part)
                for source, rank in enumerate(ranks)
                for target, part in enumerate(splits[rank][0])
            )
            return LaunchWork(
                tuple(row for row in rows if row[2] and row[0] != row[1])
            )
        if splits:
            # All ranks are as slow as an even exchange of the larger buffer.
            size = max(1, -(-size // len(ranks))) * len(ranks)
        return CallWork(call.operation, size, call.dtype, call.redop, call.root)

    def _peer_groups(self, ranks: tuple[int, ...]) -> tuple[tuple[int, ...], ...]:
        """Return a group, and the groups of ranks that the same running ranks represent."""
        runs = sorted(self.of[rank] for rank in ranks)
        groups = {ranks}
        for rank in range(self.num_ranks):
            group = tile(ranks, rank) if self.of[rank] == self.of[ranks[0]] else None
            if group is None or max(group) >= self.num_ranks:
                continue
            if sorted(self.of[member] for member in group) == runs:
                groups.add(group)
        return tuple(sorted(groups))

    def end(self, rank: int, operations: Iterable[int]) -> int | None:
        """Return the last end of operations [ps]; None before it."""
        last_ps = 0
        for number in operations:
            end_ps = self._ranks[rank].end_ps(number)
            if end_ps is None:
                return None
            last_ps = max(last_ps, end_ps)
        return last_ps

    def is_before_next(self, time_ps: int) -> bool:
        """Return True if the next event is later than a time; all running ranks must wait."""
        then_ps = self.clock.next_ps
        return then_ps is None or then_ps > time_ps

    def values(self, rank: int, number: int) -> ValuesReply | None:
        """Return the values of a call; None before all its ranks have issued it."""
        calls = self._ranks[rank].calls
        if number >= len(calls) or not calls[number].is_complete:
            return None
        call = calls[number]
        runs = {rank: self.of[rank] for rank in call.call.ranks}
        sent = {
            rank: call.posts[of] for rank, of in runs.items() if of in call.posts
        }
        time_ps = 0 if call.call.timed else call.issued_ps
        return ValuesReply(max(self.clock.now_ps, time_ps), sent)

    def waits(self, rank: int) -> str:
        """Return a description of the call that a rank waits for."""
        calls = self._ranks[rank].calls
        open_ = [
            call
            for call in calls
            if call.met.end_ps == ABSENT or not call.is_complete
        ]
        first = next(
            (call for call in open_ if not call.is_complete),
            open_[0] if open_ else None,
        )
        if first is None:
            return f"rank {rank} waits for the end of its kernels"
        absent = sorted(first.needed - first.posts.keys())
        missing = ", ".join(map(str, absent)) or "earlier calls"
        where = f" ({first.call.where})" if first.call.where else ""
        return (
            f"rank {rank} waits in {first.call.operation}{where} for rank {missing}"
            + (", which has ended" if any(r in self.ended for r in absent) else "")
        )

    def is_stuck(self, rank: int) -> bool:
        """Return True if a rank has operations without an end."""
        self._ranks[rank].drop()
        return bool(self._ranks[rank].live)

    def complete(self, rank: int, result: RankResult, host_ps: int) -> RankResult:
        """Return the result of a rank with its times, at the end of the job."""
        state = self._ranks[rank]
        result.time_ps = max(
            host_ps, *state.ends, *(end.end_ps for end in state.steps), 0
        )
        ends = [0, *(end.end_ps for end in state.steps)]
        result.steps = [end_ps - began_ps for began_ps, end_ps in pairwise(ends)]
        result.totals.call_ps.update(state.alone_ps)
        if state.record is not None:
            state.record.began_ps, result.record = ends[-2], state.record
        return result

    def notes(self) -> list[str]:
        """Return the ways in which overlaps of calls were timed."""
        result = overlap_notes(self.clock.overlaps)
        if self.calls.is_apart:
            result.append(
                "shared wires of several communicators are not included for jobs of this size"
            )
        return result
