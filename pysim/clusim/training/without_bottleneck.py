"""Training steps without their bottleneck, and steps with a checkpoint.

Each is the original step with one change; the difference is the saving, or the cost of the checkpoint.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from clusim.base.json_schema import JsonObject, Round9
from clusim.lowering import Fault
from clusim.results.causes import CauseKind, VerdictCause
from clusim.results.diagnosis import Verdict
from clusim.schedule.ir import Schedule
from clusim.topology.arrays import arrays_of
from clusim.training.request import TrainRequest
from clusim.training.step_diagnosis import link_of
from clusim.training.step_timing import StepTiming
from clusim.workload.parallel.checkpoints import Checkpoint
from clusim.workload.spec import HostSpec


@dataclass(frozen=True, slots=True)
class SavedStep(JsonObject):
    """Additional time of a step with a checkpoint.

    Attributes
    ----------
    bytes : int
        Size of the complete checkpoint [bytes].
    stall_s : float
        Additional time of the step [s].
    plain_ps : int
        The step without it [ps].
    step_s, mean_step_s : float, float or None
        The step with it, and the mean over all steps, if the workload sets the interval [s].
    """

    KEYS = (
        *("bytes=checkpoint.bytes", "most_bytes_per_gpu=checkpoint.most_bytes"),
        *("copy_s=checkpoint.copy_s", "write_s=checkpoint.write_s", "stall_s", "step_s"),
        *("every_steps", "mean_step_s"),
    )

    checkpoint: Checkpoint
    stall_ps: int
    every_steps: int | None
    plain_ps: int

    @property
    def stall_s(self) -> Round9:
        """Additional time of that step [s]."""
        return self.stall_ps / 1e12

    @property
    def step_s(self) -> Round9:
        """The step with the checkpoint [s]."""
        return self.plain_ps / 1e12 + self.stall_s

    @property
    def mean_step_s(self) -> Round9 | None:
        """Mean over all steps [s]; None without an interval."""
        if not self.every_steps:
            return None
        return self.plain_ps / 1e12 + self.stall_s / self.every_steps


CHEAP_GRANTS = 1_000_000
CHEAP_TASKS = 4_000
"""Maximum bursts, and tasks, of steps that are re-simulated without their bottleneck: half a second."""


@dataclass(frozen=True)
class Fix:
    """A run without a bottleneck: its description, and the saving.

    The saving is computed from the times of both runs' last steps [ps].
    """

    request: TrainRequest
    how: str
    saving_ps: Callable[[StepTiming, int], int]


def is_cheap(run: StepTiming) -> bool:
    """Return True if re-simulation of the steps, written out in full, is cheap."""
    grants = run.result.grants + sum(block.found.done.hops for block in run.blocks)
    tasks = len(run.schedule.tasks) + sum(block.found.done.instances for block in run.blocks)
    return grants <= CHEAP_GRANTS and tasks <= CHEAP_TASKS


def with_faster_kernels(schedule: Schedule) -> Schedule:
    """Return a schedule with kernels of half the duration."""
    tasks = [
        replace(task, compute_ps=task.compute_ps // 2, mem_bytes=task.mem_bytes // 2)
        if task.kind == "kernel"
        else task
        for task in schedule.tasks
    ]
    return replace(schedule, tasks=type(schedule.tasks)(tasks))


def without_first(request: TrainRequest, verdict: Verdict) -> Fix | None:
    """Return how to simulate steps without their bottleneck; None if it cannot be removed."""
    first, request = verdict.headline, replace(request, strict_memory=False)
    if first is None:
        return None
    if first.kind in (CauseKind.STRAGGLER, CauseKind.FAULT):
        return Fix(_sound(request, first), "", _less)
    work = request.workload
    if first.kind is CauseKind.HOST:
        idle = work.model_copy(update={"host": HostSpec()})
        return Fix(replace(request, workload=idle), "without a host", _less)
    if first.kind is CauseKind.BUBBLE and verdict.phases:
        batch = work.batch.model_copy(update={"all": 2 * work.batch.all})
        longer = replace(request, workload=work.model_copy(update={"batch": batch}))
        return Fix(longer, "with twice the microbatches", _without_bubble)
    return None


def _less(run: StepTiming, after_ps: int) -> int:
    return run.step_ps - after_ps


def _without_bubble(run: StepTiming, twice_ps: int) -> int:
    """Return the bubble of a step: without its turns and the part after the last pass [ps].

    A step is the bubble, its turns and the rest; a step with twice the microbatches has the turns twice.
    """
    return 2 * run.step_ps - twice_ps - (run.window[1] - run.passed_ps)


def _sound(request: TrainRequest, cause: VerdictCause) -> TrainRequest:
    """Return the request without slow ranks, or without the faults of the link of a cause."""
    setup, work = request.setup, request.workload
    names = arrays_of(setup.fabric).wire_names

    def of(fault: Fault) -> bool:
        if fault.rank is not None or cause.kind is CauseKind.STRAGGLER:
            return fault.rank is not None and cause.kind is CauseKind.STRAGGLER
        wire = fault.wire if isinstance(fault.wire, int) else names.index(str(fault.wire))
        return link_of(names, wire) == cause.what

    if cause.kind is CauseKind.STRAGGLER and work.stragglers.ranks:
        spec = work.stragglers.model_copy(update={"ranks": {}})
        work = work.model_copy(update={"stragglers": spec})
    kept = tuple(fault for fault in setup.broken.faults if not of(fault))
    machine = replace(setup.fabric, faults=())
    sound = replace(setup, topology=machine, nodes=None, faults=kept)
    return replace(request, setup=sound, workload=work)
