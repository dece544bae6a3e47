"""Proof of a bottleneck: its remedies are simulated, and the one that saves most is the bottleneck.

A remedy that is not simulated cannot save more than the run's time less the busy time of the fullest server
that it does not change. If no such limit exceeds the largest simulated saving, the bottleneck is certain.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from clusim.base.errors import DeadlockError, RangeExceeded, TimeLimitReached
from clusim.results.causes import SETTINGS, VerdictCause
from clusim.results.diagnosis import LEAST_SHARE, Verdict

if TYPE_CHECKING:
    from clusim.analysis.judge import Judged
    from clusim.analysis.remedies import Remedy
    from clusim.analysis.whatif import Change

REPAIR_PART = 0.7
"""Part of the largest saving from which a repair of one link or rank is named before faster hardware."""

NAMED_CHANGES = 4
"""Changes that a sentence names."""


class RemedyTrial(NamedTuple):
    """Run with a remedy: its saving [ps], and a function that returns its diagnosis, or None without one."""

    saving_ps: int
    diagnose: Callable[[], Verdict | None] = lambda: None


def proven(
    judged: Judged, trial: Callable[[Change], RemedyTrial], most: int | None, *, every: bool = False
) -> Verdict:
    """Return the verdict with simulated savings, the cause with the largest one first.

    Parameters
    ----------
    trial : callable
        Simulates the run with a change.
    most : int or None
        Largest number of simulated remedies, in descending order of their estimates; None: all.
    every : bool
        Whether to simulate also remedies that cannot be the bottleneck and have less than a hundredth of the path.
    """
    trials: dict[str, RemedyTrial] = {}
    left: list[Remedy] = []
    verdict, impossible, unfinished = judged.verdict, 0, ""
    for remedy in judged.remedies:
        best_ps = max((one.saving_ps for one in trials.values()), default=0)
        if unfinished or (most is not None and len(trials) + impossible >= most):
            left.append(remedy)
        elif not every and trials and _is_small(remedy, verdict.time_ps, best_ps):
            continue
        else:
            try:
                trials[remedy.words] = trial(remedy.change)
            except (DeadlockError, RangeExceeded):
                impossible += 1
            except TimeLimitReached as error:
                unfinished = f"other changes; {error}" if trials else f"changes; {error}"
                left.append(remedy)
    savings = {words: one.saving_ps for words, one in trials.items()}
    causes = _ordered(judged, savings)
    first_of = [one for one in judged.remedies if causes and causes[0].key in one.keys]
    if first_of and first_of[0].words in trials:
        after = trials[first_of[0].words].diagnose()
        first = None if after is None else after.headline
        then = "" if first is None else f"{first.share:.1%} {first.words()}"
        causes[0] = replace(causes[0], then=then)
    proof = _proof(judged, savings, left)
    best = max(savings, key=lambda words: savings[words], default="")
    if causes and causes[0].remedy in savings and savings[causes[0].remedy] < savings[best]:
        proof = proof.replace("no other single change saves more", f"only {best} saves more")
    return replace(verdict, causes=tuple(causes), proof=proof, unfinished=unfinished)


def _is_small(remedy: Remedy, time_ps: int, best_ps: int) -> bool:
    return remedy.most_ps <= best_ps and remedy.estimate_ps < LEAST_SHARE * time_ps


def _ordered(judged: Judged, savings: dict[str, int]) -> list[VerdictCause]:
    """Return the causes by simulated saving, then by estimate, then by time."""
    verdict = judged.verdict
    best_ps = max(savings.values(), default=0)
    of_key = {key: remedy for remedy in judged.remedies for key in remedy.keys}
    known = {cause.key: cause for cause in verdict.causes}
    for remedy in judged.remedies:
        kind, what = remedy.keys[0]
        settings = SETTINGS.get(kind, "") if verdict.causes and verdict.causes[0].settings else ""
        known.setdefault(
            (kind, what), VerdictCause(kind, what, 0, remedy=remedy.words, settings=settings)
        )
    causes = []
    for key, cause in known.items():
        remedy_of = of_key.get(key)
        if remedy_of is not None and remedy_of.words in savings:
            cause = replace(cause, saving_ps=savings[remedy_of.words])
        if cause.time_ps or cause.saving_ps:
            causes.append(cause)

    if best_ps < LEAST_SHARE * verdict.time_ps:
        # No change matters: the longest cause is named.
        return causes

    def value(cause: VerdictCause) -> tuple[int, int, int]:
        if cause.saving_ps is not None:
            repair = cause.remedy.endswith(" repaired")
            weighed_ps = int(cause.saving_ps / REPAIR_PART) if repair else cause.saving_ps
            return -weighed_ps, 0, -cause.time_ps
        estimate_ps = of_key[cause.key].estimate_ps if cause.key in of_key else 0
        return -min(best_ps, estimate_ps) if savings else -estimate_ps, 1, -cause.time_ps

    return sorted(causes, key=value)


def _proof(judged: Judged, savings: dict[str, int], left: list[Remedy]) -> str:
    """Return a sentence on the certainty of the bottleneck."""
    if not judged.remedies:
        return ""
    best_ps = max(savings.values(), default=0)
    least_ps = max(best_ps, int(LEAST_SHARE * judged.verdict.time_ps))
    open_ = [remedy.words for remedy in left if remedy.most_ps > least_ps]
    named = ", ".join(words or "without rivals" for words in open_[:NAMED_CHANGES])
    more = f" and {len(open_) - NAMED_CHANGES} more" if len(open_) > NAMED_CHANGES else ""
    if open_:
        return f"not certain: not simulated: {named}{more} (--confirm)"
    count = f"{len(savings)} of {len(judged.remedies)} changes simulated"
    if best_ps < LEAST_SHARE * judged.verdict.time_ps:
        return f"certain: no single change saves {LEAST_SHARE:.0%} ({count})"
    return f"certain: no other single change saves more ({count})"
