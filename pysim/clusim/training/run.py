"""Simulates training steps: plan, schedule, run, and what came out."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import astuple, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from clusim.errors import InputError
from clusim.fabric.model import Fabric
from clusim.lowering import Broken
from clusim.result import Result
from clusim.run.session import Progress
from clusim.run.simulate import simulate
from clusim.schedule.ir import Schedule
from clusim.training.breakdown import breakdown, spans_of
from clusim.training.depth import by_depth
from clusim.training.planned import plan_notes, written
from clusim.training.proof import affordable, fold_report, states
from clusim.training.quantum import relaxed
from clusim.training.result import TrainingResult
from clusim.training.sharing import sharing
from clusim.training.switches import switching
from clusim.workload.memory import Memory
from clusim.workload.parallel.fold import Folder, Measured
from clusim.workload.parallel.pipeline import StepWriter
from clusim.workload.parallel.plan import TrainingPlan, make_plan
from clusim.workload.spec import Workload, complain

__all__ = ["FOLDS", "train"]

FOLDS = ("auto", "all", "proved", "none")
"""What may be folded."""

MOST_ROUNDS = 4
"""Runs in which fewer and fewer blocks are folded, before everything is simulated."""


@dataclass
class _Runs:
    """Runs schedules of blocks, all in the same way."""

    fabric: Fabric
    granularity: str | int
    faults: Sequence[Any]

    def __call__(self, schedule: Schedule) -> Measured:
        """Run the schedule of a block, alone."""
        result = simulate(
            self.fabric, schedule, granularity=self.granularity, bins=2, faults=self.faults
        )
        spans = spans_of(schedule, result.tasks.start_ps, result.tasks.end_ps)
        rows = breakdown(spans, list(spans), 0, result.time_ps)
        counters = result.wires.counters
        used = np.flatnonzero(counters["busy_ps"])
        wires = {
            result.wires.names[w]: (int(counters["busy_ps"][w]), int(counters["payload"][w]))
            for w in used
        }
        return Measured(
            result.tasks.start_ps,
            result.tasks.end_ps,
            {row.rank: row.compute_ps for row in rows},
            {row.rank: row.exposed_ps for row in rows},
            {row.rank: row.communication_ps for row in rows},
            wires,
            astuple(sharing(schedule, result.tasks.start_ps, result.tasks.end_ps)),
            result.grants,
            len(schedule.instances),
        )


def train(
    workload: Workload,
    fabric: Fabric,
    *,
    steps: int = 2,
    granularity: str | int = "auto",
    fold: str | None = None,
    strict_memory: bool = False,
    seed: int = 0,
    faults: Sequence[Any] = (),
    trace_out: str | Path | None = None,
    progress: Progress | None = None,
    command: str = "",
) -> TrainingResult:
    """Simulate `steps` training steps; the last one is reported, those before it warm up.

    Parameters
    ----------
    fold : str, optional
        Instead of what the workload says: ``none`` simulates every block; ``all`` simulates equal ones once, and the
        result says how many were proved identical; ``proved`` then writes the others in full and runs again, until
        all that are left were; ``auto`` does that where a run takes half a minute or less, and else is ``all``.
    strict_memory : bool
        Memory that does not suffice is an error rather than a note.

    Other parameters are those of `clusim.simulate`.
    """
    began = time.perf_counter()
    if steps < 1:
        raise InputError(f"steps {steps}: must be at least 1")
    mode = fold or workload.fold
    if mode not in FOLDS:
        raise InputError(f"fold {mode!r}: use {', '.join(FOLDS)}")
    plan = make_plan(workload, Broken(fabric, faults).known)
    if granularity != "packet":
        fabric = relaxed(fabric, plan, steps)
    broken = Broken(fabric, faults)
    plan = replace(plan, fabric=broken.known)
    memory = [plan.memory(stage) for stage in range(plan.mesh.pipeline)]
    notes = _memory_notes(plan, memory, strict_memory)
    options: dict[str, Any] = {"granularity": granularity, "seed": seed, "faults": faults}
    notes += plan_notes(plan, fabric)
    shown: dict[str, Any] = {"progress": progress, "command": command}
    if workload.depth is not None:
        every = {**options, **shown, "steps": steps, "fold": mode, "trace_out": trace_out}
        found = by_depth(workload, plan, lambda part: train(part, fabric, **every))
        return replace(found, memory=memory, notes=[*notes, *found.notes], switching=None)
    options |= {"fabric": fabric, "notes": notes}
    folder = Folder(plan.fabric, _Runs(fabric, granularity, faults))
    if mode == "none" or broken.faults:
        run = _run(plan, None, steps, {**options, **shown, "trace_out": trace_out})
    elif mode == "all":
        run = _run(plan, folder, steps, {**options, **shown, "trace_out": trace_out})
    else:
        run = _run_proved(plan, folder, steps, {**options, **shown}, always=mode == "proved")
        if trace_out is not None:
            again = run.writer.emitter.folder
            if again is not None:
                again.restart(again.written)
            run = _run(plan, again, steps, {**options, **shown, "trace_out": trace_out})
    found = _evaluate(run, memory, notes, time.perf_counter() - began)
    done = switching(plan.fabric, found.traffic, plan.mesh.size, steps, granularity)
    return replace(found, switching=done)


@dataclass(frozen=True)
class _Run:
    """A schedule that was written and simulated."""

    plan: TrainingPlan
    writer: StepWriter
    schedule: Schedule
    result: Result


def _run(plan: TrainingPlan, folder: Folder | None, steps: int, options: dict[str, Any]) -> _Run:
    writer, schedule = written(plan, folder, steps)
    return _Run(plan, writer, schedule, simulate(schedule=schedule, **options))


def _run_proved(
    plan: TrainingPlan, folder: Folder, steps: int, options: dict[str, Any], *, always: bool
) -> _Run:
    """Run again and again, writing in full what was not proved identical, until every folded block is.

    Unless `always`, only as long as that is affordable.
    """
    for _ in range(MOST_ROUNDS):
        run = _run(plan, folder, steps, options)
        start, end = run.result.tasks.start_ps, run.result.tasks.end_ps
        spans = spans_of(run.schedule, start, end)
        rest = [b for b, state in states(folder, spans, start, end) if not state.proved]
        if not rest or not (always or affordable(run.result.grants, rest)):
            return run
        folder.restart(folder.written | {block.number for block in rest})
    return _run(plan, None, steps, options)


def _memory_notes(plan: TrainingPlan, memory: list[Memory], strict: bool) -> list[str]:
    worst = max(range(len(memory)), key=lambda stage: memory[stage].total)
    item = memory[worst]
    if not item.missing:
        return []
    text = (
        f"memory: stage {worst} needs {item.total / 2**30:.1f} GiB, {plan.chip.name} has"
        f" {item.capacity / 2**30:.1f} GiB: {item.missing / 2**30:.1f} GiB too little"
    )
    if strict:
        where = "parallel" if plan.workload.parallel.model_fields_set else "model"
        message = f"{text}; cut the model further, or compute activations again"
        raise complain(plan.workload, (where,), message)
    return [text]


def _evaluate(run: _Run, memory: list[Memory], notes: list[str], wall_s: float) -> TrainingResult:
    plan, writer, schedule, result = run.plan, run.writer, run.schedule, run.result
    start, end = result.tasks.start_ps, result.tasks.end_ps
    emitter = writer.emitter
    blocks = emitter.folder.blocks if emitter.folder is not None else []
    folded = {task: block.found for block in blocks for task in block.tasks.values()}
    spans = spans_of(schedule, start, end, folded)
    ends = [max(int(end[t]) for tasks in step.values() for t in tasks) for step in writer.steps]
    ends[-1] = max(ends[-1], result.time_ps) if len(ends) == 1 else ends[-1]
    low, high = (ends[-2] if len(ends) > 1 else 0), ends[-1]
    passes = 0
    if plan.mesh.pipeline > 1:
        passes = max(
            (
                int(end[i])
                for i, task in enumerate(schedule.tasks)
                if task.kind in ("kernel", "delay") and task.name[:1] in "FBW" and end[i] <= high
            ),
            default=high,
        )
    rows = breakdown(spans, plan.mesh.ranks, low, high, passes)
    free = plan.servers and plan.workload.data.mode == "async"
    return TrainingResult(
        plan=plan,
        step_ps=[b - a for a, b in zip([0, *ends], ends, strict=False)],
        ranks=rows,
        memory=memory,
        traffic=emitter.traffic,
        wires=_wires(result, [block.found.wires for block in blocks]),
        fold=fold_report(emitter.folder, spans, start, end),
        result=result,
        executed_flops=emitter.flops // len(ends),
        wall_s=wall_s,
        tasks=len(schedule.tasks),
        notes=notes,
        sharing=sharing(schedule, start, end, [block.found for block in blocks]),
        worker_ps=_worker_steps(writer, end) if free else [],
    )


def _worker_steps(writer: StepWriter, end: Any) -> list[int]:
    """Return the time of the last step of every worker, from the end of its own step before [ps]."""
    last, before = writer.steps[-1], writer.steps[-2] if len(writer.steps) > 1 else {}
    return [
        max(int(end[t]) for t in tasks)
        - max((int(end[t]) for t in before.get(rank, ())), default=0)
        for rank, tasks in last.items()
    ]


def _wires(
    result: Result, folded: list[dict[str, tuple[int, int]]], count: int = 5
) -> list[tuple[str, float]]:
    busy = dict(zip(result.wires.names, result.wires.counters["busy_ps"].tolist(), strict=True))
    for wires in folded:
        for name, (busy_ps, _) in wires.items():
            busy[name] = busy.get(name, 0) + busy_ps
    top = sorted(busy.items(), key=lambda item: -item[1])[:count]
    return [(name, value / max(1, result.time_ps)) for name, value in top if value]
