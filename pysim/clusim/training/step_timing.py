"""Simulated training steps: end times, time breakdown of the last one, and bottleneck."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import takewhile
from typing import TYPE_CHECKING

from clusim.base.terms.links import kind_of
from clusim.results.diagnosis import Verdict
from clusim.results.result import Result
from clusim.schedule.ir import Schedule
from clusim.training.breakdown import Breakdown, Spans, spans_of
from clusim.training.expected import expected_text
from clusim.training.full_wire import full_wire
from clusim.training.headline import headline_rows
from clusim.training.proof import BlockState, FoldReport, fold_report, states
from clusim.training.steady import (
    SteadyWindow,
    is_free,
    reported_steps,
    reported_window,
    steady_window,
)
from clusim.training.step_diagnosis import (
    Culprits,
    StepSpans,
    heavy_stage,
    server_waits,
    slow_ranks,
    step_verdict,
)
from clusim.workload.parallel.fold import FoldedBlock, by_kind
from clusim.workload.parallel.plan import ParallelPlan

if TYPE_CHECKING:
    from clusim.workload.parallel.pipeline import StepWriter


@dataclass(frozen=True)
class StepTiming:
    """A schedule of steps that was written and simulated.

    Attributes
    ----------
    states : list
        States of its replicated blocks; see `clusim.training.proof`.
    """

    plan: ParallelPlan
    writer: StepWriter
    schedule: Schedule
    result: Result
    states: list[tuple[FoldedBlock, BlockState]] = field(default_factory=list)

    @property
    def blocks(self) -> list[FoldedBlock]:
        """Return the replicated blocks, run as pauses."""
        folder = self.writer.emitter.folder
        return folder.blocks if folder is not None else []

    @property
    def free(self) -> bool:
        """Return True if workers run steps asynchronously."""
        return is_free(self.plan)

    @property
    def ranks(self) -> tuple[int, ...]:
        """Return the ranks with spans."""
        return self.plan.mesh.ranks

    @cached_property
    def spans(self) -> dict[int, Spans]:
        """Return the work of every rank over time."""
        tasks = self.result.tasks
        return spans_of(self.schedule, tasks.start_ps, tasks.end_ps, self.blocks)

    @cached_property
    def _task_ends(self) -> list[list[int]]:
        """Return the ends of the last tasks of every step [ps]; -1 for those that did not end."""
        end = self.result.tasks.end_ps
        return [
            [int(end[t]) for tasks in step.values() for t in tasks]
            for step in self.writer.steps
        ]

    @cached_property
    def ends(self) -> list[int]:
        """Return the end of every step [ps]."""
        ends = [max(step) for step in self._task_ends]
        return [max(ends[0], self.result.time_ps)] if len(ends) == 1 else ends

    @cached_property
    def steady(self) -> SteadyWindow | None:
        """Return the steady window of a complete run, if steps overlap."""
        if self.result.unfinished is not None:
            return None
        end = self.result.tasks.end_ps
        return steady_window(
            self.plan,
            self.writer.steps,
            lambda tasks: max(int(end[t]) for t in tasks),
        )

    @property
    def steps_ps(self) -> list[int]:
        """Return the time of every step [ps]; the steady one if steps overlap."""
        return reported_steps(self.ends, self.steady)

    @property
    def ended(self) -> list[int]:
        """Return the ends of the completed steps of a partial run [ps].

        The only step of a run ends with it.
        """
        if len(self._task_ends) == 1:
            return []
        return [
            max(step)
            for step in takewhile(lambda step: min(step) >= 0, self._task_ends)
        ]

    @cached_property
    def fold(self) -> FoldReport:
        """Return the report on the replicated blocks."""
        start, end = self.result.tasks.start_ps, self.result.tasks.end_ps
        block_states = self.states or states(self.blocks, self.spans, start, end)
        return fold_report(self.writer.emitter.folder, block_states)

    @property
    def window(self) -> tuple[int, int]:
        """Return the begin and end of the last step, or of the steady window [ps]."""
        return reported_window(self.ends, self.steady)

    @property
    def step_ps(self) -> int:
        """Return the time of the last step [ps]."""
        return self.steps_ps[-1]

    @cached_property
    def passed_ps(self) -> int:
        """Return the end of the last pass of the last step [ps]."""
        end, high = self.result.tasks.end_ps, self.window[1]
        return max(
            (
                int(end[i])
                for i, task in enumerate(self.schedule.tasks)
                if task.kind in ("kernel", "delay")
                and task.name[:1] in "FBW"
                and end[i] <= high
            ),
            default=high,
        )

    @cached_property
    def rows(self) -> list[Breakdown]:
        """Return the breakdown of ranks in the last step."""
        return self.step.whole

    @cached_property
    def step(self) -> StepSpans:
        """Return the work of ranks in the last step."""
        low, high = self.window
        several = self.plan.mesh.pipeline > 1
        return StepSpans(
            self.spans, self.ranks, low, self.passed_ps, high, several, self.steady
        )

    @cached_property
    def verdict(self) -> Verdict:
        """Return the verdict on the last step."""
        plan = self.plan
        expected = expected_text(plan.chip.name, plan.workload.host.framework)
        verdict = step_verdict(self.step.by_phase, expected, self._culprits())
        memory = [plan.memory(stage) for stage in range(plan.mesh.pipeline)]
        rows = headline_rows(plan, self.step_ps, memory)
        return replace(
            verdict, figures=tuple(f"{label}: {value}" for label, value in rows)
        )

    def _culprits(self) -> Culprits:
        slow: dict[int, float] = {}
        tasks, servers = self.result.tasks, self.plan.servers
        if not self.blocks:
            slowed = {
                int(rank): factor
                for rank, factor in self.plan.workload.stragglers.ranks.items()
            }
            slow = slow_ranks(
                self.schedule, tasks.start_ps, tasks.end_ps, self.window[0], slowed
            )
        wire = full_wire(self.result, self.blocks, self.spans, self.window)
        idle = {}
        if servers:
            times = tasks.start_ps, tasks.end_ps
            idle = server_waits(self.schedule, times, self.step, servers)
        bubble = "" if slow else heavy_stage(self.rows, self.plan.mesh)
        return Culprits(slow, wire, bubble, idle, not self.free)


def busy_links(run: StepTiming) -> list[str]:
    """Return the link classes that carry traffic."""
    busy = {wire for block, _ in by_kind(run.blocks) for wire in block.wires}
    wires = run.result.wires
    rows = zip(
        wires.names, wires.classes, wires.counters["busy_ps"].tolist(), strict=True
    )
    return sorted({kind_of(name) for wire, name, ps in rows if ps or wire in busy})


def busiest_wires(run: StepTiming, count: int = 5) -> list[tuple[str, float]]:
    """Return the busiest wires, replicated blocks included, and their utilisation."""
    names = run.result.wires.names
    busy = dict(
        zip(names, run.result.wires.counters["busy_ps"].tolist(), strict=True)
    )
    for block, repeated in by_kind(run.blocks):
        for wire, busy_ps in zip(
            block.wires, block.done.busy_ps.tolist(), strict=True
        ):
            busy[wire] += busy_ps * len(repeated)
    top = sorted(busy.items(), key=lambda item: -item[1])[:count]
    return [
        (name, value / max(1, run.result.time_ps)) for name, value in top if value
    ]
