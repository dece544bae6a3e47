"""Simulate: a request, or a fabric and a schedule or synthetic traffic, in; a `Result` out."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any

from clusim.results.result import Result
from clusim.schedule import Schedule
from clusim.simulation.approximate import stood_for
from clusim.simulation.job import MAX_BINS, TRACE_LIMIT_BYTES, RunOptions, job_of, run_job
from clusim.simulation.notebook import shown_in_notebook
from clusim.simulation.request import AnyRequest, Request, ScheduleRequest, TrafficRequest
from clusim.simulation.session import EngineName, Progress
from clusim.simulation.setup import Setup
from clusim.simulation.time_limit import Watch
from clusim.simulation.traffic import Traffic
from clusim.topology import Fabric


def simulate(
    fabric: Fabric,
    schedule: Schedule,
    *,
    granularity: str | int = "auto",
    seed: int = 0,
    verify: bool = False,
    engine: EngineName = "c",
    threads: int | None = 1,
    trace_out: str | Path | None = None,
    trace_primitives: bool | None = None,
    trace_limit_bytes: int = TRACE_LIMIT_BYTES,
    bins: int = MAX_BINS,
    faults: Sequence[Any] = (),
    notes: Sequence[str] = (),
    progress: Progress | None = None,
    command: str = "",
    watch: Watch | None = None,
) -> Result:
    """Run `schedule` on `fabric` and return what happened.

    Parameters
    ----------
    granularity : str or int
        ``"packet"``: every packet by itself; ``"auto"``: bursts where exact packets would take long and
        the error is small; a size: bursts of about so many bytes.
    seed : int
        Seed of whatever is random in the run (packets replayed after bit errors).
    verify : bool
        Carry real numbers through the schedule in the order in which the engine completes slices, and
        compare the outcome with the definition of the collective.
    engine : str
        ``"c"``, or ``"reference"`` for the slow one.
    threads : int or None
        Most threads of the C engine, which work when there is much to do at once; None: one for every core, at most
        four. Results are the same.
    trace_out : path or None
        Write a trace there (HDF5, ``docs/trace-format.md``).
    trace_primitives : bool or None
        Put every completed slice into it, too, which analyses of the critical path need; None: if there are
        at most a million.
    trace_limit_bytes : int
        Keep the trace below this size [bytes]: histories get coarser, completed slices end early.
    bins : int
        Most time bins to keep per wire.
    faults : sequence
        What breaks when, besides the fabric's own faults: texts as ``link gpu3:nvl5 down at 2ms``, or
        `clusim.lowering.Fault`. To plan a collective around what is broken at time 0, build it on
        `clusim.lowering.known_at_start`.
    notes : sequence of str
        What must be said of the plan wherever the result is shown, such as that it is another one without the faults.
    progress : callable or None
        Called about 20 times a second with (part done, simulated ps); raising from it ends the run. None: a bar in
        notebooks, after two seconds.
    command : str
        What to write into the trace as the command that made it.
    watch : clusim.simulation.time_limit.Watch
        Ends the run after a time on the wall; the result is then what is known (`Result.unfinished`).

    Raises
    ------
    DeadlockError
        Nothing can happen any more; the message names the waiting cycle.
    ClusimError
        Any other bad input or failure of the surroundings; each is one line.
    """
    request = ScheduleRequest(
        *(Setup(fabric, faults=tuple(faults)), schedule, tuple(notes)),
        granularity=granularity,
        seed=seed,
        verify=verify,
        engine=engine,
    )
    with shown_in_notebook(progress) as told:
        how = (bins, trace_out, trace_primitives, told, command, trace_limit_bytes)
        return result_of(request, RunOptions(*how, threads=threads, watch=watch or Watch()))


def result_of(request: AnyRequest, options: RunOptions = RunOptions()) -> Result:  # noqa: B008 - frozen
    """Run what a request asks for and return what happened; of very large runs, what others that stand for it say.

    Parameters
    ----------
    options : RunOptions
        Where a trace goes, who is told of progress.
    """
    whole = cache(partial(job_of, request, options))
    found = stood_for(request, options, whole) if isinstance(request, Request) else None
    return found or run_job(whole(), options)


def whole_of(request: AnyRequest, options: RunOptions, where: str) -> Result:
    """Run what a request asks for to its end, as part of something larger, which is said to be in `where`.

    Raises
    ------
    TimeLimitReached
        The time on the wall that `options` allow is up.
    """
    result = result_of(request, options)
    if result.unfinished is not None:
        raise result.unfinished.reached(where)
    return result


def simulate_traffic(
    fabric: Fabric,
    traffic: Traffic,
    *,
    granularity: str | int = "packet",
    engine: EngineName = "c",
    threads: int | None = 1,
    trace_out: str | Path | None = None,
    trace_limit_bytes: int = TRACE_LIMIT_BYTES,
    bins: int = MAX_BINS,
    progress: Progress | None = None,
    command: str = "",
    watch: Watch | None = None,
) -> Result:
    """Run synthetic traffic on `fabric`; `Result.messages` has when every message arrived.

    Parameters are those of `simulate`; where the time of `watch` is up, the result is what is known by then.
    """
    request = TrafficRequest(Setup(fabric), traffic, granularity, engine)
    with shown_in_notebook(progress) as told:
        how = (bins, trace_out, False, told, command, trace_limit_bytes)
        return result_of(request, RunOptions(*how, threads=threads, watch=watch or Watch()))
