"""Play of a job: the times of its operations, by the times of its kernels and calls in isolation.

An operation is ready when the previous one of its stream and all operations that it names are complete. A collective
starts when it is ready on all recorded ranks of its communicator, whose calls run in sequence.

**Kernels** of a rank divide the SMs that calls in flight do not hold, by the engine's rule.

**Calls** that overlap and share wires (`CallTimer.is_shared`) slow each other. All calls since these wires were last
free are an *island*: their ends are those of one simulation with the same starts (`CallTimer.ends_ps`). Larger islands
continue by *rates*: the progress of each call while the same calls are in flight (`CallTimer.rates16`). Equal calls of
disjoint groups that start together are one entry of an island, a *bundle*.

**Parameters** Times are integers [ps]; progress is in 2^-16 ps.

**Not modelled** Ranks of a call that start or end apart: the last one counts.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import Any, NamedTuple, Protocol

from clusim.base.match import MatchCounts, by_order
from clusim.formats.recordings.model import ABSENT
from clusim.jobs.model import JobGraph, KernelWork

FRACTION = 16
"""Binary digits of progress and of SMs after the point."""

ONE = 1 << FRACTION


class CallBundle(NamedTuple):
    """Equal calls of disjoint groups of topology ranks that start together.

    Attributes
    ----------
    work : CallWork or another data class
        Has `bytes`.
    time_ps : int
        Time of each group in isolation [ps]; `ABSENT` if the times of overlaps have it.
    """

    groups: tuple[tuple[int, ...], ...]
    work: Any
    time_ps: int = ABSENT

    def is_joinable(self, other: CallBundle) -> bool:
        """Return True if the other calls are equal and of disjoint groups of as many ranks."""
        ranks = {rank for group in self.groups for rank in group}
        same = self[1:] == other[1:] and len(self.groups[0]) == len(other.groups[0])
        return same and not any(ranks.intersection(group) for group in other.groups)

    def joined(self, other: CallBundle) -> CallBundle:
        """Return the calls of both."""
        return self._replace(groups=tuple(sorted((*self.groups, *other.groups))))


class BundleStart(NamedTuple):
    """Start of a bundle, relative to the first of its island [ps]."""

    offset_ps: int
    bundle: CallBundle


class CallTimer(Protocol):
    """Times of calls, in isolation and together."""

    def isolated_ps(self, bundle: CallBundle) -> int:
        """Return the time of a bundle in isolation [ps]."""

    def is_shared(self, one: CallBundle, other: CallBundle) -> bool:
        """Return True if two bundles share wires."""

    def ends_ps(self, island: Sequence[BundleStart]) -> Sequence[int] | None:
        """Return the ends of an island's bundles [ps]; None if it is too large."""

    def rates16(self, bundles: Sequence[CallBundle]) -> Sequence[int]:
        """Return the progress of each bundle per time while all are in flight [2^-16]."""

    def held16(self, bundle: CallBundle) -> int:
        """Return the mean number of SMs that a bundle holds on each rank while it is in flight [2^-16]."""


@dataclass(eq=False, slots=True)
class RunningCall:
    """Calls in flight; `left16` is the work left at `since_ps`, in time of isolation [2^-16 ps]."""

    bundle: CallBundle
    operations: list[int]
    start_ps: int
    since_ps: int
    island: CallIsland | None = None
    left16: int = 0
    end_ps: int = ABSENT

    def settle(self, now_ps: int) -> None:
        """Advance to a time, at the rate at which the work ends at `end_ps`."""
        if self.since_ps < now_ps <= self.end_ps:
            rest_ps = self.end_ps - now_ps
            self.left16 = self.left16 * rest_ps // (self.end_ps - self.since_ps)
            self.since_ps = now_ps


@dataclass(eq=False, slots=True)
class CallIsland:
    """Calls since the wires that they share were last free.

    Attributes
    ----------
    calls : list of RunningCall
        By start; without calls that have ended if it is not `is_exact`.
    flying : list of RunningCall
        Calls in flight.
    overlaps : bool
        It had several calls.
    is_exact : bool
        It is timed by simulations with its starts.
    """

    calls: list[RunningCall]
    flying: list[RunningCall]
    overlaps: bool = False
    is_exact: bool = True

    def absorb(self, other: CallIsland) -> None:
        """Add the calls of another island."""
        self.calls = sorted(
            (*other.calls, *self.calls), key=lambda call: call.start_ps
        )
        for call in other.flying:
            call.island = self
        self.flying = [*other.flying, *self.flying]
        self.is_exact = self.is_exact and other.is_exact
        self.overlaps = True


@dataclass(eq=False, slots=True)
class RunningKernel:
    """Kernel with the work left at `since_ps`, in time on one SM, and its present SMs [2^-16]."""

    operation: int
    sms: int
    left16: int
    since_ps: int
    share16: int = 0
    end_ps: int = 0

    def settle(self, now_ps: int, share16: int) -> None:
        """Advance to a time and continue on other SMs."""
        self.left16 -= self.share16 * (now_ps - self.since_ps)
        self.since_ps, self.share16 = now_ps, share16
        self.end_ps = now_ps + max(0, -(-self.left16 // share16))


@dataclass
class JobTimes:
    """Times of the operations of a job in isolation.

    Attributes
    ----------
    duration_ps : sequence of int
        Time of every operation other than a call, of kernels on their SMs [ps].
    bundles : dict
        Calls of each operation that is timed as a call, with all groups that it represents.
    sms : int
        SMs of a GPU.
    gap_ps : int
        Pause before each operation with a predecessor [ps].
    earliest_ps : sequence of int
        Earliest start of every operation [ps]; empty without.
    """

    duration_ps: Sequence[int]
    bundles: Mapping[int, CallBundle]
    sms: int
    gap_ps: int = 0
    earliest_ps: Sequence[int] = ()


@dataclass
class Player:
    """One play of a job.

    Attributes
    ----------
    now_ps : int
        Present time.
    pauses_ps : int
        Sum of the pauses before operations.
    ends_ps : dict
        End of each operation so far.
    overlaps : Counter
        Islands of several bundles, by the way in which they were timed: ``exact`` or ``rates``.
    """

    job: JobGraph
    needs: JobTimes
    calls: CallTimer
    now_ps: int = 0
    pauses_ps: int = 0
    ends_ps: dict[int, int] = field(default_factory=dict)
    overlaps: Counter[str] = field(default_factory=Counter)
    _waits: list[int] = field(default_factory=list)
    _wakes: dict[int, list[int]] = field(default_factory=lambda: defaultdict(list))
    _events: list[tuple[int, int, bool]] = field(default_factory=list)
    _kernels: dict[int, list[RunningKernel]] = field(
        default_factory=lambda: defaultdict(list)
    )
    _islands: list[CallIsland] = field(default_factory=list)
    _ends: list[tuple[int, bool, int, RunningCall | RunningKernel]] = field(
        default_factory=list
    )
    _changed: list[CallIsland] = field(default_factory=list)
    _unshared: set[int] = field(default_factory=set)
    _calls_on: dict[int, list[RunningCall]] = field(
        default_factory=lambda: defaultdict(list)
    )

    def __post_init__(self) -> None:
        """Count the predecessors of every operation, and match its calls."""
        last: dict[tuple[int, str], int] = {}
        last_call: dict[tuple[int, int], int] = {}
        counts = MatchCounts()
        self._call_of: dict[int, int] = {}
        self._members: dict[int, list[int]] = defaultdict(list)
        for at, (rank, stream) in enumerate(
            zip(self.job.rank, self.job.stream, strict=True)
        ):
            before = dict.fromkeys(self.job.deps[at])
            if (rank, stream) in last:
                before[last[rank, stream]] = None
            last[rank, stream] = at
            if at in self.needs.bundles:
                group = self.job.group[at]
                if (rank, group) in last_call:
                    before[last_call[rank, group]] = None
                last_call[rank, group] = at
                number = counts.number(by_order(group, rank))
                self._call_of[at] = number
                self._members[number].append(at)
            self._waits.append(len(before))
            for other in before:
                self._wakes[other].append(at)
        self._missing = {
            number: len(members) for number, members in self._members.items()
        }

    def play(self) -> int:
        """Play the job; return its end [ps].

        Raises
        ------
        InputError
            Ranks wait for each other.
        """
        for at in [at for at, count in enumerate(self._waits) if not count]:
            self._begin_after(at, 0)
        self._handle_events()
        self._settle()
        while self.advance():
            pass
        if len(self.ends_ps) < len(self.job):
            at = next(at for at in range(len(self.job)) if at not in self.ends_ps)
            raise self.job.failure(
                at, f"rank {self.job.rank[at]} waits for a call without end"
            )
        return self.now_ps

    def advance(self) -> bool:
        """Continue to the time of the next event; return False without one."""
        then_ps = self.next_ps
        if then_ps is None:
            return False
        self.now_ps = then_ps
        self._end_running()
        self._handle_events()
        self._settle()
        return True

    @property
    def next_ps(self) -> int | None:
        """Time of the next event [ps]; None without one."""
        ends = self._ends
        while ends and ends[0][0] != ends[0][3].end_ps:
            heappop(ends)
        return min(
            (heap[0][0] for heap in (ends, self._events) if heap), default=None
        )

    def _expect(self, running: RunningCall | RunningKernel, operation: int) -> None:
        """Note the end of a call or kernel; earlier notes of other times are void."""
        heappush(
            self._ends,
            (running.end_ps, isinstance(running, RunningKernel), operation, running),
        )

    def _end_running(self) -> None:
        """End the calls and kernels that end now."""
        done: list[int] = []
        ends = self._ends
        while ends and ends[0][0] <= self.now_ps:
            end_ps, _, operation, running = heappop(ends)
            if end_ps != running.end_ps:
                continue
            running.end_ps = ABSENT
            if isinstance(running, RunningKernel):
                self._kernels[self.job.rank[operation]].remove(running)
                self._unshared.add(self.job.rank[operation])
                done.append(operation)
            else:
                self._end_call(running)
                done += running.operations
        self._complete(done)

    def _end_call(self, call: RunningCall) -> None:
        """Remove a call from its island and ranks."""
        island = call.island
        assert island is not None
        for rank in {self.job.rank[at] for at in call.operations}:
            self._calls_on[rank].remove(call)
            self._unshared.add(rank)
        island.flying.remove(call)
        self._changed.append(island)
        if not island.flying:
            self._islands.remove(island)
            if island.overlaps:
                self.overlaps["exact" if island.is_exact else "rates"] += 1

    def _handle_events(self) -> None:
        """Begin and end other operations."""
        while self._events and self._events[0][0] <= self.now_ps:
            _, at, is_end = heappop(self._events)
            if is_end:
                self._complete((at,))
            else:
                self._begin(at)

    def _complete(self, operations: Iterable[int]) -> None:
        for at in operations:
            self.ends_ps[at] = self.now_ps
            for other in self._wakes[at]:
                self._waits[other] -= 1
                if not self._waits[other]:
                    self.pauses_ps += self.needs.gap_ps
                    self._begin_after(other, self.needs.gap_ps)

    def _begin_after(self, at: int, pause_ps: int) -> None:
        """Begin an operation after a pause, and not before its earliest start."""
        start_ps = self.now_ps + pause_ps
        if self.needs.earliest_ps:
            start_ps = max(start_ps, self.needs.earliest_ps[at])
        if start_ps > self.now_ps:
            heappush(self._events, (start_ps, at, False))
        else:
            self._begin(at)

    def _begin(self, at: int) -> None:
        if at in self._call_of:
            self._meet(self._call_of[at])
            return
        work, duration_ps = self.job.work[at], self.needs.duration_ps[at]
        sms = (work.sms or self.needs.sms) if isinstance(work, KernelWork) else 0
        self._run(at, duration_ps, sms)

    def _run(self, at: int, time_ps: int, sms: int) -> None:
        """Begin a kernel on a number of SMs, or another operation without."""
        if sms and time_ps > 0:
            kernel = RunningKernel(at, sms, time_ps * sms << FRACTION, self.now_ps)
            self._kernels[self.job.rank[at]].append(kernel)
            self._unshared.add(self.job.rank[at])
        else:
            heappush(self._events, (self.now_ps + time_ps, at, True))

    def _meet(self, number: int) -> None:
        """Start a call when its last rank is ready."""
        self._missing[number] -= 1
        if self._missing[number]:
            return
        operations = self._members[number]
        self._start(self.needs.bundles[operations[0]], operations)

    def _start(self, bundle: CallBundle, operations: Sequence[int]) -> None:
        """Start a call of operations."""
        call = self._join_equal(bundle, operations)
        if call is None:
            call = RunningCall(bundle, list(operations), self.now_ps, self.now_ps)
            call.island = CallIsland([call], [call])
            self._islands.append(call.island)
            self._changed.append(call.island)
        mine = call.island
        assert mine is not None
        for island in self._find_shared(bundle):
            if island is not mine:
                mine.absorb(island)
                island.flying = []
                self._islands.remove(island)
        for rank in {self.job.rank[at] for at in call.operations}:
            self._enter(call, rank)

    def _find_shared(self, bundle: CallBundle) -> list[CallIsland]:
        """Return the islands with calls that share wires with a bundle."""
        return [
            island
            for island in self._islands
            if any(
                self.calls.is_shared(call.bundle, bundle) for call in island.flying
            )
        ]

    def _enter(self, call: RunningCall, rank: int) -> None:
        """Note that a call is in flight on a rank."""
        self._unshared.add(rank)
        if call not in self._calls_on[rank]:
            self._calls_on[rank].append(call)

    def _join_equal(
        self, bundle: CallBundle, operations: Sequence[int]
    ) -> RunningCall | None:
        """Add a bundle to an equal one that starts now; return its call."""
        for island in self._islands:
            for call in island.flying:
                if call.start_ps == self.now_ps and call.bundle.is_joinable(bundle):
                    call.bundle, call.end_ps = call.bundle.joined(bundle), ABSENT
                    call.operations += operations
                    self._changed.append(island)
                    return call
        return None

    def _settle(self) -> None:
        """Set the ends of calls and kernels after all changes of a time."""
        for island in dict.fromkeys(self._changed):
            if island.flying:
                self._retime(island)
        self._changed.clear()
        for rank in sorted(self._unshared):
            kernels = self._kernels[rank]
            # Kernels of a rank are later than the present time while other ranks catch up.
            if all(kernel.since_ps <= self.now_ps for kernel in kernels):
                self._unshared.remove(rank)
                if kernels:
                    self._share(rank, kernels)

    def _retime(self, island: CallIsland) -> None:
        """Set the ends of the calls in flight of an island."""
        started = [call for call in island.flying if call.end_ps == ABSENT]
        if island.is_exact and not started:
            return
        for call in island.flying:
            call.settle(self.now_ps)
        for call in started:
            call.left16 = self.calls.isolated_ps(call.bundle) << FRACTION
        if island.is_exact and self._by_starts(island):
            return
        island.is_exact, island.calls = False, []
        rates = self.calls.rates16([call.bundle for call in island.flying])
        for call, rate16 in zip(island.flying, rates, strict=True):
            call.end_ps = self.now_ps - (-call.left16 // rate16)
            self._expect(call, call.operations[0])

    def _by_starts(self, island: CallIsland) -> bool:
        """Set the ends by one simulation of the island; return False if it is too large."""
        first_ps = island.calls[0].start_ps
        starts = [
            BundleStart(call.start_ps - first_ps, call.bundle)
            for call in island.calls
        ]
        ends = self.calls.ends_ps(starts)
        if ends is None:
            return False
        for call, end_ps in zip(island.calls, ends, strict=True):
            if call in island.flying:
                call.end_ps = max(self.now_ps, first_ps + end_ps)
                self._expect(call, call.operations[0])
        return True

    def _share(self, rank: int, kernels: Sequence[RunningKernel]) -> None:
        """Divide the free SMs of a rank among its kernels."""
        held16 = sum(self.calls.held16(call.bundle) for call in self._calls_on[rank])
        free16 = max(ONE, (self.needs.sms << FRACTION) - held16)
        # The engine divides complete SMs; one kernel uses the mean of the free SMs.
        each16 = free16 if len(kernels) == 1 else free16 // ONE // len(kernels) * ONE
        for kernel in kernels:
            kernel.settle(self.now_ps, min(kernel.sms * ONE, max(ONE, each16)))
            self._expect(kernel, kernel.operation)
