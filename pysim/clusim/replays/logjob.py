"""Replay of NCCL logs: each distinct call is simulated once, in isolation.

NCCL's logs contain the order of calls but not the start of kernels: calls of one communicator and of one stream run in
sequence, and communicators run concurrently (`clusim.replays.logplay`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np

from clusim.base.errors import InputError, TimeLimitReached
from clusim.base.terms.operations import OF_NCCL, ROOTED, operation_named
from clusim.formats.logs import Log, read_logs
from clusim.formats.logs.anomalies import CONTRADICTION, find_anomalies
from clusim.formats.logs.calls import (
    CallTable,
    LoggedCall,
    call_table,
    logged_operation,
)
from clusim.formats.logs.jobranks import JobRanks, add_runs, job_ranks
from clusim.formats.recordings.nccl_log import recording_of
from clusim.jobs.joint import overlap_notes
from clusim.nccl.constants import LATEST, Version
from clusim.replays.callproof import JobCalls
from clusim.replays.full_job import KnownMachine, replay_recording
from clusim.replays.logged_job import (
    REPLANNED,
    KeptPlans,
    LoggedJob,
    environment_of,
    requested_version,
    valid_plans,
)
from clusim.replays.logmachine import LogMachine, machine_of_log
from clusim.replays.logplay import timed_calls
from clusim.replays.machine_match import infer_machine
from clusim.replays.placing import ReplayRequest, place
from clusim.replays.reading import MOST_CALLS, require_calls
from clusim.replays.replayreport import placed_doubts
from clusim.replays.report import CallResult, CommResult, Other, Replay
from clusim.replays.timing import Timed, flags_of, harness_of
from clusim.results.diagnosis import ProvableVerdict
from clusim.results.resultjson import Unfinished
from clusim.schedule.builder import ProgramBuilder, Site
from clusim.simulation.api import result_of
from clusim.simulation.job import RunOptions
from clusim.simulation.request import ScheduleRequest
from clusim.simulation.setup import Setup
from clusim.topology import Fabric

Counted = Callable[[int, int], None]
"""Called with the number of distinct calls completed and their total."""

CALLS_PER_RUN = 1000
"""Overlapping calls that are played in the time of a simulation."""

_DAMAGE = (
    "file",
    "rows",
    "spliced",
    "datatype",
    "calls missing",
    "calls differ",
    "calls cut",
)
"""Kinds of anomalies due to parts of a log that were not understood."""

_WITHOUT = "--fault: rings, trees and algorithms are re-planned, without the parts down from the start"


def replay_log(
    request: ReplayRequest,
    options: RunOptions = RunOptions(),
    counted: Counted | None = None,
) -> Replay:
    """Replay logs of one job; see `clusim.replays.api.replay`."""
    log = read_logs(request.files)
    add_runs(log)
    table = call_table(log, limit=request.calls or MOST_CALLS)
    ranks = job_ranks(log)
    if not table.call and request.asked:
        _add_asked(log, table, ranks, request)
    require_calls(log, table, request)
    if request.gap == "logged" and max(table.time_ns) < 0:
        raise InputError(
            f"{request.files[0]}: calls without time stamps; use --gap none, or a time such as --gap 100us"
        )
    version = requested_version(log, request)
    system = _system_of(log, ranks, request, version)

    def job_on(where: str | Path | Fabric, kept: KeptPlans) -> LoggedJob:
        setup = request.setup(where, str(version), environment_of(log, request)[0])
        placed = place(setup, ranks.hosts, ranks.devices)
        if kept.rings and request.faults and placed.setup.known is not placed.fabric:
            kept = KeptPlans(rings=False, choices=False, note=_WITHOUT)
        result = LoggedJob(log, ranks, placed, request, kept)
        judges = where is not request.other  # of the other system, times only
        result.timer.options = replace(
            result.timer.options, watch=options.watch, histories=judges
        )
        return result

    job = job_on(system.topology, valid_plans(log, request))
    placed = job.placed
    doubts = [
        *system.doubts,
        *placed_doubts(placed, len(ranks.machines), len(ranks.hosts)),
        *_contradictions(log),
    ]
    if request.whole:
        full = _replay_in_one_run(job, table, options, system.lines)
        full.doubts = doubts
        return full
    other = None if request.other is None else job_on(request.other, REPLANNED)
    result = Replay(
        "nccl-log", ", ".join(request.files), placed.fabric.name, len(ranks.hosts), len(ranks.machines),
        str(job.setup.release), system.lines,
        total_calls=len(table.call),
        other=other.placed.fabric.name if other is not None else None,
        faults=list(job.setup.broken.lines),
        skipped=dict(table.skipped),
        family=placed.family,
    )  # fmt: skip
    result.doubts = doubts
    _notes(result, job, other, table)
    _time_all(result, (job, other), table, counted, options.confirm)
    if options.trace_out is not None and result.unfinished is None:
        _add_trace(result, job, table, options)
    return result


def _system_of(
    log: Log, ranks: JobRanks, request: ReplayRequest, version: Version
) -> LogMachine:
    """Return the requested system, otherwise the log's."""
    if request.topology is None:
        return machine_of_log(log, ranks, infer_machine(log, ranks), version)
    lines = [f"{Setup(request.topology).name}: as given"]
    if lines[0].lower().endswith(".xml: as given"):
        lines.append(
            "  values missing in the XML are assumed; clusim topo import lists them"
        )
    return LogMachine(request.topology, lines)


def _replay_in_one_run(
    job: LoggedJob, table: CallTable, options: RunOptions, machine: list[str]
) -> Replay:
    """Replay all calls in one run."""
    recording = recording_of(job.log, table, job.ranks)
    for number in {call.comm for call in table.distinct}:
        job.nccl.adopt(job.own(number), job.built(number))
    version = str(job.setup.release)
    request = replace(job.request, version=version, replan=not job.kept.choices)
    match = KnownMachine(job.placed, job.nccl, machine)
    result = replay_recording(recording, request, options, match)
    result.notes += [*_partly(job.log), *([job.kept.note] if job.kept.note else [])]
    return result


def _add_asked(
    log: Log, table: CallTable, ranks: JobRanks, request: ReplayRequest
) -> None:
    """Add the requested calls to every communicator, once per set of equal ranks."""
    done: set[tuple[int, ...]] = set()
    for communicator in log.communicators:
        members = ranks.of.get(communicator.number, ())
        if len(members) < 2 or members in done:
            continue
        done.add(members)
        for name, size in request.asked:
            operation = operation_named(name, OF_NCCL).name
            root = 0 if operation in ROOTED else -1
            table.add(
                LoggedCall(communicator.number, operation, size, root=root),
                -1,
                -1,
                0,
            )
    table.source = "calls of --call"


def _contradictions(log: Log) -> list[str]:
    """Return contradictions in a log about its ranks."""
    return [
        f"{odd.text}: use the logs of one job, with one file per process (NCCL_DEBUG_FILE=nccl.%h.%p)"
        for odd in find_anomalies(log)
        if odd.kind == CONTRADICTION
    ]


def _partly(log: Log) -> list[str]:
    """Return the parts of a log that were not understood."""
    return [odd.text for odd in find_anomalies(log) if odd.kind in _DAMAGE]


def _notes(
    replay: Replay, job: LoggedJob, other: LoggedJob | None, table: CallTable
) -> None:
    log, request = job.log, job.request
    max_calls = request.calls or MOST_CALLS
    replay.notes += _partly(log)
    if job.kept.note:
        replay.notes.append(job.kept.note)
    if table.source != "calls":
        replay.notes.append(f"no lines of calls: {table.source}")
    if len(table.call) >= max_calls:
        replay.notes.append(
            f"only the first {max_calls} calls; --calls N changes that"
        )
    if len(table.call) > len(table.distinct):
        replay.notes.append(
            f"{len(table.call)} calls, {len(table.distinct)} distinct: each is simulated once in isolation"
        )
    replay.notes += job.ranks.assumed + table.assumed + job.placed.notes
    used = {table.distinct[n].comm for n in set(table.call)}
    for number in sorted(used)[:8]:
        replay.notes += [
            f"communicator {number}: {text}"
            for text in log.communicators[number].assumed
        ]
    for flags in dict.fromkeys(
        flags_of(harness_of(log, number))
        for number in used
        if log.run_of(log.communicators[number])
    ):
        replay.notes.append(
            f"times are as printed by nccl-tests with {flags}, read from its header"
        )
    if not request.version and not log.facts.versions:
        replay.notes.append(f"no NCCL version in the log: {LATEST} assumed")
    replay.notes += [note for members in job.known() for note in members.comm.notes]
    calls = (
        (job.ranks.of[c.comm], c.operation, c.bytes, c.dtype) for c in table.distinct
    )
    replay.notes += job.placed.idle_notes(dict(request.env), calls)
    dropped = environment_of(log, request)[1]
    if dropped:
        replay.notes.append(
            f"ignored variables of the job's environment: {', '.join(dropped)}"
        )
    if other is not None:
        replay.notes += other.placed.notes
    if any(fault.time_ps for fault in job.setup.broken.faults):
        replay.notes.append(
            "fault times count from the start of each call; with --whole, from the start of the run"
        )
    replay.notes = list(dict.fromkeys(replay.notes))


def _time_all(
    replay: Replay,
    jobs: tuple[LoggedJob, LoggedJob | None],
    table: CallTable,
    counted: Counted | None,
    confirm: bool | None,
) -> None:
    job, other = jobs
    counts = table.counts.tolist()
    measured = _median_times(job.log)
    timed_calls: list[Timed] = []
    other_calls: list[Timed] = []
    busy: Counter[str] = Counter()
    comms: dict[int, CommResult] = {}
    for number, call in enumerate(table.distinct):
        try:
            timed = job.time(table, number)
            other_time = other.time(table, number) if other is not None else None
        except TimeLimitReached:
            if not timed_calls:
                raise
            break
        timed_calls.append(timed)
        if other_time is not None:
            other_calls.append(other_time)
        for name, busy_ps in timed.busy:
            busy[name] += busy_ps * counts[number]
        logged = job.log.communicators[call.comm]
        replay.calls.append(
            CallResult(
                call.comm, logged.n_ranks, call.operation, call.bytes, call.dtype, counts[number],
                timed.algorithm, timed.protocol, timed.channels, timed.kernel_ps, timed.time_ps,
                timed.from_log, measured.get((logged.run, call.operation, call.bytes)),
                None if call.model_us < 0 else call.model_us,
                timed.note,
                Other.of(other_time, timed.time_ps) if other_time else None,
                timed.granularity, timed.verdict,
            )
        )  # fmt: skip
        if call.comm not in comms:
            comms[call.comm] = _comm_result(job, call.comm)
        comm = comms[call.comm]
        comm.calls += counts[number]
        comm.time_ps += timed.time_ps * counts[number]
        comm.other_ps += (
            0 if other_time is None else other_time.time_ps * counts[number]
        )
        if counted is not None:
            counted(number + 1, len(table.distinct))
    replay.communicators = [comms[number] for number in sorted(comms)]
    pairs = (
        [(job, timed_calls)]
        if other is None
        else [(job, timed_calls), (other, other_calls)]
    )
    replay.notes += _add_total(replay, pairs, table, confirm)
    replay.wires = [
        (name, ps / max(1, replay.total_ps)) for name, ps in busy.most_common(5)
    ]


def _comm_result(job: LoggedJob, number: int) -> CommResult:
    """Return the result of a communicator, without calls."""
    built = job.built(number)
    return CommResult(
        number,
        job.log.communicators[number].n_ranks,
        built.comm.group.num_nodes,
        built.comm.num_channels,
        built.used,
    )


def _add_total(
    replay: Replay,
    pairs: list[tuple[LoggedJob, list[Timed]]],
    table: CallTable,
    confirm: bool | None,
) -> list[str]:
    """Add the time of the job, simulated and recorded, and its verdict; return notes on the times."""
    (job, job_calls), *comparison = pairs
    is_part = len(job_calls) < len(table.distinct)
    try:
        totals = [
            on.play(table, times, on.timer, is_separate=is_part)
            for on, times in pairs
        ]
    except TimeLimitReached:
        is_part = True
        totals = [
            on.play(table, times, on.timer, is_separate=True) for on, times in pairs
        ]
    total_ps, overlaps = totals[0]
    replay.total_ps = total_ps
    replay.other_total_ps = totals[1][0] if comparison else None
    runs = len(job_calls) + len(job.timer.joint.times.kept.answers)
    if overlaps:
        runs += len(table.call) // CALLS_PER_RUN
    calls = JobCalls(
        replay.calls, job_calls, total_ps, runs, partial(job.again, table)
    )
    if is_part:
        replay.judged = ProvableVerdict(calls.verdict(job_calls, total_ps))
        replay.total_calls = timed_calls(table, len(job_calls))
        part = replay.total_calls / len(table.call)
        replay.unfinished = Unfinished(job.timer.options.watch.words, part, total_ps)
    else:
        prove = partial(calls.prove, confirm=confirm)
        replay.judged = ProvableVerdict(calls.verdict(job_calls, total_ps), prove)
    stamps = [t for t in table.time_ns if t >= 0]
    if stamps:
        replay.recorded_ps = (max(stamps) - min(stamps)) * 1000
    coarse = sum("bursts" in call.granularity for call in replay.calls)
    share = f"{coarse} of {len(replay.calls)} distinct calls"
    lines = (
        [f"{share} were simulated in bursts; --json lists the granularity"]
        if coarse
        else []
    )
    return lines + ([] if is_part else overlap_notes(overlaps))


def _median_times(log: Log) -> dict[tuple[int, str, int], float]:
    """Return the median time measured by nccl-tests, by run, operation and size [us]."""
    rows: dict[tuple[int, str, int], list[float]] = {}
    for run in log.runs:
        operation = logged_operation(run.collective())
        for size, out, inside in zip(
            run.sizes,
            run.column("time").tolist(),
            run.column("time_in_place").tolist(),
            strict=True,
        ):
            time = out if out == out else inside
            if operation and time > 0:
                rows.setdefault((run.number, operation, size), []).append(time)
    return {key: float(np.median(values)) for key, values in rows.items()}


def _add_trace(
    replay: Replay, job: LoggedJob, table: CallTable, options: RunOptions
) -> None:
    """Write a trace in which every distinct call runs once, and note it."""
    request, setup = job.request, job.setup
    builder = ProgramBuilder(
        setup.fabric.num_ranks, f"distinct calls of {request.files[0]}"
    )
    for call in table.distinct:
        members = job.built(call.comm)
        site = Site(builder, f"comm{call.comm}")
        job.timer.collective(site, members, job.planned(call))
    job_request = ScheduleRequest(
        setup, builder.build(), granularity=request.granularity
    )
    try:
        is_complete = result_of(job_request, options).unfinished is None
    except TimeLimitReached:
        is_complete = False
    if not is_complete:
        replay.unfinished = Unfinished(options.watch.words, 1.0, replay.total_ps)
    replay.notes.append(
        f"trace {options.trace_out}: every distinct call once, one after the other"
    )
