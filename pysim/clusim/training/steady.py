"""Steady window of training steps that overlap: steps completed between two times inside the run.

With PipeDream and with asynchronous parameter servers ranks start their next step before the others have
ended theirs. The first and the last step of such a run are not typical: the pipeline fills, workers begin in
lockstep, and at the end fewer and fewer ranks use stages and servers. **Model** The window begins when every
rank has completed the first steps, and ends when the first rank has completed all except the last steps. The
steps that each rank completes in it, fractions by linear interpolation between its completions, are its pace;
the step is the inverse of the mean pace. **Proof** The two halves of the window have the same pace, up to
`DISAGREEMENT`; otherwise the run is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import ceil

import numpy as np

from clusim.base.errors import InputError
from clusim.base.units import format_time
from clusim.workload.parallel.plan import ParallelPlan

DISAGREEMENT = 0.02
"""Largest difference between the paces of the two halves of a steady window."""

LEAST_ASYNCHRONOUS = 8
"""Least steps of workers that begin in lockstep: after two they use the servers in turn."""


@dataclass(frozen=True, slots=True)
class Overlap:
    """Steps of a run outside its steady window.

    Attributes
    ----------
    first, last : int
        Steps that every rank completes before the window, and that every rank completes after it.
    least : int
        Least steps of a run with a window of two halves.
    """

    first: int
    last: int
    least: int


@dataclass(frozen=True)
class SteadyWindow:
    """Begin and end of a window [ps], and the steps that each rank completes in it."""

    begin_ps: int
    end_ps: int
    steps: Mapping[int, float]

    @property
    def step_ps(self) -> int:
        """Step at the mean pace of the ranks [ps]."""
        return round(
            (self.end_ps - self.begin_ps) / float(np.mean([*self.steps.values()]))
        )

    def of_rank_ps(self, rank: int) -> int:
        """Return the step of a rank at its pace [ps]."""
        return round((self.end_ps - self.begin_ps) / self.steps[rank])

    @property
    def note(self) -> str:
        """Note for reports."""
        begin, end = format_time(self.begin_ps), format_time(self.end_ps)
        return f"steps overlap: the step is the mean pace of all ranks between {begin} and {end}"


def overlap_of(plan: ParallelPlan) -> Overlap | None:
    """Return the steps outside the steady window of a plan; None if its steps do not overlap."""
    if is_free(plan):
        slowest = max(plan.workload.stragglers.ranks.values(), default=1.0)
        return Overlap(2, 1, max(LEAST_ASYNCHRONOUS, 4 * ceil(slowest) + 1))
    if plan.schedule == "pipedream":
        # At most one microbatch per worker is in flight while the pipeline fills and drains.
        fill = ceil(plan.mesh.pipeline / plan.microbatches)
        return Overlap(fill, fill, 3 * fill + 2)
    return None


def is_free(plan: ParallelPlan) -> bool:
    """Return True if the plan's workers run steps asynchronously with parameter servers."""
    return bool(plan.servers) and plan.workload.data.mode == "async"


def simulated_steps(plan: ParallelPlan, steps: int) -> int:
    """Return the steps to simulate if `steps` are requested: enough for a steady window."""
    overlap = overlap_of(plan)
    return steps if overlap is None else max(steps, overlap.least)


def reported_window(
    ends: Sequence[int], steady: SteadyWindow | None
) -> tuple[int, int]:
    """Return begin and end of the last step, or of the steady window [ps].

    `ends` are the ends of all steps [ps].
    """
    if steady is not None:
        return steady.begin_ps, steady.end_ps
    return (ends[-2] if len(ends) > 1 else 0), ends[-1]


def reported_steps(ends: Sequence[int], steady: SteadyWindow | None) -> list[int]:
    """Return the time of every step, the steady one if steps overlap [ps]."""
    if steady is not None:
        return [steady.step_ps] * len(ends)
    return [b - a for a, b in pairwise([0, *ends])]


def steady_window(
    plan: ParallelPlan,
    steps: Sequence[Mapping[int, Sequence[int]]],
    end_of: Callable[[Sequence[int]], int],
) -> SteadyWindow | None:
    """Return the steady window of a run; None if its steps do not overlap.

    Parameters
    ----------
    steps : sequence of mapping
        Last tasks of every rank in each step.
    end_of : callable
        Returns the end of the last of some tasks [ps].

    Raises
    ------
    InputError
        The run is without a window, or the paces of its halves differ by more than `DISAGREEMENT`.
    """
    overlap = overlap_of(plan)
    if overlap is None:
        return None
    ends = {rank: [end_of(step[rank]) for step in steps] for rank in steps[0]}
    begin = max(stage_ends[overlap.first - 1] for stage_ends in ends.values())
    end = min(stage_ends[-1 - overlap.last] for stage_ends in ends.values())
    where = f"steps {len(steps)}: steps of ranks overlap"
    more = f"set more steps, such as {2 * len(steps)}"
    if end <= begin:
        raise InputError(f"{where}, and no time is in the steady state; {more}")
    edges = np.linspace(begin, end, 3)
    count = np.arange(1, len(steps) + 1)
    done = np.array(
        [np.interp(edges, stage_ends, count) for stage_ends in ends.values()]
    )
    halves = np.diff(done).sum(axis=0)
    off = float(halves.max() / max(1e-9, halves.min())) - 1
    if off > DISAGREEMENT:
        raise InputError(
            f"{where}, and two halves of the run differ by {off:.1%} in pace; {more}"
        )
    completed = done[:, -1] - done[:, 0]
    if not is_free(plan):
        completed[:] = completed.mean()  # Stages pass on the same microbatches.
    return SteadyWindow(begin, end, dict(zip(ends, completed.tolist(), strict=True)))
