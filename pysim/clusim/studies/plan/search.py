"""Search for the layout of a training job with the shortest step.

Layouts that exceed the memory are omitted. The others are ordered by their forecast (`clusim.studies.plan.forecast`).
The first are estimated (`clusim.training.estimate`). The result counts layouts with a bound below the best step
that are not estimated and may be faster.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple

from clusim.base.errors import ClusimError, InputError
from clusim.base.json_schema import JsonObject, Round6, Round9
from clusim.base.units import format_time
from clusim.simulation.setup import Setup
from clusim.studies.plan.forecast import CommCurves, StepForecast, WireLimits
from clusim.studies.plan.layouts import ParallelLayout, layouts
from clusim.training.breakdown import PARTS
from clusim.training.estimate import estimated
from clusim.training.request import TrainRequest
from clusim.training.result import StepResult
from clusim.workload import make_plan
from clusim.workload.parallel.plan import ParallelPlan, model_of
from clusim.workload.spec import Workload

ESTIMATED = 8
"""Layouts that are estimated by default."""

MEMORY = "memory of a GPU"
"""Reason for layouts that are omitted."""

PhaseNotice = Callable[[str], None]
"""Called with the name of each phase."""


class Candidate(NamedTuple):
    """Layout that fits the memory, with its bound and its forecast [ps]."""

    layout: ParallelLayout
    plan: ParallelPlan
    bound_ps: int
    forecast_ps: int = 0

    @property
    def memory_GiB(self) -> float:
        """Memory of the fullest stage [GiB]."""
        stages = range(self.plan.mesh.pipeline)
        return max(self.plan.memory(stage).total for stage in stages) / (1 << 30)


@dataclass(frozen=True, slots=True)
class PlannedStep(JsonObject):
    """Estimated step of a layout.

    Attributes
    ----------
    words : str
        The layout in a line.
    step_time_s, bound_s, forecast_s : float
        Estimated time of a step, its lower bound without an estimate, and its forecast [s].
    mfu : float
        Model FLOP/s over the peak FLOP/s of all ranks.
    exposed_by_dimension_s : dict
        Exposed communication by dimension of parallelism [s].
    bubble_s, host_wait_s : float
        Mean bubble of the pipeline, and wait for hosts, of a rank [s].
    memory_GiB : float
        Memory of the fullest stage [GiB].
    slower_by : str
        Parts of the step that are longer than in the best layout.
    pareto : bool
        No layout in the table is faster and needs less memory.
    """

    words: str
    layout: ParallelLayout
    step_time_s: Round9
    bound_s: Round9
    forecast_s: Round9
    mfu: Round6
    exposed_by_dimension_s: dict[str, Round9]
    bubble_s: Round9
    host_wait_s: Round9
    memory_GiB: Round6
    slower_by: str = ""
    pareto: bool = False


@dataclass(frozen=True, slots=True)
class PlanSearch(JsonObject):
    """Layouts of a training job, the fastest first.

    Attributes
    ----------
    workload, system : str
        Name of the workload, and of the system with its nodes.
    gpus : int
        GPUs of the system.
    layouts : int
        Layouts that divide model and batch.
    omitted : dict
        Number of omitted layouts by reason.
    simulated_collectives : int
        Collectives that were simulated for the forecasts.
    steps : list
        Estimated layouts.
    unknown : int
        Layouts with a bound below the best step that are not estimated.
    """

    workload: str
    system: str
    gpus: int
    layouts: int
    omitted: dict[str, int]
    simulated_collectives: int
    steps: list[PlannedStep]
    unknown: int


@dataclass
class PlanSpace:
    """Layouts of one workload on one system."""

    setup: Setup
    workload: Workload
    notify: PhaseNotice = lambda _: None
    count: int = 0
    omitted: Counter[str] = field(default_factory=Counter)

    @cached_property
    def base(self) -> dict[str, Any]:
        """The workload as a mapping."""
        return self.workload.model_dump(by_alias=True, exclude_unset=True)

    @cached_property
    def limits(self) -> WireLimits:
        """Rates of the links."""
        return WireLimits(self.setup.fabric)

    def fitting(self) -> list[Candidate]:
        """Return the layouts that fit the memory, with their bounds."""
        self.notify("memory and bounds of layouts")
        result: list[Candidate] = []
        model = model_of(self.workload.model)
        for layout in layouts(model, self.workload, self.setup.fabric):
            self.count += 1
            plan = self._plan(layout)
            if plan is None:
                continue
            bound_ps = StepForecast(plan, self.limits).time_ps()
            result.append(Candidate(layout, plan, bound_ps))
        return result

    def search(self, candidates: Sequence[Candidate], estimates: int) -> PlanSearch:
        """Return the first candidates in the order of their forecasts, estimated, the fastest first."""
        self.notify("collectives")
        curves = CommCurves(self.setup, self.limits)
        forecasts = [
            StepForecast(one.plan, self.limits, curves.cost).time_ps()
            for one in candidates
        ]
        ordered = sorted(
            (
                one._replace(forecast_ps=ps)
                for one, ps in zip(candidates, forecasts, strict=True)
            ),
            key=lambda one: (one.forecast_ps, one.layout.words),
        )
        results = [(one, self.step(one)) for one in ordered[:estimates]]
        results.sort(key=lambda row: row[1].step_ps[-1])
        best_ps = results[0][1].step_ps[-1]
        unknown = sum(one.bound_ps < best_ps for one in ordered[estimates:])
        return PlanSearch(
            self.workload.name,
            self.setup.name,
            self.setup.fabric.num_ranks,
            self.count,
            dict(self.omitted.most_common()),
            curves.simulated,
            _rows(results),
            unknown,
        )

    def _plan(self, layout: ParallelLayout) -> ParallelPlan | None:
        """Return the plan of a layout; None if it is omitted."""
        try:
            plan = make_plan(layout.workload(self.base), self.setup.known)
            stages = {0, plan.mesh.pipeline - 1}
            if any(plan.memory(stage).missing for stage in stages):
                self.omitted[MEMORY] += 1
                return None
        except ClusimError as error:
            self.omitted[str(error).partition(":")[0][:60]] += 1
            return None
        return plan

    def step(self, one: Candidate) -> StepResult:
        """Return the estimated step of a layout."""
        self.notify(f"estimate of {one.layout.words}")
        request = TrainRequest(
            self.setup,
            one.plan.workload,
            steps=1,
            granularity="coarse",
            estimate=True,
        )
        return estimated(request, confirm=False)


def plan_search(
    setup: Setup,
    workload: Workload,
    *,
    most: int = ESTIMATED,
    notify: PhaseNotice = lambda _: None,
) -> PlanSearch:
    """Return the layouts of a workload on all GPUs of a system, the fastest first.

    Parameters
    ----------
    most : int
        Number of layouts that are estimated.
    notify : callable
        Called with the name of each phase.

    Raises
    ------
    InputError
        No layout divides model and batch and fits the memory.
    """
    space = PlanSpace(setup, workload, notify)
    candidates = space.fitting()
    if not candidates:
        reasons = ", ".join(
            f"{count} {why}" for why, count in space.omitted.most_common(3)
        )
        raise InputError(
            f"{workload.name}: {space.count} layouts, but no one fits {setup.name} ({reasons or 'no divisor'}); more"
            " nodes, another batch or recomputation in the workload can help"
        )
    return space.search(candidates, most)


def _rows(results: Sequence[tuple[Candidate, StepResult]]) -> list[PlannedStep]:
    best = results[0][1]
    rows = [
        PlannedStep(
            one.layout.words,
            one.layout,
            result.step_time_s,
            one.bound_ps / 1e12,
            one.forecast_ps / 1e12,
            result.mfu,
            result.exposed_by_dimension_s,
            result.mean("bubble"),
            result.mean("host"),
            one.memory_GiB,
            _longer_parts(best, result),
        )
        for one, result in results
    ]
    return [replace(row, pareto=_is_pareto(row, rows)) for row in rows]


def _is_pareto(row: PlannedStep, rows: Sequence[PlannedStep]) -> bool:
    """Return whether no layout is faster and needs less memory, or the same to 0.1 GiB."""
    return not any(
        other.step_time_s < row.step_time_s
        and round(other.memory_GiB, 1) <= round(row.memory_GiB, 1)
        for other in rows
    )


def _longer_parts(best: StepResult, result: StepResult) -> str:
    """Return the parts of a step that are longer than in the best one, the largest first."""
    over = {
        words: result.mean(part) - best.mean(part) for part, words in PARTS.items()
    }
    total_s = result.step_time_s - best.step_time_s
    named = [
        f"{words} +{format_time(round(more_s * 1e12))}"
        for words, more_s in sorted(over.items(), key=lambda item: -item[1])
        if more_s > 0.1 * total_s > 0
    ]
    return ", ".join(named[:2])
