"""Changes that may shorten a training step, in the words of ``clusim what-if``, and their proof.

Repairs of faults and stragglers; kernels, host threads and links twice as fast; settings of the workload: overlap and
buckets of gradients, recomputation, microbatches, pipeline schedules, CUDA graphs. A change that needs more memory
than the GPUs have, or that the workload does not permit, is omitted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import TYPE_CHECKING, Any, NamedTuple

from clusim.base.errors import ClusimError
from clusim.base.limits import pause_collector
from clusim.base.units import format_size
from clusim.results.cause_kinds import CauseKind
from clusim.results.causes import Key
from clusim.results.diagnosis import LEAST_SHARE, ProvableVerdict, Verdict
from clusim.simulation.proof import ProofRule, RemedyTrial, proven
from clusim.topology.changes import with_faster_links
from clusim.training.breakdown import Breakdown
from clusim.training.request import TrainRequest
from clusim.workload.parallel.fold import by_kind
from clusim.workload.parallel.plan import ParallelPlan, make_plan
from clusim.workload.spec import Workload

if TYPE_CHECKING:
    from clusim.training.result import StepResult
    from clusim.training.step_timing import StepTiming
    from clusim.training.switches import Sharing

CHEAP_GRANTS = 1_000_000
CHEAP_TASKS = 4_000
"""Maximum bursts, and tasks, of all re-simulations of a step by default: half a second."""

REPAIR_PART = 0.1
"""Part of the largest saving from which a repair is named before other changes.

Every step gains most by faster kernels. A repair costs least.
"""

SPEEDS = {"compute": "hardware", "host": "host"}
"""Hardware of ranks that can be faster, and the section of the workload with its `speed`."""

GRAPHS = "cuda-graph"
"""Framework whose host launches a graph of kernels."""


@dataclass(frozen=True)
class StepRemedy:
    """Change of a training step; see `clusim.analysis.remedies.Remedy`.

    Attributes
    ----------
    request : TrainRequest
        The changed request.
    """

    words: str
    request: TrainRequest
    keys: tuple[Key, ...]
    estimate_ps: int
    most_ps: int


@dataclass(frozen=True)
class JudgedStep:
    """A training step with its verdict by time.

    Attributes
    ----------
    links : sequence of str
        Link classes that carry traffic.
    """

    request: TrainRequest
    plan: ParallelPlan
    verdict: Verdict
    rows: Sequence[Breakdown]
    executed_flops: int
    sharing: Sharing
    links: Iterable[str]

    @property
    def kernels_ps(self) -> int:
        """Time of the kernels of the busiest rank on an undisturbed GPU [ps]."""
        return max((row.compute_ps for row in self.rows), default=0) - self.lost_ps

    @property
    def lost_ps(self) -> int:
        """Mean time that the kernels of a rank lose to communication [ps]."""
        mean_ps = _mean_ps(row.compute_ps for row in self.rows)
        return int(mean_ps * self.sharing.lost_ps / max(1, self.sharing.kernel_ps))

    def longest(self, kind: CauseKind) -> tuple[Key, int]:
        """Return the longest cause of a kind and its time [ps]; without detail if there is none."""
        causes = [cause for cause in self.verdict.causes if cause.kind is kind]
        if not causes:
            return (kind, ""), 0
        longest = max(causes, key=lambda cause: cause.time_ps)
        return longest.key, longest.time_ps


def faster(workload: Workload, what: str, factor: float) -> Workload:
    """Return a workload with faster kernels (``compute``) or host threads (``host``)."""
    section = SPEEDS[what]
    spec = getattr(workload, section)
    changed = spec.model_copy(update={"speed": spec.speed * factor})
    return workload.model_copy(update={section: changed})


def step_remedies(step: JudgedStep) -> list[StepRemedy]:
    """Return the changes that may shorten a step: repairs, then others in descending order of their estimates."""
    remedies = [*_hardware(step), *_settings(step)]
    return [
        *_repairs(step),
        *sorted(remedies, key=lambda one: (-one.estimate_ps, one.words)),
    ]


def _repairs(step: JudgedStep) -> Iterator[StepRemedy]:
    request, time_ps = step.request, step.verdict.time_ps
    causes = {cause.what: cause for cause in step.verdict.causes}
    for what in request.setup.repairable:
        kind = CauseKind.STRAGGLER if what.startswith("rank ") else CauseKind.FAULT
        cause_ps = causes[what].time_ps if what in causes else 0
        sound = replace(request, setup=request.setup.repaired(what))
        most_ps = (
            time_ps
            if kind is CauseKind.STRAGGLER
            else max(0, time_ps - step.kernels_ps)
        )
        yield StepRemedy(
            f"{what} repaired", sound, ((kind, what),), cause_ps, most_ps
        )
    if request.workload.stragglers.ranks:
        key, cause_ps = step.longest(CauseKind.STRAGGLER)
        yield from _with_keys(
            step, _Setting({"stragglers.ranks": {}}, key, cause_ps)
        )


def _hardware(step: JudgedStep) -> Iterator[StepRemedy]:
    request, half_ps = step.request, step.verdict.time_ps // 2
    rest_ps = min(half_ps, max(0, step.verdict.time_ps - step.kernels_ps))
    for what, kind in (("compute", CauseKind.COMPUTE), ("host", CauseKind.HOST)):
        key, cause_ps = step.longest(kind)
        if not cause_ps:
            continue
        changed = replace(request, workload=faster(request.workload, what, 2.0))
        most_ps = half_ps if kind is CauseKind.COMPUTE else rest_ps
        yield StepRemedy(f"{what} x2", changed, (key,), cause_ps // 2, most_ps)
    key, exposed_ps = step.longest(CauseKind.EXPOSED)
    if not exposed_ps:
        return
    fabric = request.setup.fabric
    for name in sorted(set(step.links)):
        moved = with_faster_links(fabric, name, Fraction(2))
        changed = replace(
            request, setup=replace(request.setup, topology=moved, nodes=None)
        )
        yield StepRemedy(f"{name} x2", changed, (key,), exposed_ps // 2, rest_ps)


class _Setting(NamedTuple):
    """Keys of the workload with other values, and the least time of a step with them [ps]."""

    changes: dict[str, Any]
    key: Key
    estimate_ps: int
    least_ps: int = 0


def _settings(step: JudgedStep) -> Iterator[StepRemedy]:
    for setting in (
        *_of_communication(step),
        *_of_pipeline(step),
        *_of_kernels(step),
    ):
        yield from _with_keys(step, setting)


def _of_communication(step: JudgedStep) -> Iterator[_Setting]:
    data, tensor = step.request.workload.data, step.request.workload.tensor
    (key, _), least_ps = step.longest(CauseKind.EXPOSED), step.kernels_ps
    of_data_ps = _mean_ps(row.exposed_data_ps for row in step.rows)
    of_tensor_ps = _mean_ps(row.exposed_tensor_ps for row in step.rows)
    if of_data_ps and not data.overlap:
        yield _Setting({"data.overlap": True}, key, of_data_ps, least_ps)
    if of_data_ps and data.kind in ("ddp", "distributed-optimizer"):
        for size in (4 * data.bucket, data.bucket // 4):
            text = format_size(size).replace(" ", "")
            yield _Setting({"data.bucket": text}, key, of_data_ps // 4, least_ps)
    if of_tensor_ps and not tensor.overlap:
        yield _Setting({"tensor.overlap": True}, key, of_tensor_ps // 2, least_ps)


def _of_pipeline(step: JudgedStep) -> Iterator[_Setting]:
    pipeline, micro = (
        step.request.workload.pipeline,
        step.request.workload.batch.micro,
    )
    key, bubble_ps = step.longest(CauseKind.BUBBLE)
    if not bubble_ps:
        return
    least_ps = _mean_ps(row.compute_ps for row in step.rows) - step.lost_ps
    schedules: list[dict[str, Any]] = [{"pipeline.schedule": "zero-bubble"}]
    if pipeline.schedule in ("naive", "gpipe"):
        schedules.append({"pipeline.schedule": "1f1b"})
    if pipeline.schedule == "1f1b":
        schedules.append({"pipeline.schedule": "interleaved", "pipeline.chunks": 2})
    if pipeline.partition == "even":
        schedules.append({"pipeline.partition": "balanced"})
    for changes in schedules:
        if changes.get("pipeline.schedule") != pipeline.schedule:
            yield _Setting(changes, key, bubble_ps // 2, least_ps)
    if micro % 2 == 0:
        yield _Setting({"batch.micro": micro // 2}, key, bubble_ps // 2)


def _of_kernels(step: JudgedStep) -> Iterator[_Setting]:
    work = step.request.workload
    (compute, compute_ps), (host, host_ps) = map(
        step.longest, (CauseKind.COMPUTE, CauseKind.HOST)
    )
    if work.recompute != "none":
        again = max(0.0, 1 - step.plan.model_flops / max(1, step.executed_flops))
        yield _Setting({"recompute": "none"}, compute, int(compute_ps * again))
    if host_ps:
        if work.host.framework != GRAPHS:
            yield _Setting({"host.framework": GRAPHS}, host, host_ps)
        yield _Setting({"batch.micro": 2 * work.batch.micro}, host, host_ps // 2)


def _mean_ps(times: Iterable[int]) -> int:
    values = [*times]
    return sum(values) // max(1, len(values))


def _with_keys(step: JudgedStep, setting: _Setting) -> Iterator[StepRemedy]:
    """Yield a change of the workload, if it is valid and no more memory is missing."""
    data = step.request.workload.model_dump(by_alias=True, exclude_unset=True)
    words = []
    for dotted, value in setting.changes.items():
        *above, last = dotted.split(".")
        section = data
        for name in above:
            section = section.setdefault(name, {})
        section[last] = value
        words.append(f"{dotted}={str(value).lower()}")
    request = step.request
    with suppress(ClusimError, ValueError):
        work = Workload.model_validate(data)
        plan = make_plan(work, request.setup.known)
        if plan.mesh != step.plan.mesh or _missing(plan) > _missing(step.plan):
            return
        most_ps = max(0, step.verdict.time_ps - max(0, setting.least_ps))
        limits = min(setting.estimate_ps, most_ps), most_ps
        yield StepRemedy(
            " ".join(words), replace(request, workload=work), (setting.key,), *limits
        )


def _missing(plan: ParallelPlan) -> int:
    """Return the missing memory of the fullest stage [bytes]."""
    return max(plan.memory(stage).missing for stage in range(plan.mesh.pipeline))


def affordable_trials(run: StepTiming) -> int:
    """Return the number of re-simulations of steps that are cheap; equal blocks of work are simulated once."""
    blocks = [block for block, _ in by_kind(run.blocks)]
    grants = run.result.grants + sum(block.done.hops for block in blocks)
    tasks = len(run.schedule.tasks) + sum(block.done.instances for block in blocks)
    return min(CHEAP_GRANTS // max(1, grants), CHEAP_TASKS // max(1, tasks))


def provable_step(
    request: TrainRequest,
    result: StepResult,
    links: Iterable[str],
    run: Callable[[TrainRequest], StepResult],
    number: int | None,
) -> ProvableVerdict:
    """Return the verdict on the step of a request, and its proof; see `JudgedStep` and `proved_step`."""
    times = (
        result.plan,
        result.verdict,
        result.ranks,
        result.executed_flops,
        result.sharing,
    )
    step = JudgedStep(request, *times, links)

    def prove() -> Verdict:
        # Schedules are hundreds of thousands of small objects without reference cycles.
        with pause_collector():
            return proved_step(step, run, number)

    return ProvableVerdict(step.verdict, prove)


def proved_step(
    step: JudgedStep, run: Callable[[TrainRequest], StepResult], most: int | None
) -> Verdict:
    """Return the verdict on a step with simulated savings, the cause with the largest one first.

    Parameters
    ----------
    run : callable
        Simulates or estimates the steps of a request as those of the step.
    most : int or None
        Largest number of simulated changes; None: all.
    """

    if most == 0:
        return replace(
            step.verdict, proof="not certain: no change was simulated (--confirm)"
        )
    time_ps, savings = step.verdict.time_ps, dict[str, int]()

    def trial(remedy: StepRemedy) -> RemedyTrial:
        after = run(replace(remedy.request, strict_memory=False))
        savings[remedy.words] = time_ps - after.step_ps[-1]
        return RemedyTrial(savings[remedy.words], lambda: after.verdict)

    rule = ProofRule(most, every=most is None, repair_part=REPAIR_PART)
    verdict = proven(step.verdict, step_remedies(step), trial, rule)
    if not savings or not verdict.causes:
        return verdict
    first, *others = verdict.causes
    settings = [
        f"{words} {-saving_ps / time_ps:+.1%}"
        for words, saving_ps in sorted(savings.items(), key=lambda item: -item[1])
        if "=" in words
        and words != first.remedy
        and saving_ps >= LEAST_SHARE * time_ps
    ]
    first = replace(first, settings=", ".join(settings))
    return replace(verdict, causes=(first, *others), order="")
