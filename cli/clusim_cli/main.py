"""Entry point of the ``clusim`` command: sub-commands and exit codes.

0 is success, 1 an environment failure, a deadlock or wrong result data, 2 bad input, 70 a bug of clusim
(with its traceback), 130 an interrupt. Every failure except a bug is one line on stderr.
"""

from __future__ import annotations

import contextlib
import gc
import io
import os
import signal
import sys
import threading
import traceback
from functools import partial
from importlib import import_module
from pkgutil import iter_modules
from typing import NoReturn

import click

from clusim.base import resources
from clusim.base.errors import (
    ClusimError,
    InternalError,
    TimeLimitReached,
    TopologyError,
    suggest,
)
from clusim.base.files import guard_inputs
from clusim_cli import commands
from clusim_cli.terminal import fitted

_ORDER = (
    "run",
    "topo",
    "traffic",
    "train",
    "serve",
    "jobs",
    "info",
    "log",
    "explain",
    "crossover",
    "nccl-tests",
    "exec",
    "sweep",
    "validate",
    "replay",
    "analyze",
    "diff",
    "shrink",
    "report",
    "view",
    "plot",
    "export",
    "calibrate",
    "schema",
)
"""Order of commands in the help; unlisted commands follow."""


def _found() -> tuple[str, ...]:
    there = {
        result.name.replace("_", "-") for result in iter_modules(commands.__path__)
    }
    return (
        *(name for name in _ORDER if name in there),
        *sorted(there - set(_ORDER)),
    )


COMMANDS = _found()
"""Sub-commands, imported on use.

A module of `clusim_cli.commands` has the click command ``command``.
"""

_MEANT = {
    **dict.fromkeys(("simulate", "collective", "allreduce"), "run"),
    **dict.fromkeys(("bench", "perf", "all_reduce_perf"), "nccl-tests"),
    **dict.fromkeys(("presets", "machines", "list", "show", "import"), "topo"),
    **dict.fromkeys(("torch", "python", "script"), "torchrun"),
    **dict.fromkeys(("why", "tuner"), "explain"),
    **dict.fromkeys(("blame", "critical-path"), "analyze"),
    **{
        "draw": "plot",
        "figure": "plot",
        "open": "view",
        "compare": "diff",
    },
    **{
        "convert": "export",
        "perfetto": "export",
        "grid": "sweep",
        "accuracy": "validate",
    },
    **{
        "measure": "calibrate",
        "html": "report",
        "profile": "analyze",
        "json": "schema",
    },
}
"""Words people try, and the command that is meant."""

_STARTERS = ("exec", "torchrun", "calibrate")
"""Sub-commands that start programs of the user, which inherit the environment."""

EXIT_BUG = 70
EXIT_INTERRUPT = 130


class _LazyGroup(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        if cmd_name not in _STARTERS:
            # Threads for matrices, which clusim does not multiply, would be started with every command.
            os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
        command = import_module(
            f"clusim_cli.commands.{cmd_name.replace('-', '_')}"
        ).command
        assert isinstance(command, click.Command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in COMMANDS:
            raise click.UsageError(
                f"no command {args[0]!r}{suggest(args[0], COMMANDS, _MEANT)}"
            )
        return super().resolve_command(ctx, args)


def _print_version(ctx: click.Context, _param: click.Parameter, value: bool) -> None:
    if value and not ctx.resilient_parsing:
        from clusim.base.version import version

        click.echo(f"clusim {version()}")
        ctx.exit()


def _trust(ctx: click.Context, _param: click.Parameter, value: bool) -> None:
    if value:
        os.environ["CLUSIM_TRUST"] = "1"
        ctx.call_on_close(partial(os.environ.pop, "CLUSIM_TRUST", None))


@click.group(
    cls=_LazyGroup, context_settings={"help_option_names": ["-h", "--help"]}
)
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_print_version,
    help="Print the version and exit.",
)
@click.option(
    "--trust",
    is_flag=True,
    expose_value=False,
    callback=_trust,
    help="Read compressed files of any ratio of expansion.",
)
def cli() -> None:
    """Emulate a GPU cluster's interconnect, packet by packet."""


def _drop_output() -> None:
    """Redirect the output to a sink for the interpreter's final flush, as click does."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _one_line(message: str) -> None:
    click.echo(fitted(f"clusim: {' '.join(message.split())}", sys.stderr), err=True)


def _fail(error: BaseException) -> int:
    """Explain `error` on stderr and return the exit code it means."""
    error = _signalled(error)
    if isinstance(error, SystemExit):
        raise error
    if isinstance(error, click.exceptions.Exit):
        return error.exit_code
    if isinstance(error, click.exceptions.NoArgsIsHelpError):
        click.echo(error.format_message(), err=True)
        return error.exit_code
    if isinstance(error, click.ClickException):
        _one_line(error.format_message())
        return error.exit_code
    if isinstance(error, (click.Abort, KeyboardInterrupt)):
        _one_line("interrupted")
        return EXIT_INTERRUPT
    if isinstance(error, TopologyError):
        # A line for each problem of a topology; the first is usually the cause of the others.
        first, *more = str(error).splitlines()
        _one_line(f"{first} (and {len(more)} more)" if more else first)
        return error.exit_code
    if isinstance(error, ClusimError) and not isinstance(error, InternalError):
        _one_line(str(error))
        return error.exit_code
    if isinstance(error, BrokenPipeError):
        _drop_output()  # the reader closed the pipe
        return 1
    if isinstance(error, MemoryError):
        _one_line("out of memory; use a smaller case or coarser --granularity")
        return 1
    if isinstance(error, OSError):
        where = f"{error.filename}: " if error.filename else ""
        _one_line(f"{where}{error.strerror or error}")
        if not error.filename:
            _drop_output()  # the output may be unwritable, its remainder as well
        return 1
    if number := _ending_signal():
        return _fail(
            KeyboardInterrupt()
            if number == signal.SIGINT
            else SystemExit(128 + number)
        )
    traceback.print_exception(error)
    _one_line("this is a bug in clusim; please report it with the lines above")
    return EXIT_BUG


def run(args: list[str] | None = None) -> int:
    """Run the command line `args` and return its exit code."""
    # Looking for plugins of pydantic reads the metadata of every installed package.
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
    if isinstance(sys.stdout, io.TextIOWrapper):
        # Names of files need not be Unicode; printing one must not fail.
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        with guard_inputs():
            code = cli.main(args, prog_name="clusim", standalone_mode=False)
        sys.stdout.flush()
    except SystemExit:
        raise
    except BaseException as error:
        return _fail(error)
    finally:
        _report_refused()
    return code if isinstance(code, int) else 0


def _report_refused() -> None:
    """Report folders that were not used as a cache, each once."""
    kept = sys.modules.get("clusim.base.kept")
    while kept is not None and kept.refused:
        _one_line(kept.refused.popitem()[1])


def _open_streams() -> None:
    """Open the null device in place of closed standard streams.

    Otherwise the next opened file would have the number of standard output, and receive all text.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            # The lowest free number is this one, because those below are open.
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)
        if getattr(sys, name) is None:
            stream = os.fdopen(
                number, "w" if number else "r", encoding="utf-8", closefd=False
            )
            setattr(sys, name, stream)


def _signalled(error: BaseException) -> BaseException:
    """Return the end by a signal that caused an error, otherwise the error.

    The error may be of an interrupted import, for example.
    """
    seen: list[BaseException] = []
    link: BaseException | None = error
    while link is not None and link not in seen:
        if isinstance(link, (KeyboardInterrupt, SystemExit)):
            return link
        seen.append(link)
        link = link.__cause__ or link.__context__
    return error


_arrivals: list[int] = []
"""Read end of the pipe to which the interpreter writes the number of each signal."""


def _ending_signal() -> int:
    """Return the signal that ends this command, 0 if there was no signal.

    Compiled libraries replace the exception of a signal with an unrelated error.
    """
    numbers = b""
    for pipe in _arrivals:
        with contextlib.suppress(BlockingIOError):
            numbers += os.read(pipe, 1 << 16)
    ends = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    return next((number for number in numbers if number in ends), 0)


def _send_again(swallowed: sys.UnraisableHookArgs) -> None:
    """Repeat a signal after an interpreter callback dropped its exception."""
    error = swallowed.exc_value
    number = signal.SIGINT if isinstance(error, KeyboardInterrupt) else 0
    if (
        isinstance(error, SystemExit)
        and isinstance(error.code, int)
        and error.code > 128
    ):
        number = signal.Signals(error.code - 128)
    if number:
        threading.Timer(0.02, os.kill, (os.getpid(), number)).start()
    elif not isinstance(error, TimeLimitReached):  # its timer repeats
        sys.__unraisablehook__(swallowed)


def _terminated(number: int, _frame: object) -> NoReturn:
    """End as after Ctrl-C: remove half-written files, keep the recorded part of a run."""
    raise SystemExit(128 + number)


def main() -> NoReturn:
    """Run the command line of this process and exit."""
    resources.cached = True
    _open_streams()
    # Few objects of a short run are garbage; the defaults search for it every 700 objects.
    gc.set_threshold(100_000, 20, 50)
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is signal.SIG_DFL:  # `nohup` ignores it
            signal.signal(number, _terminated)
    sys.unraisablehook = _send_again
    reading, writing = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    _arrivals.append(reading)
    sys.exit(run())
