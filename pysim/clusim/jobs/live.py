"""Clock of running programs.

Operations are added between two times. The end of a call in flight changes when another starts: only past times are
final.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heappush
from typing import Any

from clusim.formats.recordings.model import ABSENT
from clusim.jobs.player import (
    FRACTION,
    ONE,
    BundleStart,
    CallBundle,
    CallTimer,
    JobTimes,
    Player,
)

_RANK = 40
"""Binary digits of the number of an operation below its rank."""


@dataclass(frozen=True)
class SeparateCalls:
    """Times of calls that do not slow each other.

    Attributes
    ----------
    channels : dict
        SMs that each bundle holds; others hold none.
    """

    channels: Mapping[CallBundle, int]

    def isolated_ps(self, bundle: CallBundle) -> int:
        """Return the time of a bundle [ps]."""
        return bundle.time_ps

    def is_shared(self, one: CallBundle, other: CallBundle) -> bool:
        """Return True, to count overlaps."""
        return True

    def ends_ps(self, island: Sequence[BundleStart]) -> None:
        """Return None: rates are exact, also of long islands."""

    def rates16(self, bundles: Sequence[CallBundle]) -> list[int]:
        """Return full progress."""
        return [ONE] * len(bundles)

    def held16(self, bundle: CallBundle) -> int:
        """Return the channels of a bundle [2^-16]."""
        return self.channels.get(bundle, 0) << FRACTION


@dataclass(eq=False, slots=True)
class PlayedOperation:
    """Operation of a rank on the clock.

    Attributes
    ----------
    number : int
        Position among the operations of a rank.
    time_ps : int
        Time in isolation [ps]; of a kernel, on all SMs.
    meeting : CallMeeting or None
        Call with other ranks.
    is_kernel : bool
        It needs SMs.
    not_before_ps : int
        Earliest begin: the host's time of the issue [ps].
    end_ps : int
        End [ps]; `ABSENT` before it.
    action : callable or None
        Called at the end.
    """

    number: int
    rank: int
    time_ps: int = 0
    meeting: CallMeeting | None = None
    is_kernel: bool = False
    not_before_ps: int = 0
    end_ps: int = ABSENT
    action: Callable[[], object] | None = None

    @property
    def is_complete(self) -> bool:
        """Return True after the end."""
        return self.end_ps != ABSENT

    @property
    def at(self) -> int:
        """Number among the operations of all ranks."""
        return (self.rank << _RANK) + (1 << _RANK - 1) + self.number


@dataclass(eq=False, slots=True)
class CallMeeting:
    """Call of several ranks: number of ranks that it waits for, and the operations of the ready ranks.

    Attributes
    ----------
    bundle : CallBundle or None
        All represented calls, set with the last operation.
    is_started : bool
        It is in flight, or has ended.
    end_ps : int
        End [ps]; `ABSENT` before it.
    """

    missing: int = 0
    bundle: CallBundle | None = None
    operations: list[int] = field(default_factory=list)
    is_started: bool = False
    end_ps: int = ABSENT


class _Ranks:
    """Rank of every operation."""

    def __getitem__(self, at: int) -> int:
        return at >> _RANK


class LiveClock(Player):
    """Clock of a job of running ranks.

    Parameters
    ----------
    calls : CallTimer
        Times of calls.
    sms : int
        SMs of a GPU.
    """

    def __init__(self, calls: CallTimer, sms: int) -> None:
        job: Any = type("Operations", (), {"rank": _Ranks()})()
        super().__init__(job, JobTimes((), {}, sms), calls)

    def __post_init__(self) -> None:
        """Begin without operations."""
        self._operations: dict[int, PlayedOperation] = {}
        self._open: dict[int, int] = {}
        self._present_ps = 0

    def add(
        self, operation: PlayedOperation, before: Iterable[PlayedOperation]
    ) -> None:
        """Add an operation with its predecessors."""
        at = operation.at
        self._operations[at] = operation
        self._open[at] = 0
        for other in before:
            if other.is_complete:
                operation.not_before_ps = max(operation.not_before_ps, other.end_ps)
            else:
                self._open[at] += 1
                self._wakes[other.at].append(at)
        if not self._open[at]:
            self._begin_after(at, 0)

    def rewind(self) -> None:
        """Return to time 0 for operations that begin in the past; calls in flight are unchanged."""
        self._present_ps = max(self._present_ps, self.now_ps)
        self.now_ps = 0

    def after(self, operations: Iterable[PlayedOperation]) -> set[int]:
        """Return the numbers of operations, and of all that wait for them."""
        waiting = [operation.at for operation in operations]
        result = set(waiting)
        for at in waiting:
            more = [
                other for other in self._wakes.get(at, ()) if other not in result
            ]
            result.update(more)
            waiting += more
        return result

    def _begin_after(self, at: int, pause_ps: int) -> None:
        start_ps = max(self.now_ps + pause_ps, self._operations[at].not_before_ps)
        heappush(self._events, (start_ps, at, False))

    def _complete(self, operations: Iterable[int]) -> None:
        for at in operations:
            operation = self._operations.pop(at)
            operation.end_ps = self.now_ps
            if operation.action is not None:
                operation.action()
            if operation.meeting is not None:
                operation.meeting.end_ps = self.now_ps
            for other in self._wakes.pop(at, ()):
                self._open[other] -= 1
                if not self._open[other]:
                    self._begin_after(other, 0)
            del self._open[at]

    def _begin(self, at: int) -> None:
        operation = self._operations[at]
        if operation.meeting is not None:
            self._join(at, operation.meeting)
        else:
            self._run(
                at, operation.time_ps, self.needs.sms if operation.is_kernel else 0
            )

    def _join(self, at: int, meeting: CallMeeting) -> None:
        """Start a call when its last rank is ready; later operations end with it."""
        if meeting.end_ps != ABSENT:
            self._run(at, max(0, meeting.end_ps - self.now_ps), 0)
            return
        if meeting.is_started:
            flying = (call for island in self._islands for call in island.flying)
            call = next(
                call for call in flying if meeting.operations[0] in call.operations
            )
            call.operations.append(at)
            self._enter(call, self.job.rank[at])
            return
        meeting.operations.append(at)
        meeting.missing -= 1
        if meeting.missing:
            return
        assert meeting.bundle is not None, "all operations are added"
        meeting.is_started = True
        if self.now_ps < self._present_ps:
            time_ps = self.calls.isolated_ps(meeting.bundle)
            meeting.end_ps = self.now_ps + time_ps
            for other in meeting.operations:
                self._run(other, time_ps, 0)
            return
        self._start(meeting.bundle, meeting.operations)
