"""The verdict on a training step: by what its ranks did in it, and not by its critical path.

Folded blocks are pauses on that path, and a bubble is on none: while one stage waits, another computes. So a step goes
into what a rank did on average, which adds up to the step. Of that, what a slow rank takes longer than its like, and
others wait for it, is the slow rank's; and what the fullest link takes longer than its like, that link's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from clusim.base.terms.links import several
from clusim.results.diagnosis import (
    LEAST_SHARE,
    MOST_CAUSES,
    CauseKind,
    Phase,
    Verdict,
    VerdictCause,
)
from clusim.training.breakdown import PARTS, Breakdown
from clusim.training.stragglers import FullWire

Parts = dict[tuple[CauseKind, str], int]
"""Mean time of a rank by kind and detail [ps]."""


@dataclass(frozen=True, slots=True)
class Culprits:
    """Stragglers of a step.

    Attributes
    ----------
    slow : mapping of int to float
        Ranks that are slower than their like -> the part of their computing that is too much.
    wire : FullWire or None
        Which link exposed communication fills.
    bubble : str
        What the bubble is due to, besides the turns of the pipeline.
    """

    slow: Mapping[int, float] = field(default_factory=dict)
    wire: FullWire | None = None
    bubble: str = ""


def parts_of(ranks: Sequence[Breakdown], culprits: Culprits) -> Parts:
    """Return what ranks did on average in a window of time; the parts add up to it."""
    sums = {part: [getattr(row, f"{part}_ps") for row in ranks] for part in PARTS}
    found: Parts = {}
    if culprits.slow:
        lost = _held_up(ranks, sums, culprits.slow)
        found[CauseKind.STRAGGLER, several(f"rank {rank}" for rank in culprits.slow)] = _mean(lost)
    wire = culprits.wire
    for part, own in sums.items():
        time_ps = _mean(own)
        if part != CauseKind.EXPOSED or wire is None:
            found[CauseKind(part), culprits.bubble if part == CauseKind.BUBBLE else ""] = time_ps
            continue
        broken_ps = round(time_ps * wire.lost)
        if broken_ps:
            found[CauseKind.FAULT, wire.link] = broken_ps
        found[CauseKind.EXPOSED, wire.what] = time_ps - broken_ps
    return {key: ps for key, ps in found.items() if ps > 0}


def _held_up(
    ranks: Sequence[Breakdown], sums: dict[str, list[int]], slow: Mapping[int, float]
) -> list[int]:
    """Take from the parts of each rank what slow ones cost it, and return that [ps].

    It is what the slowest computes longer than the rank that is slowest without what is too much.
    """
    own = [round(row.compute_ps * slow.get(row.rank, 0.0)) for row in ranks]
    usual_ps = max(row.compute_ps - excess for row, excess in zip(ranks, own, strict=True))
    most_ps = max(0, max(row.compute_ps for row in ranks) - usual_ps)
    lost = []
    for i, excess in enumerate(own):
        taken = min(excess, most_ps)
        left = most_ps - taken
        sums["compute"][i] -= taken
        for part in ("bubble", "idle"):
            waits = min(left, sums[part][i])
            sums[part][i] -= waits
            left, taken = left - waits, taken + waits
        lost.append(taken)
    return lost


def _mean(values: Sequence[int]) -> int:
    return round(float(np.mean(values)))


def step_verdict(
    ranks: Sequence[Breakdown],
    step_ps: int,
    expected: str,
    culprits: Culprits = Culprits(),
    phases: tuple[Phase, ...] = (),
) -> Verdict:
    """Return the verdict on a step of `step_ps` [ps].

    Computing twice as fast saves half of it, the other parts are saved whole, in first order: what hides behind
    computing may then show. The first cause is the one whose fix saves most.
    """
    causes = []
    for (kind, what), time_ps in parts_of(ranks, culprits).items():
        saving_ps = time_ps // 2 if kind is CauseKind.COMPUTE else time_ps
        causes.append(VerdictCause(kind, what, _places(ranks, kind, culprits), time_ps, saving_ps))
    causes.sort(key=lambda cause: -(cause.saving_ps or 0))
    told = [own for i, own in enumerate(causes) if not i or own.time_ps >= LEAST_SHARE * step_ps]
    return Verdict(
        step_ps,
        tuple(told[:MOST_CAUSES]),
        phases,
        "what ranks did in the last step on average",
        expected=f"expected error: {expected}",
    )


def _places(ranks: Sequence[Breakdown], kind: CauseKind, culprits: Culprits) -> tuple[str, ...]:
    """Return the link that is fuller than its like, or the rank with half as much again of a part as ranks have."""
    if kind is CauseKind.EXPOSED and culprits.wire is not None and culprits.wire.place:
        return (culprits.wire.place,)
    if kind.value not in PARTS or (kind is CauseKind.COMPUTE and culprits.slow):
        return ()
    values = [getattr(row, f"{kind.value}_ps") for row in ranks]
    most = int(np.argmax(values))
    if len(values) < 2 or values[most] < 1.5 * float(np.mean(values)):
        return ()
    return (f"most on rank {ranks[most].rank}",)
