"""Runs of a baseline and its changes: collectives, nccl-tests, recorded jobs, training.

A change is another run, a faster or slower component, or a `ChangedSystem`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, replace

from clusim.analysis.whatif import THINGS
from clusim.base.errors import ClusimError, InputError, one_line
from clusim.base.terms.times import KERNEL, LAUNCHED
from clusim.base.units import format_size
from clusim.nccl.launch import host_of
from clusim.nccltests.api import full_request
from clusim.nccltests.jobs import PerfKernel
from clusim.nccltests.options import PerfOptions
from clusim.nccltests.sweep import (
    PerfPlace,
    Program,
    harness_of,
    row_request,
    sized_heads,
)
from clusim.replays.api import replay
from clusim.replays.placing import ReplayRequest
from clusim.replays.timing import HOST
from clusim.report.comparison import wire_loads
from clusim.results.result import Result
from clusim.serving.api import ServeRequest
from clusim.simulation.job import RunOptions, run_job
from clusim.simulation.nccl_choice import OVERLAPPING
from clusim.simulation.plan import Plan, plan
from clusim.simulation.preparation import job_of
from clusim.simulation.request import Request, ScheduleRequest
from clusim.simulation.samples import ITERATIONS, Sample
from clusim.simulation.setup import Setup
from clusim.simulation.speed import Speed
from clusim.studies.whatif.changed_system import ChangedSystem
from clusim.studies.whatif.table import BaselineRun, ChangeOutcome, ChangeRow, WhatIf
from clusim.training.estimate import stepped
from clusim.training.remedies import SPEEDS, faster
from clusim.training.request import TrainRequest
from clusim.training.result import TrainingResult
from clusim.workload.parallel.plan import make_plan


@dataclass(frozen=True)
class PerfRun:
    """Program of nccl-tests on some nodes."""

    where: PerfPlace
    test: Program
    options: PerfOptions


AnyAsked = Request | PerfRun | ReplayRequest | TrainRequest | ServeRequest
"""Requests that can be a baseline."""

AnyChange = Speed | ChangedSystem
"""Changes of the system itself, for any baseline."""

CHANGES = (Speed, ChangedSystem)

Counted = Callable[[int, int], None]


def what_if(
    base: AnyAsked,
    changes: Iterable[tuple[str, AnyAsked | AnyChange]],
    *,
    title: str = "",
    counted: Counted | None = None,
) -> WhatIf:
    """Run a baseline and changes to it.

    Parameters
    ----------
    changes : iterable of (str, request, Speed or ChangedSystem)
        Name of each change, and the changed request, of the baseline's kind; or the component that is faster or off.
    counted : callable or None
        Called with the number of changes completed and their total; for nccl-tests with sizes instead.

    Returns
    -------
    WhatIf
        *held* has the same plan: the baseline's schedule on the changed system. *planned* is re-planned.

    Raises
    ------
    InputError
        The baseline cannot run, or a change is of another kind. A change that cannot run has the reason in its row.
    """
    texts = list(changes)
    for name, change in texts:
        if not isinstance(change, CHANGES) and type(change) is not type(base):
            raise InputError(
                f"what-if {name}: must be of the same kind as the baseline"
            )
        _refuse_unknown(base, name, change)
    if isinstance(base, PerfRun):
        return _tests(base, texts, title, counted)
    result = WhatIf(title, _TIMES[type(base)])
    planned = plan(base) if isinstance(base, Request) else base
    collected_notes: list[str] = []
    first = _run_outcome(planned, None, collected_notes)
    result.baseline.append(BaselineRun("", first, tuple(collected_notes)))
    for number, (name, change) in enumerate(texts):
        same_plan, replanned, notes = _change_outcomes(base, planned, change)
        result.rows.append(ChangeRow(name, first, same_plan, replanned, notes=notes))
        if counted is not None:
            counted(number + 1, len(texts))
    return result


_TIMES = {
    Request: KERNEL,
    ReplayRequest: "of the complete job",
    TrainRequest: "of the last step",
    ServeRequest: "mean of a request, from its arrival to the last token",
}


def _setup(request: AnyAsked) -> Setup | None:
    """Return the setup of a request; None for a replay that detects it from its recording."""
    if isinstance(request, PerfRun):
        return request.where.setup
    if isinstance(request, ReplayRequest):
        if request.topology is None:
            return None
        return Setup(request.topology, request.nodes, faults=tuple(request.faults))
    return request.setup


def _refuse_unknown(base: AnyAsked, name: str, change: AnyAsked | AnyChange) -> None:
    """Raise `InputError` for an unknown topology, fault or link, before anything runs."""
    try:
        if isinstance(change, CHANGES):
            _refuse_speed(base, change)
            return
        setup = _setup(change)
        if setup is not None:
            setup.broken.faults  # noqa: B018 - a text that is no fault there raises an error
    except ClusimError as error:
        raise InputError(f"what-if {name}: {one_line(str(error))}") from None


def _refuse_speed(base: AnyAsked, speed: AnyChange) -> None:
    """Raise `InputError` for a component that cannot be faster here."""
    if isinstance(base, TrainRequest | ServeRequest) and speed.what in SPEEDS:
        return
    if isinstance(base, ReplayRequest) and speed.what in (*THINGS, HOST):
        return
    if not speed.of_links:
        if isinstance(base, TrainRequest | ServeRequest):
            raise InputError(
                "of training and serving, links, compute and host can be faster, and keys of the file changed"
            )
        return
    setup = _setup(base)
    if setup is None:
        raise InputError("set the system of the replay with --topology")
    moved = speed.machine(setup.fabric)
    if replace(setup, topology=moved, nodes=None).fabric is not moved:
        raise InputError(
            "a variable of the baseline contradicts it; remove the variable"
        )


def _change_outcomes(
    base: AnyAsked, planned: AnyAsked | Plan, change: AnyAsked | AnyChange
) -> tuple[ChangeOutcome | None, ChangeOutcome, tuple[str, ...]]:
    """Return the outcomes of a change with the baseline's plan and re-planned, and notes on the plans."""
    if isinstance(change, CHANGES):
        speed = change
        if (
            isinstance(base, TrainRequest)
            and isinstance(speed, Speed)
            and speed.what in SPEEDS
        ):
            work = faster(base.workload, speed.what, float(speed.factor))
            return _change_outcomes(base, planned, replace(base, workload=work))
        if (
            isinstance(base, ServeRequest)
            and isinstance(speed, Speed)
            and speed.what in SPEEDS
        ):
            quicker = base.faster(speed.what, float(speed.factor))
            return _change_outcomes(base, planned, quicker)
        if isinstance(base, ReplayRequest) and isinstance(speed, Speed):
            return _faster_replay(base, speed)
        if isinstance(speed, Speed) and not speed.of_links:
            same_plan = _run_or_error(lambda: _run_outcome(planned, speed))
            return same_plan, same_plan, (SAME_PLAN,)
        change = _on(base, speed)
    held_outcome = _same_plan_outcome(base, planned, change)
    notes: list[str] = []
    again = (
        replace(change, replan=True) if isinstance(change, ReplayRequest) else change
    )
    replanned = _run_or_error(lambda: _run_outcome(again, None, notes))
    return held_outcome, replanned, tuple(notes)


SAME_PLAN = "NCCL's plan does not depend on it: re-planned is the same plan"
"""Note on a change of a component that no plan depends on."""


def _faster_replay(
    base: ReplayRequest, speed: Speed
) -> tuple[ChangeOutcome, ChangeOutcome, tuple[str, ...]]:
    """Return the outcomes of a replay with a faster component, and notes on the plans."""
    same = _run_or_error(
        lambda: _run_outcome(replace(base, faster=speed.words), None)
    )
    if speed.what in (*THINGS, HOST):
        return same, same, (SAME_PLAN,)
    moved = _on(base, speed)
    assert isinstance(moved, ReplayRequest)
    return (
        same,
        _run_or_error(lambda: _run_outcome(replace(moved, replan=True), None)),
        (),
    )


def _on(base: AnyAsked, speed: AnyChange) -> AnyAsked:
    """Return the request on a system with faster links."""
    if isinstance(base, ReplayRequest):
        assert base.topology is not None, "refused before"
        setup = Setup(base.topology, base.nodes)
        return replace(base, topology=speed.machine(setup.fabric), nodes=None)
    if isinstance(base, PerfRun):
        raise InputError("what-if: of a row of nccl-tests")
    moved = replace(
        base.setup, topology=speed.machine(base.setup.fabric), nodes=None
    )
    if isinstance(base, ServeRequest):
        return base.on_links(moved)
    return replace(base, setup=moved)


def _run_or_error(run: Callable[[], ChangeOutcome]) -> ChangeOutcome:
    """Return the outcome of a run, or its error."""
    try:
        return run()
    except ClusimError as error:
        return ChangeOutcome(error=one_line(str(error)))


def _run_outcome(
    request: AnyAsked | Plan, speed: Speed | None, notes: list[str] | None = None
) -> ChangeOutcome:
    """Run a request as its command would; its notes are added to `notes`."""
    lines = notes if notes is not None else []
    if isinstance(request, TrainRequest):
        step = stepped(request)
        lines += step.notes
        # Wires of replicated blocks do not have a load.
        is_complete = isinstance(step, TrainingResult) and not step.fold.folded
        loads = (
            wire_loads(step.result)
            if isinstance(step, TrainingResult) and is_complete
            else {}
        )
        layout = _mesh(request, step.plan.mesh)
        return ChangeOutcome(step.step_ps[-1], layout, step.verdict, loads=loads)
    if isinstance(request, ServeRequest):
        return _serving_outcome(request, lines)
    if isinstance(request, ReplayRequest):
        job = replay(request)
        return ChangeOutcome(job.total_ps, f"{job.total_calls} calls", job.verdict)
    assert isinstance(request, Request | Plan)
    result = _result(request, speed)
    lines += result.provenance.notes
    return _outcome(result)


def _serving_outcome(request: ServeRequest, notes: list[str]) -> ChangeOutcome:
    result = request.run()
    notes += result.notes
    words = (
        f"TTFT {result.ttft.mean * 1e3:.1f} ms, TPOT {result.tpot.mean * 1e3:.2f} ms,"
        f" {result.tokens_per_s_per_gpu:.1f} tokens/s/GPU"
    )
    time_ps = round(result.latency.mean * 1e12)
    return ChangeOutcome(time_ps, words, limit="; ".join(result.verdict.lines()))


def _mesh(request: TrainRequest, mesh: object) -> str:
    names = ("tensor", "context", "expert", "data", "pipeline")
    sizes = {name: int(getattr(mesh, name)) for name in names}
    return (
        ", ".join(f"{name} {size}" for name, size in sizes.items() if size > 1)
        or "one GPU"
    )


def _result(
    request: Request | ScheduleRequest | Plan, speed: Speed | None
) -> Result:
    job = job_of(request)
    return run_job(job if speed is None else speed.job(job), RunOptions())


def _outcome(result: Result) -> ChangeOutcome:
    call = result.call
    choice = (
        f"{call.algorithm}, {call.protocol}, {call.channels} channels"
        if call
        else ""
    )
    busbw = (
        result.busbw_GBps
        if call and call.size_bytes and result.has_bandwidth
        else None
    )
    loads = wire_loads(result)
    return ChangeOutcome(
        result.time_ps, choice, result.verdict, busbw_GBps=busbw, loads=loads
    )


def _same_plan_outcome(
    base: AnyAsked, planned: AnyAsked | Plan, change: AnyAsked
) -> ChangeOutcome | None:
    """Return the result of the same plan on the changed system; None if the plan was changed."""
    if isinstance(base, Request) and isinstance(change, Request):
        machine = replace(
            base.setup,
            topology=change.setup.topology,
            nodes=change.setup.nodes,
            faults=change.setup.faults,
        )
        if (
            replace(change, setup=machine) != change
            or replace(base, setup=machine) != change
        ):
            return None
        assert isinstance(planned, Plan)
        schedule = replace(base.of(planned.schedule), setup=machine)
        return _run_or_error(lambda: _outcome(_result(schedule, None)))
    if isinstance(base, ReplayRequest) and isinstance(change, ReplayRequest):
        if change.replan or base.replan:
            return None
        return _run_or_error(lambda: _run_outcome(change, None))
    if isinstance(base, TrainRequest) and isinstance(change, TrainRequest):
        moved = replace(base, setup=change.setup)
        if base.estimate or moved != change or not _same_mesh(base, change):
            return None
        return _run_or_error(
            lambda: _run_outcome(replace(change, held=base.setup), None)
        )
    return None


def _same_mesh(base: TrainRequest, change: TrainRequest) -> bool:
    """Return True if both have the same mesh; False if one cannot be planned.

    The row of a change reports such an error.
    """
    with suppress(ClusimError):
        plans = [
            make_plan(request.workload, request.setup.known)
            for request in (base, change)
        ]
        return plans[0].mesh == plans[1].mesh
    return False


def _tests(
    base: PerfRun,
    requests: list[tuple[str, AnyAsked | AnyChange]],
    title: str,
    counted: Counted | None,
) -> WhatIf:
    """Run every size of a program of nccl-tests with every change."""
    result = WhatIf(title, LAUNCHED)
    heads = sized_heads(base.where, base.test, base.options)
    for number, head in enumerate(heads):
        size = format_size(head[0])
        row = row_request(base.where, base.test, base.options, head)
        first = _test_outcome(base, _iterations(row))
        result.baseline.append(
            BaselineRun(size, first, base.where.setup.said(None, ()))
        )
        for name, change in requests:
            result.rows.append(
                replace(_test_row(base, head, first, (name, change)), of=size)
            )
        if counted is not None:
            counted(number + 1, len(heads))
    return result


def _test_row(
    base: PerfRun,
    head: tuple[int, int, str, str],
    first: ChangeOutcome,
    named: tuple[str, AnyAsked | AnyChange],
) -> ChangeRow:
    name, change = named
    plans = _iterations(row_request(base.where, base.test, base.options, head))
    if isinstance(change, CHANGES):
        speed = change
        if isinstance(speed, Speed) and not speed.of_links:
            same_plan = _run_or_error(lambda: _test_outcome(base, plans, speed))
            return ChangeRow(
                name, first, same_plan, same_plan, notes=("no plan looks at it",)
            )
        setup = base.where.setup
        setup = replace(setup, topology=speed.machine(setup.fabric), nodes=None)
        change = replace(base, where=replace(base.where, setup=setup))
    assert isinstance(change, PerfRun)
    changed, original = change.where.setup, base.where.setup
    alike = (
        replace(
            original,
            topology=changed.topology,
            nodes=changed.nodes,
            faults=changed.faults,
        )
        == changed
    )
    held_ = None
    if alike and change.options == base.options and change.test == base.test:
        moved_plans = tuple(replace(plan, setup=changed) for plan in plans)
        held_ = _run_or_error(lambda: _test_outcome(base, moved_plans))
    moved = change
    request = row_request(moved.where, moved.test, moved.options, head)
    planned_ = _run_or_error(lambda: _test_outcome(moved, _iterations(request)))
    return ChangeRow(name, first, held_, planned_, notes=changed.said(None, ()))


def _iterations(request: Request) -> tuple[ScheduleRequest, ...]:
    """Return the run of one kernel, and of several if their iterations overlap."""
    one = full_request(request)
    return (
        (one, full_request(request, ITERATIONS))
        if request.operation in OVERLAPPING
        else (one,)
    )


def _test_outcome(
    run: PerfRun, runs: tuple[ScheduleRequest, ...], speed: Speed | None = None
) -> ChangeOutcome:
    """Return an outcome with the time that nccl-tests reports."""
    result, *more = (_result(one, speed) for one in runs)
    sample = Sample(result.time_ps)
    if more:
        sample = Sample.overlapping(result.tasks.end_ps.tolist(), more[0].time_ps)
    simulated = _outcome(result)
    channels = result.call.channels if result.call is not None else 0
    kernel = PerfKernel(sample.time_ps, "", "", channels, lags_ps=sample.lags_ps)
    host = host_of(run.where.setup.comm)
    harness = harness_of(run.options, run.where.kind)
    time_ps = harness.time_ps(host, run.test.of.name, kernel)
    busbw = simulated.busbw_GBps
    if busbw is not None:
        busbw *= simulated.time_ps / max(1, time_ps)
    return replace(simulated, time_ps=time_ps, busbw_GBps=busbw)
