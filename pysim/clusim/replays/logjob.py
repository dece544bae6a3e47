"""Replay of NCCL logs: each distinct call is simulated once, in isolation.

NCCL's logs contain the order of calls but not the start of kernels: calls of one communicator and of one stream run in
sequence, and communicators run concurrently (`clusim.replays.logplay`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
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
from clusim.jobs.joint import SeparateCalls, overlap_notes
from clusim.nccl import LATEST, Version, parse_env, parse_version
from clusim.nccl.choice import Members
from clusim.replays.callproof import JobCalls, JobRemedy
from clusim.replays.channels import with_logged
from clusim.replays.full_job import KnownMachine, replay_recording
from clusim.replays.logmachine import machine_of_log
from clusim.replays.logplay import play_log, timed_calls
from clusim.replays.machine_match import infer_machine
from clusim.replays.placing import Placed, ReplayRequest, place
from clusim.replays.replayreport import placed_doubts
from clusim.replays.report import CallResult, CommResult, Other, Replay
from clusim.replays.timing import Timed, Timer, flags_of, harness_of
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

MOST_CALLS = 1_000_000
"""Default limit on replayed calls."""

CALLS_PER_RUN = 1000
"""Overlapping calls that are played in the time of a simulation."""


_KEEP_RINGS = (
    "NCCL_ALGO", "NCCL_PROTO", "NCCL_BUFFSIZE", "NCCL_LL_BUFFSIZE", "NCCL_LL128_BUFFSIZE", "NCCL_NTHREADS",
    "NCCL_LL128_NTHREADS", "NCCL_P2P_NET_CHUNKSIZE", "NCCL_P2P_PCI_CHUNKSIZE", "NCCL_P2P_NVL_CHUNKSIZE",
)  # fmt: skip
"""Variables that affect NCCL's choices or buffers, but not its search for rings and trees."""


@dataclass(frozen=True, slots=True)
class _Kept:
    """Parts of the log's plans that are used: rings and trees, algorithm and protocol."""

    rings: bool
    choices: bool
    note: str = ""


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

_ANEW = _Kept(rings=False, choices=False)


class _Job:
    """Communicators of a log on one system, built on first use."""

    def __init__(
        self,
        log: Log,
        ranks: JobRanks,
        placed: Placed,
        request: ReplayRequest,
        kept: _Kept,
    ) -> None:
        self.log, self.ranks, self.placed, self.kept = log, ranks, placed, kept
        self.request, self.setup = request, placed.setup
        self.nccl = self.setup.communicators()
        self.timer = Timer(
            self.setup, self.nccl, request.granularity, request.faster
        )
        self._built: dict[int, Members] = {}

    def own(self, number: int) -> tuple[int, ...]:
        """Return the system's ranks of a communicator, in the order of the log."""
        return self.placed.system_ranks(self.ranks.of[number])

    def built(self, number: int) -> Members:
        """Return a communicator; two with the same ranks may have different rings."""
        if number not in self._built:
            result = self.nccl.of(self.own(number))
            if self.kept.rings:
                result = with_logged(
                    result, self.log, self.log.communicators[number]
                )
            self._built[number] = result
        return self._built[number]

    def known(self) -> list[Members]:
        """Return the communicators built so far."""
        return list(self._built.values())

    def time(
        self, table: CallTable, number: int, timer: Timer | None = None
    ) -> Timed:
        """Return the time of a distinct call."""
        call = self.planned(table.distinct[number])
        harness = harness_of(self.log, call.comm)
        return (timer or self.timer).time(self.built(call.comm), call, harness)

    def again(
        self, table: CallTable, remedy: JobRemedy, histories: bool
    ) -> tuple[list[Timed], Callable[[], int]]:
        """Return the times of all distinct calls with a change, and of the job; see `JobCalls`."""
        timer = self.timer.with_change(
            remedy.words, remedy.change, histories=histories
        )
        times = [
            self.time(table, number, timer) for number in range(len(table.distinct))
        ]
        return times, lambda: self.play(table, times, timer)[0]

    def play(
        self,
        table: CallTable,
        times: Sequence[Timed],
        timer: Timer,
        *,
        is_separate: bool = False,
    ) -> tuple[int, Counter[str]]:
        """Play the job by its first distinct calls, separately or with mutual slow-downs; see `play_log`."""
        calls = zip(map(self.planned, table.distinct), times, strict=False)
        bundles = [
            timer.bundle(self.built(c.comm), c, one.time_ps) for c, one in calls
        ]
        return play_log(
            table,
            self.request.gap,
            bundles,
            SeparateCalls({}) if is_separate else timer.joint,
        )

    def planned(self, call: LoggedCall) -> LoggedCall:
        """Return a call without the log's algorithm and protocol if these do not apply."""
        if self.kept.choices:
            return call
        return replace(call, algorithm="", protocol="", channels=0, model_us=-1.0)


def _version(log: Log, request: ReplayRequest) -> Version:
    """Return the requested NCCL version, otherwise the log's; `LATEST` without a valid one."""
    if request.version:
        return parse_version(request.version)
    for text, _ in log.facts.versions.most_common():
        try:
            return parse_version(text.split("+")[0])
        except InputError:
            continue
    return LATEST


def _valid_plans(log: Log, request: ReplayRequest) -> _Kept:
    """Return the log's plans that hold in the requested environment and NCCL version."""
    if request.replan:
        return _ANEW
    releases = {text.split("+")[0] for text in log.facts.versions}
    if (
        request.version
        and releases
        and not any(_same(request.version, text) for text in releases)
    ):
        note = f"--nccl-version {request.version}: rings, trees and algorithms are re-planned for that version"
        return _Kept(rings=False, choices=False, note=note)
    changed = [
        name
        for name, value in request.env
        if log.facts.environment.get(name, {}).keys() != {value}
    ]
    if not changed:
        return _Kept(rings=True, choices=True)
    rings = all(name in _KEEP_RINGS for name in changed)
    plans = "algorithms" if rings else "rings, trees and algorithms"
    note = f"--env {' '.join(changed)}: {plans} are re-planned, as the log has another environment"
    return _Kept(rings=rings, choices=False, note=note)


def _same(one: str, other: str) -> bool:
    try:
        return parse_version(one) == parse_version(other)
    except InputError:
        return False


def _environment(
    log: Log, request: ReplayRequest
) -> tuple[tuple[tuple[str, str], ...], list[str]]:
    """Return the job's environment updated with the request's, and names of unused variables."""
    variables: dict[str, str] = {}
    dropped = []
    for name, values in sorted(log.facts.environment.items()):
        if not name.startswith("NCCL_"):
            continue
        value = sorted(values)[0]
        if (name, value) == (
            "NCCL_TREE_THRESHOLD",
            "0",
        ):  # NCCL 2.4: 0 disables trees
            variables.setdefault("NCCL_ALGO", "Ring")
            continue
        try:
            parse_env({**variables, name: value})
        except InputError:
            dropped.append(name)
            continue
        variables[name] = value
    return tuple((variables | dict(request.env)).items()), dropped


def replay_log(
    request: ReplayRequest,
    options: RunOptions = RunOptions(),
    counted: Counted | None = None,
) -> Replay:
    """Replay logs of one job; see `clusim.replays.api.replay`."""
    log = read_logs(request.files)
    add_runs(log)
    max_calls = request.calls or MOST_CALLS
    table = call_table(log, limit=max_calls)
    ranks = job_ranks(log)
    if not table.call and request.asked:
        _add_asked(log, table, ranks, request)
    _require_calls(log, table, request)
    if request.gap == "logged" and max(table.time_ns) < 0:
        raise InputError(
            f"{request.files[0]}: calls without time stamps; use --gap none, or a time such as --gap 100us"
        )
    topology, doubts = request.topology, list[str]()
    if topology is None:
        match = machine_of_log(
            log, ranks, infer_machine(log, ranks), _version(log, request)
        )
        topology, machine, doubts = match.topology, match.lines, match.doubts
    else:
        machine = [f"{Setup(topology).name}: as given"]
        if machine[0].lower().endswith(".xml: as given"):
            machine.append(
                "  values missing in the XML are assumed; clusim topo import lists them"
            )

    def job_on(where: str | Path | Fabric, kept: _Kept) -> _Job:
        setup = request.setup(
            where, str(_version(log, request)), _environment(log, request)[0]
        )
        placed = place(setup, ranks.hosts, ranks.devices)
        if kept.rings and request.faults and placed.setup.known is not placed.fabric:
            kept = _Kept(rings=False, choices=False, note=_WITHOUT)
        result = _Job(log, ranks, placed, request, kept)
        judges = where is not request.other  # of the other system, times only
        result.timer.options = replace(
            result.timer.options, watch=options.watch, histories=judges
        )
        return result

    job = job_on(topology, _valid_plans(log, request))
    if request.whole:
        full = _replay_in_one_run(job, table, options, machine)
        full.doubts = [
            *doubts,
            *placed_doubts(job.placed, len(ranks.machines), len(ranks.hosts)),
        ]
        full.doubts += _contradictions(log)
        return full
    other = None if request.other is None else job_on(request.other, _ANEW)
    placed = job.placed
    result = Replay(
        "nccl-log", ", ".join(request.files), placed.fabric.name, len(ranks.hosts), len(ranks.machines),
        str(job.setup.release), machine,
        total_calls=len(table.call),
        other=other.placed.fabric.name if other is not None else None,
        faults=list(job.setup.broken.lines),
        skipped=dict(table.skipped),
        family=placed.family,
    )  # fmt: skip
    result.doubts = [
        *doubts,
        *placed_doubts(placed, len(ranks.machines), len(ranks.hosts)),
    ]
    result.doubts += _contradictions(log)
    _notes(result, job, other, table)
    _time_all(result, (job, other), table, counted, options.confirm)
    if options.trace_out is not None and result.unfinished is None:
        if not _trace(job, table, options):
            result.unfinished = Unfinished(options.watch.words, 1.0, result.total_ps)
        result.notes.append(
            f"trace {options.trace_out}: every distinct call once, one after the other"
        )
    return result


def _replay_in_one_run(
    job: _Job, table: CallTable, options: RunOptions, machine: list[str]
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


def _require_calls(log: Log, table: CallTable, request: ReplayRequest) -> None:
    if table.call:
        return
    if request.asked:
        raise InputError(
            f"{log.facts.files[0]}: no communicator with a known number of ranks, at least 2, for --call to run on;"
            " clusim run TOPOLOGY -c allreduce needs no log"
        )
    why = "; ".join(f"{n} {reason}" for reason, n in table.skipped.items())
    raise InputError(
        f"{log.facts.files[0]}: no call that could be replayed"
        + (f" ({why})" if why else "")
        + "; record with NCCL_DEBUG_SUBSYS=INIT,GRAPH,TUNING,COLL, or name calls to run on its communicators,"
        " for example --call allreduce:64MiB"
    )


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


def _notes(replay: Replay, job: _Job, other: _Job | None, table: CallTable) -> None:
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
    dropped = _environment(log, request)[1]
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
    jobs: tuple[_Job, _Job | None],
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
        built = job.built(call.comm)
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
        comm = comms.setdefault(
            call.comm,
            CommResult(
                call.comm,
                logged.n_ranks,
                built.comm.group.num_nodes,
                built.comm.num_channels,
                built.used,
            ),
        )
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


def _add_total(
    replay: Replay,
    pairs: list[tuple[_Job, list[Timed]]],
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


def _trace(job: _Job, table: CallTable, options: RunOptions) -> bool:
    """Write a trace in which every distinct call runs once; return True if it is complete."""
    request, setup = job.request, job.setup
    builder = ProgramBuilder(
        setup.fabric.num_ranks, f"distinct calls of {request.files[0]}"
    )
    for call in table.distinct:
        members = job.built(call.comm)
        job.timer.collective(
            Site(builder, f"comm{call.comm}"), members, job.planned(call)
        )
    job_request = ScheduleRequest(
        setup, builder.build(), granularity=request.granularity
    )
    try:
        return result_of(job_request, options).unfinished is None
    except TimeLimitReached:
        return False
