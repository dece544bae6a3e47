"""Bottleneck of calls that were simulated in isolation, weighted by their counts."""

from __future__ import annotations

from collections.abc import Sequence

from clusim.replays.report import CallResult
from clusim.results.diagnosis import MOST_CAUSES, CauseKind, Verdict, VerdictCause


def calls_verdict(calls: Sequence[CallResult]) -> Verdict:
    """Return the time breakdown of a job's calls in sequence.

    Time between kernels is launch overhead.
    """
    total = sum(call.time_ps * call.count for call in calls)
    told = [call for call in calls if call.verdict is not None and call.verdict.causes]
    if not told:
        return Verdict(total, (), basis="no call was taken apart")
    sums: dict[tuple[CauseKind, str], list[int]] = {}
    for call in told:
        assert call.verdict is not None
        between = call.time_ps - call.kernel_ps
        own = [((cause.kind, cause.what), cause) for cause in call.verdict.causes]
        for key, cause in own:
            entry = sums.setdefault(key, [0, 0])
            entry[0] += cause.time_ps * call.count
            entry[1] += (cause.saving_ps or 0) * call.count
        if between > 0:
            entry = sums.setdefault((CauseKind.LAUNCH, "between kernels"), [0, 0])
            entry[0] += between * call.count
            entry[1] += between * call.count // 2
    ordered = sorted(sums.items(), key=lambda item: (-item[1][0], item[0]))[:MOST_CAUSES]
    causes = (VerdictCause(*key, (), ps, saving) for key, (ps, saving) in ordered)
    basis = "the critical paths of calls, each by itself"
    return Verdict(total, tuple(causes), basis=basis)
