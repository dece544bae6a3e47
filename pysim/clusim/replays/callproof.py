"""Proof of the bottleneck of a job of single calls: a change is simulated in every distinct call, with its plan."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

from clusim.formats.logs.calls import CallTable
from clusim.replays.report import BETWEEN, CallResult, calls_verdict
from clusim.replays.timing import HOST, Timed
from clusim.results.causes import Key
from clusim.results.diagnosis import Verdict
from clusim.simulation.diagnose import affordable_runs
from clusim.simulation.proof import ProofRule, RemedyTrial, proven

CHEAP_CALLS = 120
"""Maximum of calls that are simulated again by default: two seconds."""


@dataclass(frozen=True)
class JobRemedy:
    """Change of all calls of a job; see `clusim.analysis.remedies.Remedy`.

    `change` is a repair of images; faster components follow from the words.
    """

    words: str
    change: Any
    keys: tuple[Key, ...]
    estimate_ps: int
    most_ps: int


@dataclass(frozen=True)
class JobCalls:
    """Distinct calls of a job in order.

    Attributes
    ----------
    rows : sequence of CallResult
        Their results.
    times : sequence of Timed
        Their times.
    span_ps : callable
        Returns the time of the job [ps], given the time of each call.
    again : callable
        Returns the times with a change; the second argument is whether calls have a verdict.
    """

    rows: Sequence[CallResult]
    times: Sequence[Timed]
    span_ps: Callable[[list[int]], int]
    again: Callable[[JobRemedy, bool], list[Timed]]

    def job_ps(self, times: Sequence[Timed]) -> int:
        """Return the time of the job [ps]."""
        return self.span_ps([one.time_ps for one in times])

    def verdict(self, times: Sequence[Timed]) -> Verdict:
        """Return the time breakdown of the job with other times of its calls."""
        rows = [
            replace(row, kernel_ps=one.kernel_ps, time_ps=one.time_ps, verdict=one.verdict)
            for row, one in zip(self.rows, times, strict=True)
        ]
        return calls_verdict(rows, self.job_ps(times))

    def remedies(self) -> list[JobRemedy]:
        """Return the changes of the calls, in descending order of their estimates.

        A call without a change in its own list has no limit of its saving.
        """
        alone_ps = sum(row.time_ps * row.count for row in self.rows)
        estimates, limits = Counter[str](), Counter[str]()
        keys: dict[str, Counter[Key]] = defaultdict(Counter)
        changes: dict[str, Any] = {}
        for row, one in zip(self.rows, self.times, strict=True):
            for remedy in one.remedies:
                if not remedy.words:  # removes the traffic of other calls
                    continue
                estimates[remedy.words] += remedy.estimate_ps * row.count
                limits[remedy.words] += (remedy.most_ps - row.time_ps) * row.count
                changes[remedy.words] = _merged(changes.get(remedy.words), remedy.change)
                for key in remedy.keys:
                    keys[remedy.words][key] += remedy.estimate_ps * row.count
        between = [(row.time_ps - row.kernel_ps) * row.count for row in self.rows]
        if between_ps := sum(max(0, ps) for ps in between):
            words = f"{HOST} x2"
            changes[words] = None
            keys[words][BETWEEN] = estimates[words] = between_ps // 2
            limits[words] = between_ps // 2 - alone_ps
        remedies = [
            JobRemedy(
                *(words, change, tuple(key for key, _ in keys[words].most_common())),
                *(estimates[words], max(0, limits[words] + alone_ps)),
            )
            for words, change in changes.items()
        ]
        return sorted(remedies, key=lambda one: (-one.estimate_ps, -one.most_ps, one.words))

    def prove(self, *, confirm: bool | None) -> Verdict:
        """Return the verdict on the job, with the saving of each simulated change.

        Parameters
        ----------
        confirm : bool or None
            Whether all changes (True) or no change (False) is simulated; None: those that are cheap.
        """
        before_ps = self.job_ps(self.times)
        runs = affordable_runs(sum(one.grants for one in self.times))
        most = (
            min(runs, CHEAP_CALLS // len(self.times)) if confirm is None else None if confirm else 0
        )

        def trial(remedy: JobRemedy) -> RemedyTrial:
            after = self.job_ps(self.again(remedy, False))
            return RemedyTrial(before_ps - after, lambda: self.verdict(self.again(remedy, True)))

        rule = ProofRule(most, every=bool(confirm))
        return proven(self.verdict(self.times), self.remedies(), trial, rule)


def _merged(before: Any | None, change: Any) -> Any:
    """Return the change of the links and ranks of both changes."""
    if before is None:
        return change
    return replace(
        change,
        wires=before.wires | change.wires,
        endpoints=before.endpoints | change.endpoints,
        like=tuple(sorted({*before.like, *change.like})),
    )


def span_ps(table: CallTable, times: list[int], gap: str | int) -> int:
    """Return the time from the first call to the end of the last with a known time [ps].

    Calls are counted up to the first one with an unknown time.
    """
    known = timed_calls(table, len(times))
    pause = gap if isinstance(gap, int) else 0
    ready: dict[tuple[str, int], int] = {}
    first = min((t for t in table.time_ns if t >= 0), default=0)
    last = 0
    rows = islice(zip(table.call, table.stream, table.time_ns, strict=True), known)
    for number, stream, stamp in rows:
        comm = ("comm", table.distinct[number].comm)
        start = ready.get(comm, 0)
        if stream >= 0:
            start = max(start, ready.get(("stream", stream), 0))
        if gap == "logged" and stamp >= 0:
            start = max(start, (stamp - first) * 1000)
        end = start + times[number]
        ready[comm] = end + pause
        if stream >= 0:
            ready["stream", stream] = end + pause
        last = max(last, end)
    return last


def timed_calls(table: CallTable, timed: int) -> int:
    """Return the number of calls before the first one that is not among the first `timed` distinct calls."""
    unknown = (at for at, number in enumerate(table.call) if number >= timed)
    return next(unknown, len(table.call))
