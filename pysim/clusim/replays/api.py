"""Finds out what a recording is and replays it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace as changed
from inspect import signature

from clusim.base.errors import InputError
from clusim.formats.recordings.kinds import KINDS, LOGS, PLANS, kind_of, reader
from clusim.formats.recordings.model import Recording
from clusim.replays.full_job import replay_recording
from clusim.replays.logjob import Counted, replay_log
from clusim.replays.placing import machines_of
from clusim.replays.report import Replay
from clusim.replays.request import ReplayRequest
from clusim.replays.spmd import replay_alike
from clusim.replays.warnings import gate
from clusim.simulation.job import RunOptions
from clusim.simulation.setup import Setup


def replay(
    request: ReplayRequest,
    options: RunOptions = RunOptions(),  # noqa: B008 - frozen
    counted: Counted | None = None,
) -> Replay:
    """Replay a recording.

    Parameters
    ----------
    options : RunOptions
        Where a trace goes.
    counted : callable or None
        Called with how many distinct calls of how many are done.
    """
    first = request.files[0]
    kind = request.kind.replace("_", "-") or kind_of(first)
    if kind in LOGS:
        found = replay_log(changed(request, gap=request.gap or "none"), options, counted)
        return gate(found, request)
    if kind in PLANS:
        raise InputError(
            f"{first}: {PLANS[kind]}, is no recording; run it with `clusim run TOPOLOGY --algorithm {first}`"
        )
    if kind not in KINDS:
        known = ", ".join(sorted({*LOGS, *KINDS}))
        raise InputError(f"{first}: kind {kind!r} cannot be replayed; it is one of {known}")
    read = reader(kind)
    files = list(request.files) if len(request.files) > 1 else first
    recording = read(files, **_machine(read, request))
    request = changed(request, gap=request.gap or "logged")
    if recording.alike:
        if options.trace_out is not None:
            raise InputError(
                f"{first}: one rank stands for all {recording.num_ranks}, of whom no trace can be written; --calls N"
                " replays the first calls of all ranks"
            )
        return gate(replay_alike(recording, request, options.watch), request)
    found = replay_recording(recording, request, options)
    return gate(found, request)


def _machine(read: Callable[..., Recording], request: ReplayRequest) -> dict[str, int | None]:
    """Return what readers of files that do not say it ask for.

    That is how many ranks the topology has, and each of its machines; and how many calls are wanted.
    """
    asked = signature(read).parameters
    wanted = {"calls": request.calls} if "calls" in asked else {}
    if request.topology is None or "num_ranks" not in asked:
        return wanted
    machines = machines_of(Setup(request.topology, request.nodes).fabric)
    if not machines:
        raise InputError(
            f"{Setup(request.topology).name}: no GPU; a replay needs one for every rank"
        )
    sizes = [len(machine) for machine in machines]
    known = {"num_ranks": sum(sizes), "machine_ranks": min(sizes), **wanted}
    return {key: value for key, value in known.items() if key in asked}
