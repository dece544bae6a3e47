"""Public functions that run simulations: one call for each command.

`simulate` and `simulate_traffic` accept objects built in Python; the other functions accept names, as
their commands do. Sizes may be numbers of bytes or texts with a unit (``"64MiB"``), times numbers of
picoseconds or texts (``"100us"``). Every bad input raises a one-line `clusim.ClusimError`, and an input
file is never overwritten.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypedDict, Unpack

from clusim.base import files
from clusim.base.errors import InputError
from clusim.base.executors import Jobs
from clusim.nccltests.api import Table, table_of
from clusim.nccltests.options import flags_of, parse_flags
from clusim.nccltests.sweep import kind_named, place, program_named
from clusim.replays.api import replay as replayed
from clusim.replays.placing import GAPS, ReplayRequest
from clusim.replays.report import Replay
from clusim.simulation.api import as_bytes, as_policy, as_ps, parse_env_of
from clusim.simulation.job import RunOptions
from clusim.simulation.request import taken
from clusim.simulation.session import counted_in_notebook
from clusim.simulation.setup import Setup
from clusim.topology import Fabric


class ReplayOptions(TypedDict, total=False):
    """Further options of `replay`; see `clusim.replays.placing.ReplayRequest`.

    Attributes
    ----------
    nodes : int
        Number of nodes; by default that of the job.
    other : str or Path or Fabric
        A second system for comparison.
    gap : int or str
        Between calls: ``none``, ``logged`` or a time [ps].
    env : dict of str
        NCCL environment variables; override the job's.
    version : str
        NCCL release; by default that of the recording.
    faults : sequence
        Faults, as of `clusim.simulate`.
    policy : str or type
        Sender policy of all NICs, as of `clusim.traffic`.
    replan, whole : bool
        Re-plan rings and algorithms; simulate a log as one run.
    asked : sequence of (str, int or str)
        Operations and sizes to run on the communicators of a log without calls.
    calls : int
        Maximum number of replayed calls.
    kind : str
        Format of the recording; detected by default.
    progress : callable
        Called with the numbers of completed and of all calls.
    granularity, trace_out, command
        As of `clusim.simulate`.
    """

    nodes: int | None
    other: str | Path | Fabric | None
    gap: int | str
    env: Mapping[str, str]
    version: str
    faults: Sequence[Any]
    policy: str | type[Any]
    replan: bool
    whole: bool
    asked: Sequence[tuple[str, int | str]]
    calls: int | None
    kind: str
    progress: Callable[[int, int], None] | None
    granularity: str | int
    trace_out: Path | None
    command: str


def replay(
    recording: str | Path | Sequence[str | Path],
    topology: str | Path | Fabric | None = None,
    **options: Unpack[ReplayOptions],
) -> Replay:
    """Simulate a recorded job again, as ``clusim replay`` does.

    Parameters
    ----------
    recording : str or Path, or sequence of these
        Logs of NCCL, or traces of other tools; several logs are one job.
    topology : str or Path or Fabric or None
        A system, preset, file, or XML that NCCL wrote; None: detected from the recording.
    **options
        See `ReplayOptions`.

    Returns
    -------
    Replay
        `total_ps` [ps], and `calls` and `comms` one by one.

    Raises
    ------
    InputError
        The recording cannot be read or replayed, or an option is not applicable.
    """
    values: dict[str, Any] = dict(options)
    result = [recording] if isinstance(recording, str | Path) else recording
    names = tuple(str(item) for item in result)
    counted = values.pop("progress", None)
    how = RunOptions(
        **taken(values, RunOptions, known=ReplayOptions.__optional_keys__)
    )
    gap = values.pop("gap", "")
    request = ReplayRequest(
        names,
        topology=topology,
        gap=gap if not isinstance(gap, str) or gap.lower() in GAPS else as_ps(gap),
        env=parse_env_of(values.pop("env", {})),
        faults=tuple(values.pop("faults", ())),
        policy=as_policy(values.pop("policy", "")),
        asked=tuple(
            (name, as_bytes(size)) for name, size in values.pop("asked", ())
        ),
        **values,
    )
    with files.guard_inputs(), counted_in_notebook(counted) as progress:
        for name in names:
            files.note_input(name)
        return replayed(request, how, progress)


class NcclTestsOptions(TypedDict, total=False):
    """Further options of `nccl_tests`.

    Attributes
    ----------
    nodes : int
        Number of nodes to join.
    processes : int
        Processes per node; by default 1 with ``-g`` or ``-t``, otherwise one per GPU.
    env : dict of str
        NCCL environment variables.
    version : str
        NCCL's release; the newest known by default.
    harness : str
        Launcher: ``nccl-tests``, or ``torch`` for a Python loop around torch.distributed.
    jobs : int or Executor
        Worker processes, or an executor; one process per core by default, 1 uses this process.
    """

    nodes: int | None
    processes: int | None
    harness: str
    env: Mapping[str, str]
    version: str
    jobs: Jobs


def nccl_tests(
    program: str,
    fabric: str | Path | Fabric,
    flags: str = "",
    **options: Unpack[NcclTestsOptions],
) -> Table:
    """Predict the output of an nccl-tests program on a system, as ``clusim nccl-tests`` does.

    Parameters
    ----------
    program : str
        ``all_reduce_perf``, ``alltoall_perf``, ...
    fabric : Fabric or str or Path
        System of the run.
    flags : str
        Command-line flags of the program: ``"-b 8 -e 128M -f 2"``.
    **options
        See `NcclTestsOptions`.

    Returns
    -------
    Table
        `lines`, one per size, with times [us] and bandwidths [10^9 bytes/s]; `text()` is the program's output.

    Raises
    ------
    InputError
        A name, flag or option is invalid or not applicable.
    """
    values: dict[str, Any] = dict(options)
    test = program_named(program)
    parsed = parse_flags(flags_of(shlex.split(flags)))
    if parsed.output_file:
        raise InputError(f"-J {parsed.output_file}: write Table.to_json() yourself")
    version, env = values.pop("version", ""), parse_env_of(values.pop("env", {}))
    setup = Setup(fabric, values.pop("nodes", None), None, version, env)
    kind = kind_named(values.pop("harness", "")) or "nccl-tests"
    where = place(setup, parsed, values.pop("processes", None), kind)
    return table_of(where, test, parsed, **values)
