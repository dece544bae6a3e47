"""``clusim replay``: replay of a recorded job on its system or another one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from clusim.base.errors import InputError
from clusim.base.units import parse_size, parse_time
from clusim_cli import options
from clusim_cli.outputs import GuardedCommand
from clusim_cli.params import (
    RECORDING,
    RECORDING_KIND,
    TOPOLOGY,
    Value,
    command_line,
)
from clusim_cli.progress import Shown, counted_progress, said_ended, shown_progress

if TYPE_CHECKING:
    from clusim.replays import CallResult, Replay, ReplayRequest
    from clusim.simulation.expected import Expected, MeasuredError


def _gap(text: str) -> int | str:
    return (
        text.lower() if text.lower() in ("", "none", "logged") else parse_time(text)
    )


def _call(text: str) -> tuple[str, int]:
    name, colon, size = text.partition(":")
    if not colon or not name:
        raise InputError(
            f"{text!r}: write OPERATION:SIZE, for example allreduce:64MiB"
        )
    return name, parse_size(size, binary_suffix=True)


@click.command(
    "replay", cls=GuardedCommand, short_help="Replay logs and traces of real jobs."
)
@click.argument(
    "recording", nargs=-1, required=True, metavar="LOG... [TOPOLOGY]", type=RECORDING
)
@options.topology(said="concluded from the log")
@options.nodes()
@click.option("--xml", type=click.Path(exists=True, dir_okay=False, path_type=Path),
              help="The node as NCCL_TOPO_DUMP_FILE wrote it.")  # fmt: skip
@click.option(
    "--as",
    "other",
    type=TOPOLOGY,
    metavar="TOPOLOGY",
    help="Also replay on this system, and compare.",
)
@click.option("--gap", type=Value("none|logged|time", _gap), default="",
              help="Time between calls: none, logged, or fixed.  [default: logged if durations are]")  # fmt: skip
@options.env()
@options.nccl_version(said="the log's")
@options.faults()
@options.policy()
@click.option("--replan", is_flag=True, help="Re-plan rings, trees and algorithms.")
@click.option(
    "--whole",
    is_flag=True,
    help="Simulate a log as one run: communicators share the wires.",
)
@options.kind(type=RECORDING_KIND)
@click.option("--call", "asked", type=Value("operation:size", _call), multiple=True, metavar="OPERATION:SIZE",
              help="For a log without calls: run this on its communicators; may be repeated.")  # fmt: skip
@click.option(
    "--calls",
    type=click.IntRange(1),
    metavar="N",
    help="Replay only the first N calls.",
)
@options.strict(
    more="These are times far from measured ones, a guessed system, or more ranks than GPUs."
)
@options.granularity()
@options.confirm(more="All changes; automatic up to about 2 s.")
@options.time_limit()
@options.trace_out()
@options.html(more="Measured against simulated times on one axis.")
@options.all_lines()
@options.as_json("clusim_cli.forms:ReplaySaidJson")
@options.no_progress()
def command(recording: tuple[str, ...], no_progress: bool, **given: Any) -> int:
    """Simulate the job recorded in LOG, on the recorded system or another one.

    LOG is the output of NCCL or RCCL with NCCL_DEBUG=INFO, plain or compressed, - for standard input; several files are
    one job. Other formats are traces of other tools; --kind names one. Measured times of the recording are printed with
    the predicted times.

    TOPOLOGY is the system: a preset, a generator, or a file in YAML or NCCL's XML; --topology accepts files of any
    name.
    """
    from clusim.base.files import write_bytes
    from clusim.replays import replay, replay_report
    from clusim.replays.replayreport import replay_page
    from clusim.simulation.job import RunOptions
    from clusim.simulation.request import taken

    request = asked(recording=recording, **given)
    given["confirm"] = given["confirm"] or None
    with (
        shown_progress(False, given["trace_out"]) as shown,
        counted_progress(not no_progress, "calls") as progress,
    ):
        how = RunOptions(
            progress=shown.progress,
            command=command_line(),
            **taken(given, RunOptions),
        )
        result = replay(request, how, progress)
        result.diagnose()
    if given["html"] is not None:
        write_bytes(given["html"], replay_page(result).encode())
    expected = _expected(result)
    if given["as_json"]:
        errors = [
            {**item.error.to_json(), "calls": count}
            | ({"found": found.to_json()} if found else {})
            for item, count, found in expected
        ]
        click.echo(json.dumps({**result.to_json(), "expected_errors": errors}))
        return _ended(result, shown)
    click.echo(replay_report(result, everything=given["everything"]))
    for item, count, found in expected:
        click.echo(f"  {item.text()}: {count} call{'s' * (count != 1)}")
        if found is not None:
            click.echo(f"    {found.text()}")
    return _ended(result, shown)


def _ended(result: Replay, shown: Shown) -> int:
    """Return the exit code of a replay; report an early end on stderr."""
    verdict = result.verdict
    if result.unfinished is None and verdict is not None and verdict.unfinished:
        return shown.ended(f"not simulated: {verdict.unfinished}")
    return said_ended(result.unfinished, result.total_ps, shown)


def asked(**given: Any) -> ReplayRequest:
    """Return the request of the options."""
    from clusim.replays import ReplayRequest
    from clusim.simulation.request import taken
    from clusim.topology.loading import names_machine

    recording = given["recording"]
    machines = {"--topology": given.pop("topology"), "--xml": given["xml"]}
    if len(recording) > 1 and names_machine(recording[-1]):
        *files, machines["TOPOLOGY"] = recording
        recording = tuple(files)
    named = [name for name, value in machines.items() if value]
    if len(named) > 1:
        raise click.UsageError(f"{' and '.join(named)} are alternatives; use one")
    topology = machines[named[0]] if named else None
    return ReplayRequest(recording, topology, **taken(given, ReplayRequest))


def _expected(replay: Replay) -> list[tuple[Expected, int, MeasuredError | None]]:
    """Return the expected errors of the calls, with the number and the error of the calls of each."""
    from dataclasses import replace

    from clusim.base.tables import group_values
    from clusim.simulation.expected import (
        Expected,
        MeasuredError,
        RunPlace,
        expected_error,
    )

    machines = {comm.number: comm.machines for comm in replay.communicators}
    # The name of a system of several nodes begins with the preset of a node.
    system = replay.fabric.partition(":nodes=")[0]
    known = RunPlace.of_name(system, replay.family, replay.machines)

    def of(call: CallResult) -> Expected:
        if replay.faults:
            return Expected(None, "no measurements of systems with faults")
        place = replace(
            known, machines=machines.get(call.communicator, replay.machines)
        )
        return expected_error(place, call.bytes, call.algorithm)

    return [
        (
            item,
            sum(call.count for call in calls),
            MeasuredError.of(
                100 * call.error for call in calls if call.error is not None
            ),
        )
        for item, calls in group_values(
            (of(call), call) for call in replay.calls
        ).items()
    ]
