"""Output files of commands; a command never replaces a file that it reads."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from textwrap import wrap
from typing import TYPE_CHECKING, Any

import click

from clusim.base import files
from clusim.base.errors import suggest
from clusim.base.tables import WIDTH, wrap_line
from clusim_cli.params import Value
from clusim_cli.terminal import fitting

if TYPE_CHECKING:
    from clusim.base.executors import Jobs
    from clusim.simulation.setup import Setup


class OutputFile(click.Path):
    """Name of a file that the command writes; a trace is first written under another name.

    Parameters
    ----------
    needs : callable
        Raise an error if a package for the file is missing; called before the command runs.
    """

    def __init__(
        self,
        *,
        trace: bool = False,
        needs: Callable[[Path], object] = lambda path: None,
    ) -> None:
        super().__init__(path_type=Path)
        self.trace, self.needs = trace, needs


def _drawn(path: Path) -> None:
    from clusim.base.display import need_matplotlib, picture_format

    need_matplotlib()
    if path.suffix:
        picture_format(path)


OUTPUT = OutputFile()
PICTURE = OutputFile(needs=_drawn)
TRACE_OUT = OutputFile(trace=True)

MEANT = {
    **dict.fromkeys(("gpus", "ranks", "g", "ngpus"), ("gpus", "ranks", "g")),
    **dict.fromkeys(("machines", "hosts", "servers", "num-nodes", "n"), ("nodes",)),
    **dict.fromkeys(("operation", "op", "coll"), ("collective",)),
    **dict.fromkeys(("bytes", "msg", "b", "e", "s"), ("size", "message")),
    **dict.fromkeys(
        ("trace", "record", "out", "output", "o"), ("output", "trace-out")
    ),
    **dict.fromkeys(("type", "datatype", "d"), ("dtype",)),
    **dict.fromkeys(("reduction", "reduce-op"), ("redop",)),
    **dict.fromkeys(("workers", "processes", "parallel", "j"), ("jobs",)),
    **dict.fromkeys(("timeout", "limit", "max-time"), ("time-limit",)),
    **dict.fromkeys(("quiet", "silent", "q"), ("no-progress",)),
    **dict.fromkeys(("machine", "preset", "fabric", "system"), ("topology", "as")),
    **dict.fromkeys(("nccl", "release", "version"), ("nccl-version",)),
    **dict.fromkeys(("environment", "var", "x"), ("env",)),
    **dict.fromkeys(("check", "validate"), ("verify",)),
    **dict.fromkeys(("format", "form"), ("kind",)),
    **dict.fromkeys(("break", "fail", "broken"), ("fault",)),
    **dict.fromkeys(("exact", "grain", "burst"), ("granularity",)),
}
"""Frequent wrong option names -> possible options; a command has one."""

MAY_NAME_FILES = ("topology", "other", "system")
"""Options that accept the name of a preset or of a file."""


class GuardedCommand(click.Command):
    """Command that refuses to overwrite its input files or to write one file twice.

    Input files found only at run time, such as those named by a topology, are protected by
    `clusim.base.files` at the time of writing. Output is wrapped unless `raw`, for output that other tools
    read; output in a `foreign` form, such as the table of nccl-tests, is wrapped in terminals only. Commands
    without a progress bar accept ``--no-progress`` without effect, so that scripts can pass it to every
    command.
    """

    def __init__(
        self, *args: Any, raw: bool = False, foreign: bool = False, **about: Any
    ) -> None:
        super().__init__(*args, **about)
        self.raw = raw
        self.foreign = foreign
        if not any("--no-progress" in param.opts for param in self.params):
            flag: Any = {"is_flag": True, "hidden": True, "expose_value": False}
            words = "Show no progress bar."
            self.params.append(click.Option(["--no-progress"], help=words, **flag))

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the arguments; suggest alternatives for an unknown option."""
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            known = {
                flag.lstrip("-"): flag
                for param in self.get_params(ctx)
                for flag in param.opts
            }
            word = error.option_name.lstrip("-")
            meant = next(
                (name for name in MEANT.get(word, ()) if name in known), None
            )
            hint = suggest(word, known, {word: meant} if meant else {})
            for name, flag in known.items():
                hint = hint.replace(repr(name), repr(flag))
            if "did you mean" not in hint:
                hint = f"; {ctx.command_path} --help lists them"
            raise click.UsageError(
                f"no option {error.option_name!r}{hint}", ctx
            ) from None

    def format_epilog(
        self, ctx: click.Context, formatter: click.HelpFormatter
    ) -> None:
        """Write the accepted words of parameters that their help omits."""
        rows = [
            (
                param.make_metavar(ctx)
                if isinstance(param, click.Argument)
                else param.opts[0],
                words,
            )
            for param in self.get_params(ctx)
            if isinstance(param.type, Value) and (words := param.type.told())
        ]
        if rows:
            with formatter.section("Words"):
                for name, words in rows:
                    formatter.write(f"  {name}\n")
                    for line in wrap(
                        words, formatter.width - 4, break_on_hyphens=False
                    ):
                        formatter.write(f"    {line}\n")
        if any("--json" in param.opts for param in self.params):
            formatter.write("\nTerms of the output: clusim glossary [TERM]\n")
        super().format_epilog(ctx, formatter)

    def invoke(self, ctx: click.Context) -> Any:
        """Compare output files with input files, then run."""
        written: list[tuple[str, Path]] = []
        for param in self.params:
            value = ctx.params.get(param.name or "")
            if isinstance(param.type, OutputFile):
                if value is not None:
                    written.append((max(param.opts, key=len), value))
            elif (
                isinstance(param, click.Argument)
                or isinstance(param.type, click.Path)
                or param.name in MAY_NAME_FILES
            ):
                for name in _names(value):
                    files.note_input(name)
        files.distinct(written)
        for param in self.params:
            value = ctx.params.get(param.name or "")
            if isinstance(param.type, OutputFile) and value is not None:
                files.refuse_inputs(value)
                param.type.needs(value)
                if param.type.trace:
                    files.refuse_inputs(f"{files.destination(value)}.partial")
        given = ctx.params
        outputs = [
            given[param.name]
            for param in self.params
            if isinstance(param.type, OutputFile)
        ]
        streams = any(
            value is not None and files.is_stream(value) for value in outputs
        )
        if self.raw or streams or given.get("as_json") or given.get("as_csv"):
            return super().invoke(ctx)
        with fitting(None if self.foreign else WIDTH):
            return super().invoke(ctx)


class GuardedGroup(click.Group):
    """A group of such commands."""

    command_class = GuardedCommand


def _names(value: Any) -> Iterator[str]:
    """Yield possible file names among the values of a parameter."""
    if isinstance(value, str | Path):
        yield str(value)
    elif isinstance(value, tuple):
        for part in value:
            yield from _names(part)


@contextmanager
def working(jobs: int | None, address: str | None) -> Iterator[Jobs]:
    """Yield the workers: local processes, or the executor at an address."""
    if address is None:
        yield jobs
        return
    if jobs is not None:
        raise click.UsageError(
            "--jobs (local processes) and --executor exclude each other"
        )
    from clusim.base.executors import connect_executor

    with connect_executor(address) as executor:
        yield executor


def doubts(
    setup: Setup, strict: bool, *, mark: str = "", quiet: bool = False
) -> list[str]:
    """Print doubts about a system before any other output, and return them.

    Parameters
    ----------
    strict : bool
        Raise `InputError` instead.
    mark : str
        Comment prefix of lines, in formats with comments.
    quiet : bool
        Only return the doubts, for inclusion in an object.
    """
    from clusim.topology.model import doubt_lines, refuse

    result = setup.doubts
    if strict:
        refuse(result, setup.name)
    for line in doubt_lines(result) if not quiet else ():
        click.echo("\n".join(wrap_line(f"{mark}{line}")))
    return result


def beside(trace: Path, ending: str, output: Path | None) -> Path:
    """Return `output`, or a file next to `trace` with another extension.

    `trace` may be the remainder of a killed run.
    """
    stem = trace.name.removesuffix(".partial").removesuffix(".h5")
    return output or trace.with_name(stem + ending)


def echo_done(target: Path, message: str) -> None:
    """Report the written file, on stderr if the data were written to standard output."""
    click.echo(f"{target}: {message}", err=files.is_stream(target))
