"""Replay of a recording of any format, and of jobs whose ranks all do the same work (`representative`)."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

from clusim.base.errors import InputError
from clusim.base.terms.operations import ROOTED
from clusim.formats.recordings.kinds import (
    LOGS,
    kind_of,
)
from clusim.formats.recordings.model import Recording
from clusim.jobs.peers import split_of
from clusim.nccltests.jobs import PerfKernel
from clusim.replays.full_job import replay_recording
from clusim.replays.logjob import Counted, replay_log
from clusim.replays.placing import ReplayRequest
from clusim.replays.reading import read_recording
from clusim.replays.replayreport import gate
from clusim.replays.report import CallResult, CommResult, Other, Replay
from clusim.replays.representative import RepresentedJob, representative
from clusim.replays.representedproof import provable_job
from clusim.results.resultjson import Unfinished
from clusim.simulation.job import RunOptions
from clusim.simulation.session import Watch
from clusim.topology import Fabric


def _represented_job(
    recording: Recording,
    request: ReplayRequest,
    topology: str | Path | Fabric,
    watch: Watch,
) -> RepresentedJob:
    """Return a job of identical ranks on a system."""
    setup = request.setup(topology, request.version, request.env)
    return RepresentedJob(
        recording, representative(recording, request, setup), watch
    )


def replay_alike(
    recording: Recording, request: ReplayRequest, options: RunOptions = RunOptions()
) -> Replay:
    """Replay a job of identical ranks; the watch of `options` is checked before each distinct collective."""
    watch = options.watch
    if request.topology is None:
        raise InputError(
            f"{recording.name}: {recording.kind} does not contain the system; set --topology"
        )
    if request.faults:
        raise InputError(
            f"{recording.name}: one rank represents all {recording.num_ranks}, and faults affect ranks differently;"
            " --calls N replays the first calls of all ranks"
        )
    job = _represented_job(recording, request, request.topology, watch)
    first, played = job.machine, job.play()
    machines = -(-recording.num_ranks // first.size)
    result = Replay(
        recording.kind,
        recording.name,
        first.setup.name + (f":nodes={machines}" if machines > 1 else ""),
        recording.num_ranks,
        machines,
        str(first.setup.release),
        [f"{first.setup.name}: as given"],
        total_ps=played.time_ps,
        bounds_ps=[played.least_ps, played.most_ps],
        skipped=dict(recording.skipped),
        doubts=list(first.setup.doubts),
    )
    result.notes = [*recording.assumed, *job.notes(played.overlaps)]
    comparison: dict[tuple[int, str, int], PerfKernel] = {}
    if job.share is not None:
        result.unfinished = Unfinished(watch.words, job.share, played.least_ps)
    elif request.other is not None:
        moved = _represented_job(recording, request, request.other, watch)
        result.other, result.other_total_ps = (
            moved.machine.setup.name,
            moved.play().time_ps,
        )
        comparison = moved.kernels
        if moved.share is not None:
            why = f"{watch.words}, reached on {result.other}"
            comparison, result.other, result.other_total_ps = {}, None, None
            result.unfinished = Unfinished(why, 1.0, played.time_ps)
    _fill(result, recording, job.kernels, comparison)
    for comm in result.communicators:
        comm.machines = split_of(recording.groups[comm.number].ranks, first.size)[0]
    result.compute_ps = sum(
        first.compute_ps(e) for e in recording.events if e.kind == "compute"
    )
    result.judged = provable_job(job, played.time_ps, confirm=options.confirm)
    return result


def _fill(
    result: Replay,
    recording: Recording,
    times: dict[tuple[int, str, int], PerfKernel],
    others: dict[tuple[int, str, int], PerfKernel],
) -> None:
    """Add the distinct calls and the communicators to the result."""
    counts = Counter(
        (e.group, e.operation, e.bytes)
        for e in recording.events
        if e.kind == "collective"
    )
    comms: dict[int, CommResult] = {}
    for (group, operation, size), kernel in times.items():
        count = counts[group, operation, size]
        ranks = recording.groups[group].ranks
        other_kernel = others.get((group, operation, size))
        other = (
            None if other_kernel is None else Other.of(other_kernel, kernel.time_ps)
        )
        rooted = "as in a sequence of calls" if operation in ROOTED else ""
        result.calls.append(
            CallResult(
                group, len(ranks), operation, size, "float32", count,
                kernel.algorithm, kernel.protocol, kernel.channels, kernel.time_ps, kernel.time_ps,
                note="; ".join([*kernel.notes, *([rooted] if rooted else [])]), other=other,
            )
        )  # fmt: skip
        comm = comms.setdefault(
            group,
            CommResult(
                group,
                len(ranks),
                0,
                0,
                f"{recording.groups[group].name}, one of {recording.num_ranks // len(ranks)}",
            ),
        )
        comm.calls += count
        comm.channels = max(comm.channels, kernel.channels)
        comm.time_ps += kernel.time_ps * count
        comm.other_ps += 0 if other_kernel is None else other_kernel.time_ps * count
        result.total_calls += count * (recording.num_ranks // len(ranks))
    result.calls.sort(
        key=lambda call: (call.communicator, call.operation, call.bytes)
    )
    result.communicators = [comms[number] for number in sorted(comms)]


def replay(
    request: ReplayRequest,
    options: RunOptions = RunOptions(),
    counted: Counted | None = None,
) -> Replay:
    """Replay a recording.

    Parameters
    ----------
    options : RunOptions
        Run options, such as the trace file.
    counted : callable or None
        Called with the number of distinct calls completed and their total.
    """
    first = request.files[0]
    kind = request.kind.replace("_", "-") or kind_of(first)
    if kind in LOGS:
        result = replay_log(
            replace(request, gap=request.gap or "none"), options, counted
        )
        return gate(result, request)
    recording = read_recording(request)
    request = replace(request, gap=request.gap or "logged")
    if recording.alike:
        if options.trace_out is not None:
            raise InputError(
                f"{first}: one rank represents all {recording.num_ranks}; no trace can be written; --calls N"
                " replays the first calls of all ranks"
            )
        return gate(replay_alike(recording, request, options), request)
    result = replay_recording(recording, request, options)
    return gate(result, request)
