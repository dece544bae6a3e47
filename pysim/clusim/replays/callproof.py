"""Proof of the bottleneck of a job of single calls: a change is simulated in every distinct call, with its plan."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from clusim.replays.report import BETWEEN, CallResult, calls_verdict
from clusim.replays.timing import HOST, Timed
from clusim.results.causes import Key
from clusim.results.diagnosis import Verdict
from clusim.simulation.proof import ProofRule, RemedyTrial, proven
from clusim.simulation.reruns import affordable_runs

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
    job_ps : int
        Time of the job [ps].
    runs : int
        Simulations that this time takes, in units of a call.
    again : callable
        Returns the times with a change, and a function that returns the time of the job by them [ps]; the second
        argument is whether calls have a verdict.
    """

    rows: Sequence[CallResult]
    times: Sequence[Timed]
    job_ps: int
    runs: int
    again: Callable[[JobRemedy, bool], tuple[list[Timed], Callable[[], int]]]

    def verdict(self, times: Sequence[Timed], job_ps: int) -> Verdict:
        """Return the time breakdown of the job with other times of its calls, and of the job [ps]."""
        rows = [
            replace(
                row,
                kernel_ps=one.kernel_ps,
                time_ps=one.time_ps,
                verdict=one.verdict,
            )
            for row, one in zip(self.rows, times, strict=True)
        ]
        return calls_verdict(rows, job_ps)

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
                changes[remedy.words] = _merge_changes(
                    changes.get(remedy.words), remedy.change
                )
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
                words,
                change,
                tuple(key for key, _ in keys[words].most_common()),
                estimates[words],
                max(0, limits[words] + alone_ps),
            )
            for words, change in changes.items()
        ]
        return sorted(
            remedies, key=lambda one: (-one.estimate_ps, -one.most_ps, one.words)
        )

    def prove(self, *, confirm: bool | None) -> Verdict:
        """Return the verdict on the job, with the saving of each simulated change.

        Parameters
        ----------
        confirm : bool or None
            Whether all changes (True) or no change (False) is simulated; None: those that are cheap.
        """
        grants = sum(one.grants for one in self.times) * self.runs // len(self.times)
        cheap = min(affordable_runs(grants), CHEAP_CALLS // self.runs)
        budget = cheap if confirm is None else None if confirm else 0

        def trial(remedy: JobRemedy) -> RemedyTrial:
            after_ps = self.again(remedy, False)[1]()
            return RemedyTrial(
                self.job_ps - after_ps,
                lambda: self.verdict(self.again(remedy, True)[0], after_ps),
            )

        rule = ProofRule(budget, every=bool(confirm))
        return proven(
            self.verdict(self.times, self.job_ps), self.remedies(), trial, rule
        )


def _merge_changes(before: Any | None, change: Any) -> Any:
    """Return the change of the links and ranks of both changes."""
    if before is None:
        return change
    return replace(
        change,
        wires=before.wires | change.wires,
        endpoints=before.endpoints | change.endpoints,
        like=tuple(sorted({*before.like, *change.like})),
    )
