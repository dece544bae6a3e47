"""Replay of a recording as one schedule of computation, collectives and messages.

All ranks are simulated, with the recorded overlap.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from statistics import median

from clusim.base.errors import InputError, TimeLimitReached, one_line
from clusim.base.terms.operations import ROOTED, find_algorithm, find_protocol
from clusim.formats.recordings.model import ABSENT, Event, Recording
from clusim.jobs.emitter import NcclEmitter
from clusim.jobs.read import job_of
from clusim.jobs.write import Translation, WrittenUnit, to_schedule
from clusim.nccl.choice import PUT, Communicators
from clusim.nccl.constants import LATEST, parse_version
from clusim.nccl.env import parse_env
from clusim.nccl.env_notes import chips_of, notes_on_chips, notes_on_variables
from clusim.replays.placing import Placed, ReplayRequest, machines_of, place
from clusim.replays.report import CallResult, CommResult, Other, Replay
from clusim.results.result import Result
from clusim.results.resultjson import Unfinished
from clusim.simulation.job import RunOptions, run_job
from clusim.simulation.request import ScheduleRequest
from clusim.simulation.speed import job_with
from clusim.topology import Fabric
from clusim.topology.arrays import arrays_of

Key = tuple[int, str, int, str]


def release_of(
    recording: Recording, request: ReplayRequest
) -> tuple[str, list[str]]:
    """Return the NCCL version and a note if it is assumed."""
    if request.version:
        return request.version, []
    text = recording.nccl_version
    try:
        if text:
            return str(parse_version(text)), []
        note = f"the recording names no release of NCCL: {LATEST} assumed"
    except InputError:
        note = f"the recording's release of NCCL, {one_line(text)}, is not known: {LATEST} assumed"
    return str(LATEST), [note]


def _distinct_calls(
    recording: Recording,
) -> list[tuple[tuple[int, ...], str, int, str]]:
    """Return the ranks, operation, bytes and type of the recording's collectives, each once."""
    calls = (
        (
            tuple(recording.groups[event.group].ranks),
            event.operation,
            event.bytes,
            event.dtype,
        )
        for event in recording.events
        if event.kind == "collective"
    )
    return list(dict.fromkeys(calls))


def _notes(fabric: Fabric, request: ReplayRequest) -> list[str]:
    """Return the notes on NCCL's plans on a topology."""
    variables = notes_on_variables(parse_env(dict(request.env)))
    return [*notes_on_chips(chips_of(fabric)), *variables]


@dataclass(frozen=True)
class KnownMachine:
    """Known properties of a recording's system, in addition to the request.

    Attributes
    ----------
    placed : Placed
        Placement of its ranks.
    nccl : Communicators
        With the rings and trees of the recording.
    machine : list of str
        How the system was found.
    """

    placed: Placed
    nccl: Communicators
    machine: list[str]


def replay_recording(
    recording: Recording,
    request: ReplayRequest,
    options: RunOptions = RunOptions(),
    known: KnownMachine | None = None,
) -> Replay:
    """Replay a recording on the requested or the known system."""
    if not recording.events:
        raise InputError(f"{recording.name}: no recorded event to replay")
    if request.topology is None and known is None:
        raise InputError(
            f"{recording.name}: {recording.kind} does not contain the system; set --topology, for example"
            f" --topology dgx-h100{' --nodes ' + str(-(-recording.num_ranks // 8)) if recording.num_ranks > 8 else ''}"
        )
    version, assumed = release_of(recording, request)
    if known is None:
        assert request.topology is not None
        known = place_recording(request, request.topology, version, recording)
    placed = known.placed
    recorded = not request.replan
    translation, result = _run(recording, request, options, known, recorded=recorded)
    results = Replay(
        recording.kind,
        recording.name,
        placed.fabric.name,
        recording.num_ranks,
        len({arrays_of(placed.fabric).zone_of(rank) for rank in placed.rank}),
        str(placed.setup.release),
        known.machine,
        total_ps=result.time_ps,
        faults=list(result.provenance.faults),
        skipped=dict(recording.skipped),
        family=placed.family,
        judged=result,
        unfinished=result.unfinished,
    )
    results.notes = [
        *recording.assumed,
        *placed.notes,
        *_notes(placed.fabric, request),
        *assumed,
        *placed.idle_notes(dict(request.env), _distinct_calls(recording)),
        *(f"{count} x {note}" for note, count in translation.notes.items()),
    ]
    spans = _spans(recording, translation, result, recorded=recorded)
    comparison: dict[Key, list[_Span]] = {}
    if request.other is not None and result.unfinished is None:
        comparison = _time_on_other(results, recording, request, options, version)
    _fill(results, recording, spans, comparison, placed)
    if any(event.kind == "compute" for event in recording.events):
        results.compute_ps = _compute(recording, translation, result)
    results.notes.append(
        "one run of all calls: kernel times, without launch overhead"
    )
    if result.provenance.error_bound != 0:
        results.notes.append(f"granularity: {result.provenance.granularity_note}")
    numbers = {number for unit in translation.units for number in unit.operations}
    events = [recording.events[number] for number in sorted(numbers)]
    results.recorded_ps = _recorded_ps(events)
    results.wires = _busiest_wires(result)
    return results


def _time_on_other(
    results: Replay,
    recording: Recording,
    request: ReplayRequest,
    options: RunOptions,
    version: str,
) -> dict[Key, list[_Span]]:
    """Replay on the other system; return the spans of its calls, none if the limit of time ends it."""
    assert request.other is not None
    second = place_recording(request, request.other, version, recording)
    untraced, name = replace(options, trace_out=None), second.placed.fabric.name
    try:
        moved, outcome = _run(recording, request, untraced, second, recorded=False)
        if outcome.unfinished is not None:
            raise outcome.unfinished.limit_error(f"the replay on {name}")
    except TimeLimitReached:
        why = f"{options.watch.words}, reached on {name}"
        results.unfinished = Unfinished(why, 1.0, results.total_ps)
        return {}
    results.other, results.other_total_ps = name, outcome.time_ps
    results.notes += second.placed.notes
    return _spans(recording, moved, outcome, recorded=False)


def _busiest_wires(result: Result) -> list[tuple[str, float]]:
    """Return the busiest wires of a run, and their utilisation."""
    busy = result.wires.counters["busy_ps"].tolist()
    rows = sorted(
        zip(result.wires.names, busy, strict=True), key=lambda row: -row[1]
    )
    return [(name, ps / max(1, result.time_ps)) for name, ps in rows[:5] if ps]


def translate(
    recording: Recording,
    request: ReplayRequest,
    where: KnownMachine,
    *,
    recorded: bool,
) -> Translation:
    """Convert a recording to a schedule for the system, with its recorded algorithms if `recorded`."""
    placed = where.placed
    emitter = NcclEmitter(
        placed.setup.known, placed.rank, where.nccl, recorded=recorded
    )
    return to_schedule(
        job_of(recording), emitter, gap=request.gap, most=request.calls
    )


def _run(
    recording: Recording,
    request: ReplayRequest,
    options: RunOptions,
    where: KnownMachine,
    *,
    recorded: bool,
) -> tuple[Translation, Result]:
    """Convert a recording to a schedule for the system and run it."""
    setup = where.placed.setup
    translation = translate(recording, request, where, recorded=recorded)
    job_request = ScheduleRequest(
        setup, translation.schedule, granularity=request.granularity
    )
    return translation, run_job(
        job_with(job_request, options, request.faster), options
    )


def place_recording(
    request: ReplayRequest,
    topology: str | Path | Fabric,
    version: str,
    recording: Recording,
) -> KnownMachine:
    """Place ranks on their recorded nodes; if unknown, fill nodes in order."""
    setup = request.setup(topology, version, request.env)
    count = recording.num_ranks
    devices: list[int] = []
    hosts = recording.hosts
    if len(hosts) == count:
        used: Counter[str] = Counter()
        for host in hosts:
            devices.append(used[host])
            used[host] += 1
    else:
        size = max(
            1,
            min((len(machine) for machine in machines_of(setup.fabric)), default=1),
        )
        hosts = [f"machine {rank // size}" for rank in range(count)]
        devices = [rank % size for rank in range(count)]
    placed = place(setup, hosts, devices)
    return KnownMachine(
        placed, placed.setup.communicators(), [f"{setup.name}: as given"]
    )


@dataclass(slots=True)
class _Span:
    """Times of a call: last start to end [ps], recorded [us]; algorithm, protocol, channels."""

    time_ps: int
    recorded_us: float | None
    recorded_by: int
    shown: tuple[str, str, int]
    from_log: bool


def _spans(
    recording: Recording, translation: Translation, result: Result, *, recorded: bool
) -> dict[Key, list[_Span]]:
    """Return the calls of the run by kind."""
    start, end = result.tasks.start_ps, result.tasks.end_ps
    schedule = translation.schedule
    results: dict[Key, list[_Span]] = {}
    for unit in translation.units:
        event = recording.events[unit.operations[0]]
        tasks = [t for number in unit.operations for t in unit.tasks.get(number, ())]
        if event.kind not in ("collective", "send", "recv") or not tasks:
            continue
        if min(int(end[t]) for t in tasks) < 0:
            continue  # the run ended before the call
        key = (event.group, event.operation, event.bytes, event.dtype)
        if event.kind != "collective":
            kind = "puts" if event.algorithm == "put" else "messages"
            key = (event.group, kind, _most_moved(recording, unit), "uint8")
        calls = [
            schedule.tasks[t].call for t in tasks if schedule.tasks[t].call != ABSENT
        ]
        if not calls:
            continue  # calls without data do not have a program
        call = schedule.calls[calls[0]]
        names = (
            _name_of(call.algorithm, find_algorithm),
            _name_of(call.protocol, find_protocol),
        )
        put = event.algorithm == "put"
        duration = max(int(end[t]) for t in tasks) - max(
            int(start[t]) for t in tasks
        )
        span = _Span(
            max(1, duration),
            _recorded_span(recording, unit),
            _recorders(recording, unit),
            PUT if put else (*names, call.channels),
            recorded and bool(event.algorithm),
        )
        results.setdefault(key, []).append(span)
    return results


def _name_of(text: str, named: Callable[[str], StrEnum | None]) -> str:
    """Return NCCL's name of a program's algorithm or protocol."""
    result = named(text)
    return "P2P" if text == "p2p" else text if result is None else result.value


def _most_moved(recording: Recording, unit: WrittenUnit) -> int:
    """Return the largest number of bytes that a rank sends or receives in a launch."""
    moved: Counter[tuple[int, str]] = Counter()
    for number in unit.operations:
        event = recording.events[number]
        moved[event.rank, event.kind] += event.bytes
    return max(moved.values())


def _recorders(recording: Recording, unit: WrittenUnit) -> int:
    """Return the number of ranks that recorded the time of a call."""
    events = [recording.events[number] for number in unit.operations]
    return len({e.rank for e in events if e.duration_ps > 0} - recording.unrecorded)


def _recorded_span(recording: Recording, unit: WrittenUnit) -> float | None:
    """Return the shortest recorded duration [us]; the other ranks also waited.

    For rooted collectives it is the time from the last start to the last end, since a root that only sends ends early.
    """
    events = [
        recording.events[n]
        for n in unit.operations
        if recording.events[n].duration_ps > 0
    ]
    if not events:
        return None
    durations = [event.duration_ps for event in events]
    if events[0].operation not in ROOTED or any(
        event.start_ps == ABSENT for event in events
    ):
        return min(durations) / 1e6
    last = max(e.start_ps + e.duration_ps for e in events) - max(
        e.start_ps for e in events
    )
    return min(max(last, min(durations)), max(durations)) / 1e6


def _fill(
    replay: Replay,
    recording: Recording,
    spans: dict[Key, list[_Span]],
    others: dict[Key, list[_Span]],
    placed: Placed,
) -> None:
    comms: dict[int, CommResult] = {}
    arrays = arrays_of(placed.fabric)
    for key, rows in spans.items():
        group, operation, size, dtype = key
        ranks = (
            recording.groups[group].ranks
            if group >= 0
            else tuple(range(recording.num_ranks))
        )
        time_ps = round(median(row.time_ps for row in rows))
        measured = [row.recorded_us for row in rows if row.recorded_us is not None]
        other_spans = others.get(key, [])
        other = None
        if other_spans:
            other_ps = round(median(row.time_ps for row in other_spans))
            other = Other(other_ps, *other_spans[0].shown, other_ps / time_ps)
        replay.calls.append(
            CallResult(
                group, len(ranks), operation, size, dtype, len(rows), *rows[0].shown, time_ps, time_ps,
                rows[0].from_log, median(measured) if measured else None, other=other,
                recorded_by=min((row.recorded_by for row in rows if row.recorded_us is not None), default=-1),
            )
        )  # fmt: skip
        zones = {arrays.zone_of(placed.rank[rank]) for rank in ranks}
        comm = comms.setdefault(
            group,
            CommResult(group, len(ranks), len(zones), 0, _name(recording, group)),
        )
        comm.calls += len(rows)
        comm.channels = max(comm.channels, *(row.shown[2] for row in rows))
        comm.time_ps += sum(row.time_ps for row in rows)
        comm.other_ps += sum(row.time_ps for row in other_spans)
        replay.total_calls += len(rows)
    replay.calls.sort(
        key=lambda call: (call.communicator, call.operation, call.bytes)
    )
    replay.communicators = [comms[number] for number in sorted(comms)]


def _name(recording: Recording, group: int) -> str:
    return recording.groups[group].name if group >= 0 else "all ranks"


def _compute(recording: Recording, translation: Translation, result: Result) -> int:
    """Return the mean compute time of the ranks [ps]: recorded, of operators, or as simulated."""
    tasks, start, end = (
        translation.schedule.tasks,
        result.tasks.start_ps,
        result.tasks.end_ps,
    )
    kernels = (
        at for at, event in enumerate(recording.events) if event.kind == "compute"
    )
    total = sum(
        tasks[task].compute_ps or max(0, int(end[task]) - int(start[task]))
        for at in kernels
        for task in translation.tasks[at]
    )
    recorded = {event.rank for event in recording.events}
    return total // max(1, len(recorded))


def _recorded_ps(events: Sequence[Event]) -> int | None:
    """Return the recorded time from the first start to the last end [ps]; None if unknown."""
    timed = [e for e in events if e.start_ps != ABSENT]
    if not any(event.duration_ps > 0 for event in timed):
        return None
    return max(e.start_ps + max(0, e.duration_ps) for e in timed) - min(
        e.start_ps for e in timed
    )
