"""``clusim replay``: a recorded job again, on its own machine or another one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from clusim_cli.outputs import TRACE_OUT, GuardedCommand
from clusim_cli.params import GRANULARITY, NODES, SIZE, TIME, command_line
from clusim_cli.progress import counted_progress

__all__ = ["command"]


class _Gap(click.ParamType[Any]):
    name = "none|logged|time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if isinstance(value, int) or value in ("", "none", "logged"):
            return value
        return TIME.convert(value, param, ctx)


class _Call(click.ParamType[tuple[str, int]]):
    name = "operation:size"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, int]:
        if isinstance(value, tuple):
            return value
        name, colon, size = str(value).partition(":")
        if not colon or not name:
            self.fail(f"{value!r}: write OPERATION:SIZE, for example allreduce:64MiB", param, ctx)
        return name, SIZE.convert(size, param, ctx)


@click.command("replay", cls=GuardedCommand, short_help="Replay logs and traces of real jobs.")
@click.argument("recording", nargs=-1, required=True, metavar="LOG...")
@click.option("--topology", help="Preset or topology file.  [default: concluded from the log]")
@NODES
@click.option("--xml", type=click.Path(exists=True, dir_okay=False, path_type=Path),
              help="The machine as NCCL_TOPO_DUMP_FILE wrote it.")  # fmt: skip
@click.option("--as", "other", metavar="TOPOLOGY", help="Replay on this machine, too, and compare.")
@click.option("--gap", type=_Gap(), default="",
              help="Time between calls: none, as logged, or so long.  [default: logged if durations are]")  # fmt: skip
@click.option(
    "--env", multiple=True, metavar="NAME=VALUE", help="Variable of NCCL; may be repeated."
)
@click.option("--nccl-version", "--nccl", "version", default="",
              help="Release of NCCL.  [default: the log's]")  # fmt: skip
@click.option("--replan", is_flag=True, help="Let rings, trees and algorithms be chosen anew.")
@click.option(
    "--whole", is_flag=True, help="Simulate a log as one run: communicators share the wires."
)
@click.option("--kind", default="", help="Format of the recording.  [default: detected]")
@click.option("--call", "asked", type=_Call(), multiple=True, metavar="OPERATION:SIZE",
              help="For a log without calls: run this on its communicators; may be repeated.")  # fmt: skip
@click.option("--calls", type=click.IntRange(1), metavar="N", help="Replay only the first N calls.")
@click.option("--granularity", type=GRANULARITY, default="auto", show_default=True,
              help="As of `clusim run`.")  # fmt: skip
@click.option("--trace-out", type=TRACE_OUT, help="Write an HDF5 trace.")
@click.option("--all", "everything", is_flag=True, help="Print long lists to their end.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.option("--no-progress", is_flag=True, help="Show no progress bar.")
def command(recording: tuple[str, ...], no_progress: bool, **options: Any) -> None:
    """Simulate the job that LOG recorded, on its own machine and on others.

    LOG is what NCCL_DEBUG=INFO made NCCL or RCCL print, plain or compressed, - for standard input; several files are
    one job. Other formats are traces of other tools; --kind names one. Predicted times stand beside measured ones where
    the recording has them.
    """
    from clusim.nccl import parse_assignments
    from clusim.replaying import replay, replay_report
    from clusim.replaying.front import Request

    if options["topology"] and options["xml"]:
        raise click.UsageError("--topology and --xml name the same thing; give one")
    with counted_progress(not no_progress, "calls") as progress:
        request = Request(
            recording,
            topology=options["xml"] or options["topology"],
            nodes=options["nodes"],
            other=options["other"],
            gap=options["gap"],
            env=tuple(parse_assignments(options["env"]).items()),
            replan=options["replan"],
            whole=options["whole"],
            asked=options["asked"],
            calls=options["calls"],
            granularity=options["granularity"],
            version=options["version"],
            trace_out=options["trace_out"],
            command=command_line(),
            progress=progress,
        )
        found = replay(request, options["kind"])
    if options["as_json"]:
        click.echo(json.dumps(found.to_json()))
    else:
        click.echo(replay_report(found, everything=options["everything"]))
