"""Verdict on a job that one rank represents, and its proof.

**Model** The compute time of a job is its time with calls of zero duration; the remainder is exposed communication. The
changes are twofold rates of kernels, and of each class of links, with NCCL's plan for them. Each change plays the job
again; a change of links also simulates the distinct calls again.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from clusim.replays.representative import RepresentedJob
from clusim.results.cause_kinds import CauseKind
from clusim.results.causes import Key, VerdictCause
from clusim.results.diagnosis import ProvableVerdict, Verdict
from clusim.simulation.proof import ProofRule, RemedyTrial, proven

COMPUTE: Key = (CauseKind.COMPUTE, "")
EXPOSED: Key = (CauseKind.EXPOSED, "")

BASIS = "plays of one rank with and without communication"


@dataclass(frozen=True)
class RepresentedRemedy:
    """Twofold rate of a component; see `clusim.analysis.remedies.Remedy`."""

    words: str
    keys: tuple[Key, ...]
    most_ps: int

    @property
    def estimate_ps(self) -> int:
        """Return the limit of the saving [ps]."""
        return self.most_ps


def provable_job(
    job: RepresentedJob, time_ps: int, *, confirm: bool | None
) -> ProvableVerdict:
    """Return the verdict on a job and its proof.

    Parameters
    ----------
    time_ps : int
        Time of the job [ps].
    confirm : bool or None
        Whether all changes (True) or no change (False) is simulated; None: all changes of small jobs, of others
        compute only.
    """
    verdict = _verdict(job, time_ps)
    return ProvableVerdict(verdict, partial(_prove, job, verdict, confirm))


def _verdict(job: RepresentedJob, time_ps: int) -> Verdict:
    compute_ps = min(time_ps, job.compute_ps())
    causes = [
        VerdictCause(*COMPUTE, compute_ps),
        VerdictCause(*EXPOSED, time_ps - compute_ps),
    ]
    causes.sort(key=lambda cause: -cause.time_ps)
    return Verdict(
        time_ps, tuple(cause for cause in causes if cause.time_ps), basis=BASIS
    )


def _remedies(job: RepresentedJob, verdict: Verdict) -> list[RepresentedRemedy]:
    """Return the changes, in descending order of their limits."""
    times = {cause.key: cause.time_ps for cause in verdict.causes}
    remedies = [RepresentedRemedy("compute x2", (COMPUTE,), verdict.time_ps // 2)]
    exposed_ps = times.get(EXPOSED, 0)
    if exposed_ps:
        classes = sorted({link.cls for link in job.system.setup.fabric.links})
        remedies += [
            RepresentedRemedy(f"{name} x2", (EXPOSED,), exposed_ps)
            for name in classes
        ]
    return sorted(remedies, key=lambda one: (-one.most_ps, one.words))


def _prove(job: RepresentedJob, verdict: Verdict, confirm: bool | None) -> Verdict:
    remedies, budget = _remedies(job, verdict), None
    if confirm is False:
        budget = 0
    elif confirm is None and not job.system.is_whole:
        remedies.sort(key=lambda one: COMPUTE not in one.keys)
        budget = 1

    def trial(remedy: RepresentedRemedy) -> RemedyTrial:
        changed = job.faster(remedy.words)
        after_ps = changed.play().time_ps
        return RemedyTrial(
            verdict.time_ps - after_ps, lambda: _verdict(changed, after_ps)
        )

    return proven(verdict, remedies, trial, ProofRule(budget, every=bool(confirm)))
