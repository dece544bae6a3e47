"""Simulation of training steps: plan, schedule, run and result.

Blocks simulated in isolation are stored as columns: the work of each, and its places in the step. The engine divides a
GPU's memory bandwidth between kernels and communication every 2 us. A training step has seconds of kernels on tens or
thousands of GPUs, with layers of milliseconds: there the interval is longer.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import astuple, dataclass, field, replace
from functools import partial
from itertools import pairwise

import numpy as np

from clusim.base.limits import pause_collector
from clusim.lowering.grain import COARSE, STEP, STEP_ERROR
from clusim.results.diagnosis import ProvableVerdict, Verdict
from clusim.results.replicated import KINDS, BlockTasks
from clusim.results.result import Result
from clusim.schedule.ir import Schedule
from clusim.simulation.api import result_of, whole_of
from clusim.simulation.job import RunOptions
from clusim.simulation.request import ScheduleRequest
from clusim.simulation.setup import Setup
from clusim.training.breakdown import (
    error_of,
    grain_error,
    spans_of,
    starts_of_calls,
)
from clusim.training.proof import (
    BlockState,
    EndedSteps,
    StepsEnded,
    WholeSteps,
    affordable,
    knowing,
    states,
)
from clusim.training.remedies import affordable_trials, provable_step
from clusim.training.request import WANTED_ERROR, TrainRequest
from clusim.training.result import TrainingResult
from clusim.training.saved_step import SavedStep
from clusim.training.schedules import (
    memory_notes,
    plan_notes,
    relaxed,
    write_steps,
)
from clusim.training.steady import is_free, simulated_steps
from clusim.training.step_timing import StepTiming, busiest_wires, busy_links
from clusim.training.switches import sharing, switching
from clusim.workload.memory import Memory
from clusim.workload.parallel.checkpoints import checkpoint_of
from clusim.workload.parallel.fold import FoldedBlock, Folder, block_rows
from clusim.workload.parallel.plan import ParallelPlan, make_plan

ALONE = "block"
"""Task name in the schedule of an isolated block, in place of the name of its pass in a step."""


def block_tasks(
    schedule: Schedule, ranks: tuple[int, ...], result: Result
) -> BlockTasks:
    """Return the work of ranks in the run of a block in isolation."""
    tasks, slots = schedule.tasks, {rank: slot for slot, rank in enumerate(ranks)}
    start, end = result.tasks.start_ps, result.tasks.end_ps
    moving = starts_of_calls(schedule, start)
    moves = np.array([moving.get(task.call, 0) for task in tasks], np.int64)
    busy_ps = result.wires.counters["busy_ps"]
    return BlockTasks(
        ranks=ranks,
        slot=np.array([slots[task.rank] for task in tasks], np.int64),
        kind=np.array([KINDS.index(task.kind) for task in tasks], np.int64),
        stream=[task.stream for task in tasks],
        name=["" if task.name == ALONE else task.name for task in tasks],
        start=start,
        moves=np.clip(moves, start, end),
        end=end,
        call=np.array([task.call for task in tasks], np.int64),
        memory=np.array([task.mem_bytes for task in tasks], np.int64),
        calls=schedule.calls,
        wires=tuple(result.wires.names[wire] for wire in np.flatnonzero(busy_ps)),
        busy_ps=busy_ps[busy_ps > 0],
        sharing=astuple(sharing(schedule, start, end)),
        hops=result.grants,
        instances=len(schedule.instances),
    )


MOST_ROUNDS = 4
"""Runs with ever fewer replicated blocks, before everything is simulated."""

MOST_MESSAGES = 4096
"""Overlapped messages between stages in a step, up to which all are written; more are replicated."""

MOST_RANKS = 256
"""Ranks up to which data-parallel collectives, and layers beside them, are written; with more they are replicated."""


def _messages(plan: ParallelPlan) -> int:
    """Return a lower estimate of the messages between stages in a step."""
    return 2 * plan.microbatches * plan.mesh.size * plan.layout.chunks


def _part_of(options: RunOptions) -> RunOptions:
    """Return the options of a run for its times only, with the same wall-clock limit."""
    return RunOptions(bins=2, histories=False, watch=options.watch)


@dataclass
class _Runs:
    """Runner of block schedules with common settings."""

    setup: Setup
    granularity: str | int
    options: RunOptions
    errors: list[float | None] = field(default_factory=list)

    def __call__(self, schedule: Schedule, ranks: tuple[int, ...]) -> BlockTasks:
        """Run the schedule of a block in isolation."""
        request = ScheduleRequest(self.setup, schedule, granularity=self.granularity)
        result = whole_of(
            request, self.options, "a block of work to replicate as pauses"
        )
        self.errors.append(grain_error(result))
        return block_tasks(schedule, ranks, result)

    def worst(self, run: StepTiming) -> float | None:
        """Return the error limit of exposed communication in a run and its blocks; None: unknown."""
        errors = [grain_error(run.result), *self.errors]
        present = [error for error in errors if error is not None]
        return max(present) if len(present) == len(errors) else None


@dataclass
class _Proof:
    """Facts about the replicated blocks of a run, computed once.

    Attributes
    ----------
    always : bool
        All must be verified, at any cost.
    rest : list of FoldedBlock
        The unverified blocks.
    """

    always: bool
    states: list[tuple[FoldedBlock, BlockState]] | None = None
    rest: list[FoldedBlock] = field(default_factory=list)

    def enough(self, run: StepTiming) -> bool:
        """Return True if no further run with the rest written in full is needed."""
        if self.states is None:
            start, end = run.result.tasks.start_ps, run.result.tasks.end_ps
            self.states = states(
                run.blocks, spans_of(run.schedule, start, end), start, end
            )
            self.rest = [block for block, state in self.states if not state.proved]
        return not self.rest or not (
            self.always or affordable(run.result.grants, self.rest)
        )


def trained(
    request: TrainRequest, options: RunOptions = RunOptions()
) -> TrainingResult:
    """Simulate training steps; the last one is reported, earlier steps warm up.

    Raises
    ------
    StepsEnded
        The wall-clock limit of `options` was reached; it contains the partial result.
    TimeLimitReached
        The limit was reached before any step began.
    """
    # Schedules are hundreds of thousands of small objects without reference cycles.
    with pause_collector():
        return _trained(request, options)


def finest(grain_error: float | None) -> bool:
    """Return True if no run of a step is coarser than with `STEP`, from `_Runs.worst`."""
    return grain_error is not None and grain_error <= STEP_ERROR


def _trained(request: TrainRequest, options: RunOptions) -> TrainingResult:
    """Choose the granularity by its error, if requested."""
    if request.granularity != STEP:
        return _simulated(request, options)
    coarse = replace(request, granularity=COARSE)
    result = _simulated(coarse, options, WANTED_ERROR)
    bound = result.error_bound
    if finest(result.grain_error) or (bound is not None and bound <= WANTED_ERROR):
        return result
    first_steps = WholeSteps(
        result.step_ps, result.result.provenance.granularity_note, result.fold
    )
    with knowing(result.plan, len(result.step_ps), options.watch.words, first_steps):
        again = _simulated(request, options)
    return replace(again, wall_s=result.wall_s + again.wall_s)


def _simulated(
    request: TrainRequest, options: RunOptions, wanted: float | None = None
) -> TrainingResult:
    """Simulate steps at the requested granularity, traced if their error is at most `wanted`."""
    began = time.perf_counter()
    asked, setup, workload = request, request.setup, request.workload
    plan = make_plan(workload, setup.known)
    request = replace(request, steps=simulated_steps(plan, request.steps))
    if request.granularity != "packet":
        setup = setup.on(relaxed(setup.fabric, plan, request.steps))
        request = replace(request, setup=setup)
        plan = replace(plan, fabric=setup.known)
    checkpoint_of(plan)  # Raises if its write time is too long to simulate.
    memory = [plan.memory(stage) for stage in range(plan.mesh.pipeline)]
    notes = memory_notes(plan, memory, request.strict_memory)
    notes += plan_notes(plan, setup.fabric) if request.held is None else []
    runs = _Runs(setup, request.granularity, _part_of(options))
    folder = Folder(plan.fabric, runs)
    if request.held is not None:
        plan = replace(plan, fabric=request.held.known)
    folder.messages = _messages(plan) > MOST_MESSAGES
    folder.reductions = plan.mesh.size > MOST_RANKS
    notes_of_run = tuple(notes)
    steps = _Steps(asked, request, plan, notes_of_run, options, runs, wanted)
    if request.folding == "none" or setup.broken.faults:
        run = steps.run(None)
    elif request.folding == "all":
        run = steps.run(folder)
    else:
        run = steps.proved(folder)
    notes += [
        text for text in run.result.provenance.notes if text not in notes_of_run
    ]
    result = _evaluate(run, memory, notes, time.perf_counter() - began)
    with steps.knowing(run):
        result = replace(result, saved=steps.with_checkpoint(run))
        options.watch.begins("collectives of switches are compared with rings")
    done = switching(
        Setup(setup.known),
        result.traffic,
        plan.mesh.size,
        request.steps,
        request.granularity,
    )
    verdict = steps.told[0] if steps.told else steps.judged(run, result)
    proved_result = replace(result.result, judge=verdict, prove=verdict.prove)
    return replace(
        result,
        switching=done,
        grain_error=runs.worst(run),
        result=proved_result,
        judged=verdict,
    )


def _as_timed(options: RunOptions) -> Callable[[TrainRequest], TrainingResult]:
    """Return the simulation of changed steps, with the same wall-clock limit."""
    return partial(_simulated, options=RunOptions(watch=options.watch))


@dataclass(frozen=True)
class _Steps:
    """Writer and runner of the steps of a plan.

    Attributes
    ----------
    asked, request : TrainRequest
        The original request, and the request with relaxed memory-sharing intervals.
    runs : callable
        Runs their blocks.
    wanted : float or None
        Error up to which no finer run follows; None if no finer run follows in any case.
    told : list of ProvableVerdict
        The verdict in the last trace.
    """

    asked: TrainRequest
    request: TrainRequest
    plan: ParallelPlan
    notes: tuple[str, ...]
    options: RunOptions
    runs: _Runs
    wanted: float | None
    told: list[ProvableVerdict] = field(default_factory=list)

    def run(
        self,
        folder: Folder | None,
        proof: _Proof | None = None,
        *,
        saved: bool = False,
    ) -> StepTiming:
        """Run them once, with the blocks of `folder` replicated, and a checkpoint if `saved`.

        The trace, which has no checkpoint, is kept if `proof` finds it sufficient.
        """
        request = self.request
        options = replace(self.options, trace_out=None) if saved else self.options
        writer, schedule = write_steps(self.plan, folder, request.steps, saved=saved)
        blocks = folder.blocks if folder is not None else []
        rows, notes = None, self.notes
        if blocks and options.trace_out is not None:
            rows = block_rows(blocks, schedule)
            if rows is None:
                notes = (
                    *notes,
                    f"trace: {len(blocks)} replicated blocks are pauses, too many tasks",
                )
        schedule_request = ScheduleRequest(
            request.setup,
            schedule,
            notes,
            blocks=rows,
            granularity=request.granularity,
            seed=request.seed,
        )

        def judge(result: Result) -> Verdict:
            """Return the proven verdict for the trace."""
            run = StepTiming(self.plan, writer, schedule, result)
            self.told[:] = [self.judged(run, _evaluate(run, [], [], 0.0))]
            return self.told[0].diagnose()

        def keep(result: Result) -> bool:
            """Return True if no other run follows."""
            run = StepTiming(self.plan, writer, schedule, result)
            return (proof is None or proof.enough(run)) and self._fine(run)

        result = result_of(
            schedule_request, replace(options, judge=judge, keep=keep)
        )
        # Without the judge's references: the schedule is large.
        run = StepTiming(self.plan, writer, schedule, replace(result, judge=None))
        if result.unfinished is not None:
            done = [b - a for a, b in pairwise([0, *run.ended])]
            why = result.unfinished.why
            raise StepsEnded(
                EndedSteps(
                    self.plan, request.steps, why, done, run.result, len(blocks)
                )
            )
        return run

    def _fine(self, run: StepTiming) -> bool:
        """Return True if no finer run is needed."""
        if self.wanted is None:
            return True
        worst = self.runs.worst(run)
        error = error_of(worst, run.rows, run.step_ps)
        return finest(worst) or (error is not None and error <= self.wanted)

    def knowing(self, run: StepTiming) -> AbstractContextManager[None]:
        """Return a context in which a time limit reports `run` as the partial result."""
        note = run.result.provenance.granularity_note
        return knowing(
            self.plan,
            self.request.steps,
            self.options.watch.words,
            WholeSteps(run.steps_ps, note, run.fold),
        )

    def judged(self, run: StepTiming, result: TrainingResult) -> ProvableVerdict:
        """Return the verdict on the last step; its proof simulates changes as far as that is cheap."""
        confirm = self.options.confirm
        if not self._fine(run):
            return ProvableVerdict(result.verdict)
        number = (
            affordable_trials(run) if confirm is None else None if confirm else 0
        )
        links = busy_links(run)
        return provable_step(
            self.asked, result, links, _as_timed(self.options), number
        )

    def with_checkpoint(self, run: StepTiming) -> SavedStep | None:
        """Run them again with a checkpoint in the last one, all else as in `run`."""
        checkpoint_spec, checkpoint = (
            self.plan.workload.checkpoint,
            checkpoint_of(self.plan),
        )
        if checkpoint_spec is None or checkpoint is None:
            return None
        folder = run.writer.emitter.folder
        if folder is not None:
            folder = replace(folder, blocks=[], last=-1)
        again = self.run(folder, saved=True)
        plain_ps, saved_ps = (
            checkpoint_spec.ends[-1] for checkpoint_spec in (run, again)
        )
        return SavedStep(
            checkpoint, saved_ps - plain_ps, checkpoint_spec.every, run.step_ps
        )

    def proved(self, folder: Folder) -> StepTiming:
        """Run repeatedly, with unverified blocks in full, until all replicated ones are verified.

        Unless all must be verified, only while that is affordable.
        """
        always = self.request.folding == "proved"
        proof = _Proof(always)
        run = self.run(folder, proof)
        for rounds_left in reversed(range(MOST_ROUNDS)):
            enough = proof.enough(run)
            run = replace(run, states=proof.states or [])
            if enough:
                break
            with self.knowing(run):
                folder.restart(
                    folder.written | {block.number for block in proof.rest}
                )
                proof = _Proof(always)
                run = self.run(folder if rounds_left else None, proof)
        return run


def _evaluate(
    run: StepTiming, memory: list[Memory], notes: list[str], wall_s: float
) -> TrainingResult:
    plan, writer, schedule, result = run.plan, run.writer, run.schedule, run.result
    start, end = result.tasks.start_ps, result.tasks.end_ps
    emitter, blocks, steady = writer.emitter, run.blocks, run.steady
    if steady is not None:
        notes = [*notes, steady.note]
    return TrainingResult(
        plan=plan,
        step_ps=run.steps_ps,
        ranks=run.rows,
        memory=memory,
        traffic=emitter.traffic,
        wires=busiest_wires(run),
        fold=run.fold,
        result=result,
        executed_flops=emitter.flops // len(run.ends),
        wall_s=wall_s,
        tasks=len(schedule.tasks),
        notes=notes,
        sharing=sharing(schedule, start, end, [block.found for block in blocks]),
        judged=ProvableVerdict(run.verdict),
        worker_ps=[*map(steady.of_rank_ps, steady.steps)]
        if steady and is_free(plan)
        else [],
    )
