"""Options of several commands, with the same flags, types and first words of help.

Each is called for a decorator; keywords are the command-specific parts: the default, its wording (`said`), and
additional help (`more`).
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import click

from clusim.base.terms.dtypes import DTYPES
from clusim_cli.outputs import OUTPUT, PICTURE, TRACE_OUT
from clusim_cli.params import (
    ALGORITHM,
    COLLECTIVE,
    DOMAINS,
    DTYPE,
    FAULT,
    GRANULARITY,
    ORDER,
    PROTOCOL,
    RECORDED_FILE,
    REDOP,
    RELEASE,
    RUNNABLE,
    SIZE,
    THREADS,
    TIME,
    TOPOLOGY,
    one_of,
)

if TYPE_CHECKING:
    from clusim.simulation.session import Watch

Function = TypeVar("Function", bound=Callable[..., Any])
Decorator = Callable[[Function], Function]

ASK_S = 0.25
"""Interval at which the timer of a wall-clock limit repeats once the time is up [s]."""


def _option(
    *flags: str, help: str, more: str = "", said: str = "", **about: Any
) -> Decorator[Any]:
    """Return an option; `more` follows its help, and then `said`, the default in words."""
    words = f"{help} {more}".rstrip() + (f"  [default: {said}]" if said else "")
    if about.get("default") is not None and not said:
        about["show_default"] = True
    return click.option(*flags, help=words, **about)


def _shared(*flags: str, **about: Any) -> Callable[..., Decorator[Any]]:
    """Return a function creating an option; its keywords are as of `_option`, and add to `about`."""
    return partial(_option, *flags, **about)


def _env(
    _ctx: click.Context, _param: click.Parameter, words: tuple[str, ...]
) -> tuple[tuple[str, str], ...]:
    from clusim.nccl import parse_assignments

    return tuple(parse_assignments(words).items())


def _watched(
    context: click.Context, _option: click.Parameter, limit_ps: int | None
) -> Watch:
    """Return a watch polled by a timer, so that preparation stops at the limit."""
    from clusim.simulation.session import Watch

    watch = Watch(limit_ps)
    if (
        limit_ps is not None
        and threading.current_thread() is threading.main_thread()
    ):
        before = signal.signal(signal.SIGALRM, lambda *_: watch.interrupt())
        signal.setitimer(signal.ITIMER_REAL, limit_ps / 1e12 + ASK_S, ASK_S)

        def disarm() -> None:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)

        context.call_on_close(disarm)
    return watch


topology = _shared(
    "--topology",
    metavar="TOPOLOGY",
    type=TOPOLOGY,
    help="The system: a preset, or a topology file of any name; replaces the argument.",
)
"""The system, for commands with job files as arguments; the last argument may be the topology as well."""

nodes = _shared(
    "--nodes",
    type=click.IntRange(1, 65_536),
    metavar="N",
    help="Simulate N nodes, joined by the preset's default network.",
)
"""Number of nodes: pass it on as ``load(topology, nodes=nodes)``."""

domains = _shared(
    "--domains",
    type=DOMAINS,
    metavar="DxG",
    help="Simulate D NVLink domains (racks, or nodes) with G GPUs of each, such as 2x4.",
)
"""NVLink domains and the participating GPUs of each, in place of `nodes`."""

collective = _shared(
    "--collective",
    "-c",
    "operation",
    type=COLLECTIVE,
    default="allreduce",
    help=f"Operation in any spelling: {', '.join(RUNNABLE)}.",
)
"""The operation, in clusim's spelling."""

algorithm = _shared(
    "--algorithm",
    type=ALGORITHM,
    default="",
    help="Algorithm: nccl is NCCL's choice, a name, or an MSCCL (.xml) or MSCCL++ (.json) file;"
    " an unknown name lists the algorithms of the operation.",
)

protocol = _shared("--protocol", type=PROTOCOL, help="NCCL protocol, in any case.")

dtype = _shared(
    "--dtype",
    type=DTYPE,
    default="float32",
    help=f"Type of the elements in any spelling: {', '.join(DTYPES)}.",
)

redop = _shared("--redop", type=REDOP, default="sum", help="Reduction, in any case.")

channels = _shared(
    "--channels",
    type=click.IntRange(1, 64),
    help="Channels; for NCCL's choice as NCCL_MIN_NCHANNELS and NCCL_MAX_NCHANNELS.",
)

_SIZE_HELP = "Size as in nccl-tests: 64M is 64 MiB."

size = _shared("--size", "size_bytes", type=SIZE, help=_SIZE_HELP)

sizes = _shared(
    "--size",
    "sizes",
    type=SIZE,
    multiple=True,
    help=_SIZE_HELP,
    more="May be repeated.",
)

env = _shared(
    "--env",
    multiple=True,
    callback=_env,
    metavar="NAME=VALUE",
    help="A variable of NCCL, for example NCCL_ALGO=Ring; may be repeated.",
)
"""NCCL's environment, as `Setup.env`."""

symmetric = _shared(
    "--symmetric",
    is_flag=True,
    help="Register buffers as symmetric windows, so that NCCL can use its symmetric kernels.",
)

nccl_version = _shared(
    "--nccl-version",
    "version",
    type=RELEASE,
    default="",
    metavar="RELEASE",
    help="Release of NCCL, such as 2.27.",
    said="the newest known",
)

faults = _shared(
    "--fault",
    "faults",
    type=FAULT,
    multiple=True,
    metavar="TEXT",
    help="Fault, e.g. 'link gpu3:nvl5 down at 2ms' or 'rank 3 slow x1.3'; may be repeated.",
)

routing = _shared(
    "--routing",
    type=one_of(
        "auto", "ecmp", "spray", "adaptive", "credit", "flowlet", "ugal", "minimal"
    ),
    default="auto",
    metavar="ROUTING",
    help="Paths between nodes: per flow (ecmp); per packet, in turn (spray), by queue (adaptive), by queue and next"
    " buffer (credit), by queue with detours (ugal), or on all shortest paths of tori (minimal); per flowlet"
    " (--flowlet-gap); auto is the topology's.",
)

flowlet_gap = _shared(
    "--flowlet-gap",
    "gap_ps",
    type=TIME,
    help="flowlet: shortest pause of a flow before a new path.",
)

reorder = _shared(
    "--reorder",
    type=ORDER,
    help="In-order receivers: size of the buffer for early packets of a queue pair; 0 drops early packets, and the"
    " sender repeats; any accepts any order.",
    said="as the NICs",
)

policy = _shared(
    "--policy",
    default="",
    metavar="sender=NAME",
    help="Congestion control of all NICs (sender=NAME, receiver=NAME), or queues, schedules or paths of all network"
    " switches (queue=NAME, schedule=NAME, path=NAME): a policy, such as swift, or FILE.py:Class, a file that is run;"
    " several after commas.",
    said="the topology's",
)

granularity = _shared(
    "--granularity",
    type=GRANULARITY,
    default="auto",
    help="Exact packets, bursts chosen by size, or bursts of about SIZE.",
)

engine = _shared(
    "--engine",
    type=one_of("c", "reference"),
    default="c",
    help="The engine in C, or the reference engine in Python.",
)

threads = _shared(
    "--threads",
    type=THREADS,
    default="auto",
    help="Threads of the engine in C, 1 to 64; results are the same. auto: one per idle "
    "core, at most 4.",
)

time_limit = _shared(
    "--time-limit",
    "watch",
    type=TIME,
    callback=_watched,
    metavar="TIME",
    help="Wall-clock limit, such as 90s; the partial result is printed.",
    said="none",
)
"""Wall-clock limit: the command gets a `clusim.simulation.session.Watch`."""

seed = _shared(
    "--seed",
    type=click.IntRange(0, 2**63 - 1),
    default=0,
    help="Seed of packet replays and of Ethernet's flow hashes.",
)

trace_out = _shared(
    "--trace-out", type=TRACE_OUT, metavar="FILE", help="Write an HDF5 trace."
)

trace_limit = _shared(
    "--trace-limit",
    "trace_limit_bytes",
    type=SIZE,
    default="1GiB",
    help="Keep the trace below this size.",
)

against = _shared(
    "--against",
    type=RECORDED_FILE,
    metavar="FILE",
    help="Compare with measurements.",
)

output = _shared(
    "-o", "--output", type=OUTPUT, metavar="FILE", help="File to write."
)


class JsonOption(click.Option):
    """Option for JSON output; `form` is the place of the output's type: ``module:Name``."""

    def __init__(self, *args: Any, form: str, **about: Any) -> None:
        super().__init__(*args, **about)
        self.form = form


def as_json(form: str, more: str = "") -> Decorator[Any]:
    """Option for JSON output of a form (see "clusim schema")."""
    return _option(
        "--json",
        "as_json",
        is_flag=True,
        help="Print one JSON object.",
        more=more,
        cls=JsonOption,
        form=form,
    )


row_sizes = _shared(
    "--sizes",
    type=click.IntRange(1),
    metavar="N",
    help="Maximum sizes per group of rows.",
    said="all",
)

plot = _shared("--plot", type=PICTURE, metavar="PATH", help="Draw a figure.")

html = _shared("--html", type=OUTPUT, metavar="FILE", help="Write a page.")

as_csv = _shared("--csv", "as_csv", is_flag=True, help="Print CSV.")

top = _shared(
    "--top", type=click.IntRange(0), metavar="N", help="Rows to show; 0 is all."
)

all_lines = _shared(
    "--all", "everything", is_flag=True, help="Print long lists in full."
)

strict = _shared(
    "--strict",
    is_flag=True,
    help="Fail on doubtful results.",
    more="These are results that depend on assumptions of an importer.",
)

confirm = _shared(
    "--confirm", is_flag=True, help="Verify the saving by re-simulation."
)

kind = _shared(
    "--kind", default="", metavar="KIND", help="Format of the file.", said="detected"
)
"""Format of a file, one of the words of a type."""

jobs = _shared(
    "--jobs", type=click.IntRange(1), help="Worker processes.", said="one per core"
)

executor = _shared(
    "--executor",
    metavar="ADDRESS",
    help="Workers in place of local processes: dask://HOST:PORT, dask:SCHEDULER_FILE, or mpi.",
)
"""An executor instead of processes; `clusim_cli.outputs.working` joins it with `jobs`."""

no_progress = _shared("--no-progress", is_flag=True, help="Show no progress bar.")


def lost_rank(*, required: bool, more: str = "") -> Decorator[Any]:
    """Return the options of a job that loses a rank."""
    each = [
        _option("--lose", "rank", type=click.IntRange(0), required=required, metavar="RANK",
                help="Rank that fails; the others shrink and continue.", more=more),
        _option("--at", "at_ps", type=TIME, default="0us", help="Time of the failure."),
        _option("--iterations", type=click.IntRange(1, 2**40), default=1000,
                help="Iterations of the job."),
        _option("--detection", "detection_ps", type=TIME, help="Time until the others detect it.",
                said="retries of the NIC between nodes, else PyTorch's watchdog"),
        _option("--shrink-time", "shrink_ps", type=TIME, help="Time of the new communicator.",
                said="500 ms, assumed"),
    ]  # fmt: skip

    def decorate(function: Function) -> Function:
        for option in reversed(each):
            function = option(function)
        return function

    return decorate
