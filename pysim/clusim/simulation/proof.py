"""Proof of a bottleneck: its remedies are simulated, and the one that saves most is the bottleneck.

A remedy that is not simulated cannot save more than the run's time less the busy time of the fullest server
that it does not change. If no such limit exceeds the largest simulated saving, the bottleneck is certain.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple, Protocol, TypeVar

from clusim.base.errors import (
    DeadlockError,
    InputError,
    RangeExceeded,
    ScheduleError,
    TimeLimitReached,
)
from clusim.results.cause_kinds import SETTINGS, CauseKind
from clusim.results.causes import Key, VerdictCause
from clusim.results.diagnosis import LEAST_SHARE, Verdict

REPAIR_PART = 0.7
"""Part of the largest saving from which a repair of one link or rank is named before faster hardware."""

NAMED_CHANGES = 4
"""Changes that a sentence names."""


class ProvableRemedy(Protocol):
    """Change of a run; see `clusim.analysis.remedies.Remedy`."""

    @property
    def words(self) -> str:
        """Return the change in the words of ``clusim what-if``."""

    @property
    def keys(self) -> tuple[Key, ...]:
        """Return the causes that it removes or halves."""

    @property
    def estimate_ps(self) -> int:
        """Return the estimated saving [ps]."""

    @property
    def most_ps(self) -> int:
        """Return the limit of the saving [ps]."""


AnyRemedy = TypeVar("AnyRemedy", bound=ProvableRemedy)


class RemedyTrial(NamedTuple):
    """Run with a remedy: its saving [ps], and a function that returns its diagnosis, or None without one."""

    saving_ps: int
    diagnose: Callable[[], Verdict | None] = lambda: None


class ProofRule(NamedTuple):
    """Extent of a proof, and the rank of repairs.

    Attributes
    ----------
    most : int or None
        Largest number of simulated remedies, in descending order of their estimates; None: all.
    every : bool
        Whether to simulate also remedies that cannot be the bottleneck and have less than a hundredth of the path.
    repair_part : float
        Part of the largest saving from which a repair is named before other changes.
    """

    most: int | None = None
    every: bool = False
    repair_part: float = REPAIR_PART


def proven(
    verdict: Verdict,
    remedies: Sequence[AnyRemedy],
    trial: Callable[[AnyRemedy], RemedyTrial],
    rule: ProofRule,
) -> Verdict:
    """Return the verdict with simulated savings, the cause with the largest one first.

    Parameters
    ----------
    remedies : sequence
        Changes of the run in descending order of their estimates.
    trial : callable
        Simulates the run with a change.
    """
    trials: dict[str, RemedyTrial] = {}
    unproven: list[str] = []
    impossible, unfinished = 0, ""
    for remedy in remedies:
        best_ps = max((one.saving_ps for one in trials.values()), default=0)
        if unfinished or (
            rule.most is not None and len(trials) + impossible >= rule.most
        ):
            unproven.append(remedy.words)
        elif (
            not rule.every and trials and _is_small(remedy, verdict.time_ps, best_ps)
        ):
            continue
        else:
            try:
                trials[remedy.words] = trial(remedy)
            except (DeadlockError, InputError, RangeExceeded, ScheduleError):
                impossible += 1
            except TimeLimitReached as error:
                unfinished = (
                    f"other changes; {error}" if trials else f"changes; {error}"
                )
                unproven.append(remedy.words)
    savings = {words: one.saving_ps for words, one in trials.items()}
    causes = _order_causes(verdict, remedies, savings, rule.repair_part)
    if causes and causes[0].remedy in trials and causes[0].saving_ps is not None:
        after = trials[causes[0].remedy].diagnose()
        first = None if after is None else after.headline
        then = "" if first is None else f"{first.share:.1%} {first.words()}"
        causes[0] = replace(causes[0], then=then)
    proof = _proof(verdict, remedies, savings, unproven)
    if causes and causes[0].remedy in savings:
        told_ps = savings[causes[0].remedy]
        more = [words for words, saving_ps in savings.items() if saving_ps > told_ps]
        sentence = (
            f"only {', '.join(more)} {'saves' if len(more) == 1 else 'save'} more"
        )
        proof = (
            proof.replace("no other single change saves more", sentence)
            if more
            else proof
        )
    return replace(verdict, causes=tuple(causes), proof=proof, unfinished=unfinished)


def _is_small(remedy: ProvableRemedy, time_ps: int, best_ps: int) -> bool:
    return remedy.most_ps <= best_ps and remedy.estimate_ps < LEAST_SHARE * time_ps


def _order_causes(
    verdict: Verdict,
    remedies: Sequence[ProvableRemedy],
    savings: dict[str, int],
    repair_part: float,
) -> list[VerdictCause]:
    """Return the causes by simulated saving, then by estimate, then by time."""
    best_ps = max(savings.values(), default=0)
    of_key: dict[Key, list[ProvableRemedy]] = defaultdict(list)
    cause_of = {cause.key: cause for cause in verdict.causes}
    for remedy in remedies:
        kind, what = remedy.keys[0]
        settings = (
            SETTINGS.get(kind, "")
            if verdict.causes and verdict.causes[0].settings
            else ""
        )
        cause_of.setdefault(
            (kind, what), VerdictCause(kind, what, 0, settings=settings)
        )
        for key in remedy.keys:
            of_key[key].append(remedy)
    causes = [
        _with_saving(cause, of_key[key], savings) for key, cause in cause_of.items()
    ]
    causes = [cause for cause in causes if cause.time_ps or cause.saving_ps]
    if best_ps < LEAST_SHARE * verdict.time_ps:
        # No change matters: the longest cause is named.
        return causes

    def value(cause: VerdictCause) -> tuple[int, int, int]:
        if cause.saving_ps is not None:
            repair = cause.kind in (CauseKind.FAULT, CauseKind.STRAGGLER)
            weighed_ps = (
                int(cause.saving_ps / repair_part) if repair else cause.saving_ps
            )
            return -weighed_ps, 0, -cause.time_ps
        estimate_ps = max((one.estimate_ps for one in of_key[cause.key]), default=0)
        return (
            -min(best_ps, estimate_ps) if savings else -estimate_ps,
            1,
            -cause.time_ps,
        )

    return sorted(causes, key=value)


def _with_saving(
    cause: VerdictCause, remedies: Sequence[ProvableRemedy], savings: dict[str, int]
) -> VerdictCause:
    """Return a cause with the remedy that saves most, or otherwise that of the largest estimate."""
    done = [one.words for one in remedies if one.words in savings]
    if not done:
        return replace(cause, remedy=remedies[0].words) if remedies else cause
    best = max(done, key=lambda words: savings[words])
    return replace(cause, remedy=best, saving_ps=savings[best])


def _proof(
    verdict: Verdict,
    remedies: Sequence[ProvableRemedy],
    savings: dict[str, int],
    left: Sequence[str],
) -> str:
    """Return a sentence on the certainty of the bottleneck."""
    if not remedies:
        return ""
    best_ps = max(savings.values(), default=0)
    least_ps = max(best_ps, int(LEAST_SHARE * verdict.time_ps))
    open_ = [
        one.words for one in remedies if one.words in left and one.most_ps > least_ps
    ]
    named = ", ".join(words or "without rivals" for words in open_[:NAMED_CHANGES])
    more = (
        f" and {len(open_) - NAMED_CHANGES} more"
        if len(open_) > NAMED_CHANGES
        else ""
    )
    if open_:
        return f"not certain: not simulated: {named}{more} (--confirm)"
    count = f"{len(savings)} of {len(remedies)} changes simulated"
    if best_ps < LEAST_SHARE * verdict.time_ps:
        return f"certain: no single change saves {LEAST_SHARE:.0%} ({count})"
    return f"certain: no other single change saves more ({count})"
