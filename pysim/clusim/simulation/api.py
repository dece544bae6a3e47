"""Simulation of requests and schedules: functions for scripts; see `clusim.simulation.traffic_api` for traffic.

The system is named or given.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any, Literal, TypedDict, Unpack

from clusim.base.errors import InputError
from clusim.base.files import guard_inputs
from clusim.base.units import parse_size, parse_time
from clusim.lowering.spreads import Routing
from clusim.nccl.callconfig import CallConfig
from clusim.nccl.env import parse_assignments, parse_env
from clusim.results.bins import MAX_BINS
from clusim.results.result import Result
from clusim.schedule import Schedule
from clusim.simulation.extrapolate import extrapolated_result
from clusim.simulation.job import TRACE_LIMIT_BYTES, RunOptions, run_job
from clusim.simulation.plan import Plan, plan
from clusim.simulation.preparation import job_of
from clusim.simulation.request import (
    AnyRequest,
    ScheduleRequest,
    TrafficRequest,
    requested,
    taken,
)
from clusim.simulation.session import EngineName, Progress, Watch, shown_in_notebook
from clusim.simulation.setup import Setup
from clusim.topology import Fabric


def simulate(
    fabric: Fabric,
    schedule: Schedule,
    *,
    granularity: str | int = "auto",
    seed: int = 0,
    verify: bool = False,
    policy: str | type[Any] = "",
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
    confirm: bool | None = None,
    watch: Watch | None = None,
) -> Result:
    """Run `schedule` on `fabric` and return the result.

    Parameters
    ----------
    granularity : str or int
        ``"packet"``: exact packets; ``"auto"``: bursts where exact packets are slow and the error is small;
        a size: bursts of about this many bytes.
    seed : int
        Seed of the random parts of the run (packets replayed after bit errors).
    verify : bool
        Carry real numbers through the schedule in the order in which the engine completes slices, and
        compare the data with the definition of the collective.
    policy : str or type
        Policy of all NICs or queues, as of `collective`.
    engine : str
        ``"c"``, or ``"reference"`` for the slow engine in Python.
    threads : int or None
        Maximum number of threads of the C engine, used while many events are due; None: one per idle core, at most 4.
        Results do not depend on it.
    trace_out : path or None
        Write a trace there (HDF5, ``docs/trace-format.md``).
    trace_primitives : bool or None
        Also record every completed slice, as analyses of the critical path need; None: up to a million slices.
    trace_limit_bytes : int
        Keep the trace below this size [bytes]: histories get coarser, completed slices end early.
    bins : int
        Maximum number of time bins per wire.
    faults : sequence
        Faults in addition to those of the topology: texts such as ``link gpu3:nvl5 down at 2ms``, or
        `clusim.lowering.Fault`. To plan a collective around the faults at time 0, build it on
        `clusim.lowering.known_at_start`.
    notes : sequence of str
        Notes about the plan, shown with the result, for example that the faults changed it.
    progress : callable or None
        Called about 20 times a second with (part done, simulated ps); raising from it ends the run. None: a bar in
        notebooks, after two seconds.
    command : str
        Command to record in the trace.
    confirm : bool or None
        As for `collective`; traces store the proven verdict.
    watch : clusim.simulation.session.Watch
        Wall-clock limit of the run; at the limit the result is partial (`Result.unfinished`).

    Raises
    ------
    DeadlockError
        No event is left and ranks wait; the message names the waiting cycle.
    ClusimError
        Other bad input or a failure of the environment; each is one line.
    """
    setup = Setup(fabric, faults=tuple(faults), policy=as_policy(policy))
    request = ScheduleRequest(
        setup,
        schedule,
        tuple(notes),
        granularity=granularity,
        seed=seed,
        verify=verify,
        engine=engine,
    )
    with shown_in_notebook(progress) as shown_progress:
        how = (
            bins,
            trace_out,
            trace_primitives,
            shown_progress,
            command,
            trace_limit_bytes,
        )
        return result_of(
            request,
            RunOptions(
                *how, threads=threads, confirm=confirm, watch=watch or Watch()
            ),
        )


def result_of(
    request: AnyRequest | Plan, options: RunOptions = RunOptions()
) -> Result:
    """Run a request or plan and return its result; very large runs are extrapolated from smaller runs.

    Parameters
    ----------
    options : RunOptions
        Trace file, progress callback and other observers.
    """
    if isinstance(request, TrafficRequest):
        return run_job(job_of(request, options), options)
    planned = request if isinstance(request, Plan) else plan(request)
    full_job = cache(partial(job_of, planned, options))
    return extrapolated_result(planned, options, full_job) or run_job(
        full_job(), options
    )


def whole_of(request: AnyRequest | Plan, options: RunOptions, where: str) -> Result:
    """Run a request in full, as part of the larger work that `where` names in errors.

    Raises
    ------
    TimeLimitReached
        The wall-clock limit of `options` was reached.
    """
    result = result_of(request, options)
    if result.unfinished is not None:
        raise result.unfinished.limit_error(where)
    return result


Machine = str | Path | Fabric


class EngineOptions(TypedDict, total=False):
    """Options of both `collective` and `traffic`, as of `clusim.simulate`."""

    nodes: int | None
    granularity: str | int
    seed: int
    engine: EngineName
    threads: int | None
    trace_out: str | Path | None
    trace_limit_bytes: int
    bins: int
    progress: Progress | None
    command: str
    watch: Watch


class CollectiveOptions(EngineOptions, total=False):
    """Further options of `collective`.

    Attributes
    ----------
    nodes : int
        Number of nodes to join by the default network of the system.
    ranks : sequence of int
        Participating ranks; all by default.
    channels, protocol
        Of a named algorithm; NCCL chooses otherwise.
    dtype, redop : str
        ``float32`` and ``sum`` by default.
    root : int
        Rank of the fabric, for operations that have a root; the first by default.
    env : dict of str
        NCCL's variables.
    version : str
        NCCL release; the newest known by default.
    symmetric : bool
        Buffers are registered as symmetric windows, for which NCCL has special kernels.
    wanted : clusim.nccl.CallConfig
        NCCL's configuration of the call: algorithms and CTAs that it may use (2.31 and later).
    confirm : bool or None
        True re-simulates the run without its bottleneck for `Result.verdict`; None, the default: small runs only.
    faults, granularity, seed, verify, engine, threads, trace_out, trace_primitives, trace_limit_bytes, bins, progress,
    command
        As of `clusim.simulate`.
    watch : clusim.simulation.session.Watch
        Wall-clock limit of the run; at the limit the result is partial (`Result.unfinished`).
    routing, gap, reorder
        Paths between nodes and order at receiving NICs, as of `TrafficOptions`; the topology's by default.
    policy : str or type
        Sender policy of all NICs, as of `TrafficOptions`.
    """

    ranks: Sequence[int] | None
    channels: int | None
    protocol: str
    dtype: str
    redop: str
    root: int | None
    env: Mapping[str, str]
    version: str
    symmetric: bool
    wanted: CallConfig
    confirm: bool | None
    faults: Sequence[Any]
    verify: bool
    trace_primitives: bool | None
    routing: Routing
    gap: int | str | None
    reorder: int | str | None
    policy: str | type[Any]


def as_bytes(size: int | str) -> int:
    """Return a size [bytes]; texts are parsed as on the command line, so that 64M is 64 MiB."""
    return parse_size(size, binary_suffix=True) if isinstance(size, str) else size


def as_order(order: int | str | None) -> int | Literal["any"] | None:
    """Return a reorder buffer [bytes], or ``any``; None stays."""
    if isinstance(order, str) and order.strip().lower() == "any":
        return "any"
    return None if order is None else as_bytes(order)


def as_policy(policy: str | type[Any]) -> str:
    """Return the text of a policy given as text, or as a class defined with `clusim.policy`."""
    if isinstance(policy, str):
        return policy
    if not hasattr(policy, "clusim_policy"):
        raise InputError(f"policy {policy!r}: not defined with @clusim.policy")
    of = policy.clusim_policy
    return f"{of.kind.name}={of.name}"


def as_ps(time: int | str) -> int:
    """Return a time [ps]; texts have a unit, such as ``100us``."""
    return parse_time(time) if isinstance(time, str) else time


def collective(
    fabric: Machine,
    operation: str,
    size: int | str,
    algorithm: str = "",
    **options: Unpack[CollectiveOptions],
) -> Result:
    """Run one collective, as ``clusim run`` does, and return its result.

    Parameters
    ----------
    fabric : Fabric or str or Path
        A fabric, or the name of a preset, a file or a generator.
    operation : str
        Name in `clusim.collectives.ALGORITHMS`: ``allreduce``, ``all_gather``, ...
    size : int or str
        Size as in nccl-tests, the larger of a rank's send and receive sizes [bytes]; a text may have a unit.
    algorithm : str
        A name in `clusim.collectives.ALGORITHMS`; ``nccl`` is NCCL's choice; the name of a file is a plan of
        MSCCL or MSCCL++; empty is ``nccl`` where NCCL runs, otherwise the operation's first.
    **options
        See `CollectiveOptions`.

    Returns
    -------
    Result
        `Result.time_ps` is the kernel time, `Result.launched_ps` the time as nccl-tests would report it and
        `Result.model_us` NCCL's estimate, where these are known.

    Raises
    ------
    InputError
        An invalid name, size or option.
    DeadlockError
        No event is left and ranks wait.
    """
    values: dict[str, Any] = dict(options)
    for name in values.keys() - CollectiveOptions.__optional_keys__:
        raise TypeError(f"collective() got an unexpected keyword argument {name!r}")
    values |= {"env": parse_env_of(values.get("env", {})), "algorithm": algorithm}
    for name in ("ranks", "faults"):
        if values.get(name) is not None:
            values[name] = tuple(values[name])
    values |= path_options(values)
    values["policy"] = as_policy(values.pop("policy", ""))
    how = RunOptions(
        **taken(values, RunOptions, known=CollectiveOptions.__optional_keys__)
    )
    with guard_inputs(), shown_in_notebook(how.progress) as progress:
        request = requested(
            fabric, operation=operation, size_bytes=as_bytes(size), **values
        )
        return result_of(request, replace(how, progress=progress))


def parse_env_of(variables: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    """Return checked NCCL variables; names in any case, with or without ``NCCL_``."""
    env = parse_assignments(f"{name}={value}" for name, value in variables.items())
    parse_env(env)
    return tuple(env.items())


def path_options(given: dict[str, Any]) -> dict[str, Any]:
    """Remove the options on paths and order; return them as attributes of `Traffic` and `Setup`."""
    gap, reorder = given.pop("gap", None), given.pop("reorder", None)
    return {
        "routing": given.pop("routing", "auto"),
        "gap_ps": None if gap is None else as_ps(gap),
        "reorder": as_order(reorder),
    }
