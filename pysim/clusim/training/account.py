"""The verdict on a training step: by what its ranks did in it, and not by its critical path.

Folded blocks are pauses on that path, and a bubble is on none: while one stage waits, another computes. So a step goes
into what a rank did on average, which adds up to the step.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from clusim.training.breakdown import PARTS, Breakdown
from clusim.verdict import CauseKind, Verdict, VerdictCause

__all__ = ["step_verdict"]

SHOWN = 3
"""Causes of a verdict."""


def step_verdict(ranks: Sequence[Breakdown], step_ps: int, expected: str) -> Verdict:
    """Return the verdict on a step of `step_ps` [ps].

    Computing twice as fast saves half of it, the other parts are saved whole, in first order: what hides behind
    computing may then show. The first cause is the one whose fix saves most.
    """
    causes = []
    for part in PARTS:
        kind, name = CauseKind(part), f"{part}_ps"
        mean_ps = round(float(np.mean([getattr(row, name) for row in ranks])))
        saving_ps = mean_ps // 2 if kind is CauseKind.COMPUTE else mean_ps
        if mean_ps:
            causes.append(VerdictCause(kind, "", _worst(ranks, name), mean_ps, saving_ps))
    causes.sort(key=lambda cause: -(cause.saving_ps or 0))
    basis = "what ranks did in the last step on average"
    return Verdict(
        step_ps, tuple(causes[:SHOWN]), basis=basis, expected=f"expected error: {expected}"
    )


def _worst(ranks: Sequence[Breakdown], column: str) -> tuple[str, ...]:
    """Return the rank with most of a part if it has half as much again as ranks have on average."""
    values = [getattr(row, column) for row in ranks]
    most = int(np.argmax(values))
    if len(values) < 2 or values[most] < 1.5 * float(np.mean(values)):
        return ()
    return (f"most on rank {ranks[most].rank}",)
