"""Reading of recordings and logs for replays."""

from __future__ import annotations

from collections.abc import Callable
from inspect import signature

from clusim.base.errors import InputError
from clusim.formats.logs import Log, read_logs
from clusim.formats.logs.calls import CallTable, call_table
from clusim.formats.logs.jobranks import add_runs, job_ranks
from clusim.formats.recordings.kinds import (
    KINDS,
    LOGS,
    PLANS,
    all_kinds,
    kind_of,
    reader,
)
from clusim.formats.recordings.model import Recording
from clusim.formats.recordings.nccl_log import recording_of
from clusim.jobs.ready import sort_by_start
from clusim.replays.placing import ReplayRequest, machines_of
from clusim.simulation.setup import Setup

MOST_CALLS = 1_000_000
"""Default limit on replayed calls."""


def read_recording(request: ReplayRequest) -> Recording:
    """Return the recording of a request, its events in the order of their starts.

    Raises
    ------
    InputError
        The file is a log or a plan, or cannot be read.
    """
    first = request.files[0]
    kind = request.kind.replace("_", "-") or kind_of(first)
    if kind in PLANS:
        raise InputError(
            f"{first}: {PLANS[kind]}, not a recording; run it with `clusim run TOPOLOGY --algorithm {first}`"
        )
    if kind not in KINDS and kind not in all_kinds():
        kinds = ", ".join(sorted({*LOGS, *all_kinds()}))
        raise InputError(
            f"{first}: kind {kind!r} cannot be replayed; it is one of {kinds}"
        )
    read = reader(kind, first)
    files = list(request.files) if len(request.files) > 1 else first
    return sort_by_start(read(files, **_reader_options(read, request)))


def _reader_options(
    read: Callable[..., Recording], request: ReplayRequest
) -> dict[str, int | None]:
    """Return options for readers of files that do not contain them.

    These are the ranks of the topology, the ranks of its smallest node, and the requested number of calls.
    """
    parameters = signature(read).parameters
    result = {"calls": request.calls} if "calls" in parameters else {}
    if request.topology is None or "num_ranks" not in parameters:
        return result
    machines = machines_of(Setup(request.topology, request.nodes).fabric)
    if not machines:
        raise InputError(
            f"{Setup(request.topology).name}: no GPU; a replay needs one for every rank"
        )
    sizes = [len(machine) for machine in machines]
    values = {"num_ranks": sum(sizes), "machine_ranks": min(sizes), **result}
    return {key: value for key, value in values.items() if key in parameters}


def recording_of_logs(request: ReplayRequest) -> Recording:
    """Return the calls of the logs of one job as a recording.

    Raises
    ------
    InputError
        A file is not a log, or has no calls.
    """
    log = read_logs(request.files)
    add_runs(log)
    table = call_table(log, limit=request.calls or MOST_CALLS)
    require_calls(log, table, request)
    return recording_of(log, table, job_ranks(log))


def require_calls(log: Log, table: CallTable, request: ReplayRequest) -> None:
    """Raise `InputError` if a log has no calls."""
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
