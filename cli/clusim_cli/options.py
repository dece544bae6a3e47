"""Options of several commands, with the same flags, types and first words of help.

Parameters are the command-specific parts: default, its wording, and additional help.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

from clusim.base.terms.dtypes import DTYPES
from clusim_cli.outputs import OUTPUT, TRACE_OUT
from clusim_cli.params import (
    ALGORITHM,
    COLLECTIVE,
    DTYPE,
    FAULT,
    GRANULARITY,
    PROTOCOL,
    REDOP,
    RELEASE,
    RUNNABLE,
    SIZE,
    TIME,
    TOPOLOGY,
    Words,
    one_of,
)

if TYPE_CHECKING:
    from clusim.simulation.session import Watch

Function = TypeVar("Function", bound=Callable[..., Any])
Decorator = Callable[[Function], Function]

ASK_S = 0.25
"""Interval at which the timer of a wall-clock limit repeats once the time is up [s]."""


def _option(*flags: str, help: str, more: str = "", said: str = "", **about: Any) -> Decorator[Any]:
    """Return an option; `more` follows its help, and then `said`, the default in words."""
    words = f"{help} {more}".rstrip() + (f"  [default: {said}]" if said else "")
    if about.get("default") is not None and not said:
        about["show_default"] = True
    return click.option(*flags, help=words, **about)


def topology(said: str) -> Decorator[Any]:
    """Add ``--topology`` for commands with job files as arguments.

    The last argument may be the topology as well.
    """
    return _option(
        "--topology",
        metavar="TOPOLOGY",
        type=TOPOLOGY,
        help="The system: a preset, or a topology file of any name; replaces the argument.",
        said=said,
    )


def nodes() -> Decorator[Any]:
    """Option for the number of nodes: pass it on as ``load(topology, nodes=nodes)``."""
    return _option(
        "--nodes",
        type=click.IntRange(1, 65_536),
        metavar="N",
        help="Simulate N nodes, joined by the preset's default network.",
    )


def collective() -> Decorator[Any]:
    """The operation, in clusim's spelling."""
    return _option(
        *("--collective", "-c", "operation"),
        type=COLLECTIVE,
        default="allreduce",
        help=f"Operation in any spelling: {', '.join(RUNNABLE)}.",
    )


def algorithm(said: str) -> Decorator[Any]:
    """Option for the algorithm of a collective."""
    return _option(
        "--algorithm",
        type=ALGORITHM,
        default="",
        help="Algorithm: nccl is NCCL's choice, a name, or an MSCCL (.xml) or MSCCL++ (.json) file;"
        " an unknown name lists the algorithms of the operation.",
        said=said,
    )


def protocol(said: str) -> Decorator[Any]:
    """Option for the protocol, in clusim's spelling."""
    return _option(
        "--protocol",
        type=PROTOCOL,
        default=None,
        help="NCCL protocol, in any case.",
        said=said,
    )


def dtype() -> Decorator[Any]:
    """Type of the elements, in clusim's spelling."""
    return _option(
        "--dtype",
        type=DTYPE,
        default="float32",
        help=f"Type of the elements in any spelling: {', '.join(DTYPES)}.",
    )


def redop() -> Decorator[Any]:
    """Reduction, in clusim's spelling."""
    return _option("--redop", type=REDOP, default="sum", help="Reduction, in any case.")


def channels(said: str) -> Decorator[Any]:
    """Channels of a collective."""
    return _option(
        "--channels",
        type=click.IntRange(1, 64),
        default=None,
        help="Channels; for NCCL's choice as NCCL_MIN_NCHANNELS and NCCL_MAX_NCHANNELS.",
        said=said,
    )


def size(default: str) -> Decorator[Any]:
    """The size of a collective."""
    return _option(
        *("--size", "size_bytes"),
        type=SIZE,
        default=default,
        help="Size as in nccl-tests: 64M is 64 MiB.",
    )


def sizes(said: str) -> Decorator[Any]:
    """Sizes of a collective."""
    return _option(
        *("--size", "sizes"),
        type=SIZE,
        multiple=True,
        help="Size as in nccl-tests: 64M is 64 MiB.",
        more="May be repeated.",
        said=said,
    )


def _env(
    _ctx: click.Context, _param: click.Parameter, words: tuple[str, ...]
) -> tuple[tuple[str, str], ...]:
    from clusim.nccl import parse_assignments

    return tuple(parse_assignments(words).items())


def env() -> Decorator[Any]:
    """NCCL's environment, as `Setup.env`."""
    return _option(
        "--env",
        multiple=True,
        callback=_env,
        metavar="NAME=VALUE",
        help="A variable of NCCL, for example NCCL_ALGO=Ring; may be repeated.",
    )


def symmetric() -> Decorator[Any]:
    """Option for symmetric buffers."""
    return _option(
        "--symmetric",
        is_flag=True,
        help="Register buffers as symmetric windows, so that NCCL can use its symmetric kernels.",
    )


def nccl_version(said: str = "the newest known") -> Decorator[Any]:
    """NCCL's release."""
    return _option(
        *("--nccl-version", "version"),
        type=RELEASE,
        default="",
        metavar="RELEASE",
        help="Release of NCCL, such as 2.27.",
        said=said,
    )


def faults() -> Decorator[Any]:
    """Option for faults."""
    return _option(
        *("--fault", "faults"),
        type=FAULT,
        multiple=True,
        metavar="TEXT",
        help="Fault, e.g. 'link gpu3:nvl5 down at 2ms' or 'rank 3 slow x1.3'; may be repeated.",
    )


def granularity(default: str = "auto") -> Decorator[Any]:
    """Option for the granularity."""
    return _option(
        "--granularity",
        type=GRANULARITY,
        default=default,
        help="Exact packets, bursts chosen by size, or bursts of about SIZE.",
    )


def engine() -> Decorator[Any]:
    """Option for the engine."""
    return _option(
        "--engine",
        type=one_of("c", "reference"),
        default="c",
        help="The engine in C, or the reference engine in Python.",
    )


def threads() -> Decorator[Any]:
    """Threads of the engine."""
    return _option(
        *("--threads", "threads"),
        type=click.IntRange(1, 64),
        default=None,
        help="Threads of the engine in C; results are the same.",
        said="one per core, at most 4",
    )


def time_limit() -> Decorator[Any]:
    """Wall-clock limit: the command gets a `clusim.simulation.session.Watch`."""
    return _option(
        *("--time-limit", "watch"),
        type=TIME,
        default=None,
        callback=_watched,
        metavar="TIME",
        help="Wall-clock limit, such as 90s; the partial result is printed.",
        said="none",
    )


def _watched(context: click.Context, _option: click.Parameter, limit_ps: int | None) -> Watch:
    """Return a watch polled by a timer, so that preparation stops at the limit."""
    from clusim.simulation.session import Watch

    watch = Watch(limit_ps)
    if limit_ps is not None and threading.current_thread() is threading.main_thread():
        before = signal.signal(signal.SIGALRM, lambda *_: watch.interrupt())
        signal.setitimer(signal.ITIMER_REAL, limit_ps / 1e12 + ASK_S, ASK_S)

        def disarm() -> None:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)

        context.call_on_close(disarm)
    return watch


def seed() -> Decorator[Any]:
    """Add the option for the random seed."""
    return _option(
        "--seed",
        type=click.IntRange(0, 2**63 - 1),
        default=0,
        help="Seed of packet replays and of Ethernet's flow hashes.",
    )


def trace_out() -> Decorator[Any]:
    """File of the trace."""
    return _option(
        "--trace-out", type=TRACE_OUT, default=None, metavar="FILE", help="Write an HDF5 trace."
    )


def trace_limit() -> Decorator[Any]:
    """Largest size of a trace."""
    return _option(
        *("--trace-limit", "trace_limit_bytes"),
        type=SIZE,
        default="1GiB",
        help="Keep the trace below this size.",
    )


def output(help: str, said: str = "") -> Decorator[Any]:
    """File to write."""
    return _option(
        *("-o", "--output"),
        type=OUTPUT,
        default=None,
        metavar="FILE",
        help="File to write.",
        more=help,
        said=said,
    )


class JsonOption(click.Option):
    """Option for JSON output; `form` is the place of the output's type: ``module:Name``."""

    def __init__(self, *args: Any, form: str, **about: Any) -> None:
        super().__init__(*args, **about)
        self.form = form


def as_json(form: str, more: str = "") -> Decorator[Any]:
    """Option for JSON output of a form (see "clusim schema")."""
    return _option(
        *("--json", "as_json"),
        is_flag=True,
        help="Print one JSON object.",
        more=more,
        cls=JsonOption,
        form=form,
    )


def html(more: str = "") -> Decorator[Any]:
    """File of a page."""
    return _option(
        "--html", type=OUTPUT, default=None, metavar="FILE", help="Write a page.", more=more
    )


def as_csv(more: str = "") -> Decorator[Any]:
    """Option for CSV output."""
    return _option("--csv", "as_csv", is_flag=True, help="Print CSV.", more=more)


def top(default: int | None, said: str = "") -> Decorator[Any]:
    """Option for the number of rows."""
    return _option(
        "--top",
        type=click.IntRange(0),
        default=default,
        metavar="N",
        help="Rows to show; 0 is all.",
        said=said,
    )


def all_lines() -> Decorator[Any]:
    """Option for complete lists."""
    return _option("--all", "everything", is_flag=True, help="Print long lists in full.")


def strict(doubtful: str = "results that depend on assumptions of an importer") -> Decorator[Any]:
    """Option that makes doubtful results errors."""
    more = f"These are {doubtful}."
    return _option("--strict", is_flag=True, help="Fail on doubtful results.", more=more)


def confirm(more: str) -> Decorator[Any]:
    """Option to re-simulate."""
    return _option("--confirm", is_flag=True, help="Verify the saving by re-simulation.", more=more)


def kind(words: Words) -> Decorator[Any]:
    """Format of a file, one of some words."""
    return _option(
        "--kind",
        type=words,
        default="",
        metavar="KIND",
        help="Format of the file.",
        said="detected",
    )


def jobs() -> Decorator[Any]:
    """Worker processes."""
    return _option("--jobs", type=click.IntRange(1), help="Worker processes.", said="one per core")


def executor() -> Decorator[Any]:
    """Option for an executor instead of processes; `clusim_cli.outputs.working` joins it with `jobs`."""
    return _option(
        "--executor",
        metavar="ADDRESS",
        default=None,
        help="Workers in place of local processes: dask://HOST:PORT, dask:SCHEDULER_FILE, or mpi.",
    )


def no_progress() -> Decorator[Any]:
    """Option to hide progress."""
    return _option("--no-progress", is_flag=True, help="Show no progress bar.")
