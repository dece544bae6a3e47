"""Partial result of training steps that the wall-clock limit ended."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

from clusim.base.errors import TimeLimitReached
from clusim.results.partial import Unfinished
from clusim.results.result import Result
from clusim.training.proof import FoldReport
from clusim.training.stepjson import EndedStepsJson
from clusim.workload.parallel.plan import ParallelPlan


@dataclass(frozen=True)
class WholeSteps:
    """Completed steps: times [ps], granularity, and report on replicated blocks."""

    step_ps: list[int]
    granularity: str
    fold: FoldReport


@dataclass(frozen=True)
class EndedSteps:
    """Partial result of steps that the wall-clock limit ended.

    Attributes
    ----------
    steps : int
        Requested steps.
    why : str
        Reason of the end.
    step_ps : list of int
        Times of the completed steps of the run in progress [ps].
    result : Result or None
        Result of that run; None if it had not begun.
    folded : int
        Number of its replicated blocks.
    before : WholeSteps or None
        Earlier run that was completed: coarser, with more blocks replicated, or without a checkpoint.
    """

    plan: ParallelPlan
    steps: int
    why: str
    step_ps: list[int]
    result: Result | None
    folded: int = 0
    before: WholeSteps | None = None

    @property
    def time_ps(self) -> int:
        """Simulated time of the run in progress [ps]."""
        return 0 if self.result is None else self.result.time_ps

    @property
    def under_way_ps(self) -> int:
        """Simulated time of the step in progress [ps]."""
        return self.time_ps - sum(self.step_ps)

    @property
    def granularity(self) -> str:
        """Granularity of the unfinished run."""
        return "" if self.result is None else self.result.provenance.granularity_note

    @property
    def words(self) -> str:
        """Cause and place of the end."""
        if self.result is None:
            return f"{self.why}: ended before the steps were simulated again"
        done = f"{len(self.step_ps)} of {self.steps} steps done"
        return f"{self._unfinished.words(self.time_ps)}, {done}"

    @property
    def _unfinished(self) -> Unfinished:
        known = None if self.result is None else self.result.unfinished
        return known or Unfinished(self.why, 0.0, 0)

    def to_json(self) -> EndedStepsJson:
        """Return the numbers for JSON output."""
        wall_s = 0.0 if self.result is None else self.result.wall_s
        before = self.before
        return {
            **self._unfinished.to_json(self.time_ps, wall_s),
            "workload": self.plan.workload.name,
            "model": self.plan.model.name,
            "fabric": self.plan.fabric.name,
            "gpus": self.plan.mesh.size,
            "steps": self.steps,
            "steps_s": [round(ps / 1e12, 9) for ps in self.step_ps],
            "under_way_s": round(self.under_way_ps / 1e12, 9),
            "granularity": self.granularity,
            "blocks_folded": self.folded,
            "before": None
            if before is None
            else {
                "steps_s": [round(ps / 1e12, 9) for ps in before.step_ps],
                "granularity": before.granularity,
                "folded": before.fold.to_json(),
            },
        }


class StepsEnded(TimeLimitReached):
    """Wall-clock limit reached in training steps; `known` is the partial result."""

    def __init__(self, known: EndedSteps) -> None:
        super().__init__(known.words)
        self.known = known


@contextmanager
def knowing(plan: ParallelPlan, steps: int, why: str, whole: WholeSteps) -> Iterator[None]:
    """Add the completed run `whole` to a partial result raised inside, unless it has one."""
    try:
        yield
    except StepsEnded as error:
        if error.known.before is not None:
            raise
        raise StepsEnded(replace(error.known, before=whole)) from None
    except TimeLimitReached:
        raise StepsEnded(EndedSteps(plan, steps, why, [], None, before=whole)) from None
