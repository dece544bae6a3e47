"""``clusim nccl-tests``: predicted output of nccl-tests programs."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from clusim.base.display import need_matplotlib, picture_format
from clusim.base.errors import InputError
from clusim.base.files import check_place, write_text
from clusim.nccltests.options import FLAGS, parse_flags
from clusim_cli import options
from clusim_cli.outputs import GuardedCommand, doubts, working
from clusim_cli.params import TOPOLOGY, one_of
from clusim_cli.progress import counted_progress

if TYPE_CHECKING:
    from clusim.nccltests.options import PerfOptions
    from clusim.studies.whatif import PerfRun


def _flags(function: Any) -> Any:
    """Add the flags of nccl-tests, all as text, which its rules interpret."""
    for flag in reversed(FLAGS):
        option = click.option(
            f"-{flag.letter}",
            f"--{flag.name}",
            flag.name,
            metavar=flag.takes.upper(),
            help=f"nccl-tests: {flag.help}.",
        )
        function = option(function)
    return function


@click.command(
    "nccl-tests",
    cls=GuardedCommand,
    foreign=True,
    short_help="Print the predicted output of an nccl-tests program.",
)
@click.argument("program")
@click.argument("topology", type=TOPOLOGY)
@options.nodes()
@click.option("--procs-per-node", type=click.IntRange(1),
              help="Processes on each node.  [default: 1 with -g or -t, else one per GPU]")  # fmt: skip
@click.option("--harness", type=one_of("nccl-tests", "torch", pytorch="torch", python="torch"),
              default="nccl-tests", show_default=True,
              help="Launcher: the program itself, or a Python loop around torch.distributed.")  # fmt: skip
@options.env()
@options.nccl_version()
@options.jobs()
@options.executor()
@click.option(
    "--explain", is_flag=True, help="Print the bottleneck of every row's kernel below the table."
)
@click.option("--against", type=click.Path(path_type=Path), metavar="FILE",
              help="Compare with the nccl-tests output in FILE, and rank causes if it is slow.")  # fmt: skip
@options.plot(more="It has the bus bandwidth of every size.")
@options.strict()
@options.as_json("clusim_cli.forms:PerfAgainstJson", "As -J writes it.")
@options.no_progress()
@_flags
def command(
    program: str,
    topology: str,
    nodes: int | None,
    procs_per_node: int | None,
    harness: str,
    env: tuple[tuple[str, str], ...],
    version: str,
    jobs: int | None,
    executor: str | None,
    explain: bool,
    against: Path | None,
    plot: Path | None,
    strict: bool,
    as_json: bool,
    no_progress: bool,
    **flags: str | None,
) -> int:
    """Print the predicted output of the nccl-tests program PROGRAM on TOPOLOGY: all_reduce_perf, all_gather_perf,
    reduce_scatter_perf, broadcast_perf, reduce_perf, alltoall_perf, alltoallv_perf, gather_perf, scatter_perf,
    sendrecv_perf or hypercube_perf.

    The table has nccl-tests' columns and can be read by its parsers. Times include start and end, divided by the
    iterations, as in nccl-tests; in place and out of place are equal. With -c 1, data of small sizes are simulated and
    checked; N/A is not checked. Flags without effect on the simulated times are reported in the output.

    With --against, the sizes, type, reduction, -g and -t are read from the measured table. If a range of sizes is
    slower than predicted, possible causes, such as a failed link, disabled GPUDirect RDMA or fewer channels, are
    simulated and ranked by their deviation from the measurement.
    """
    from clusim.nccltests.api import table_of
    from clusim.nccltests.sweep import place, program_named
    from clusim.simulation.setup import Setup
    from clusim.validation.collectives.against import compare, read_curve

    test, wanted = program_named(program), _wanted(flags)
    if plot is not None:
        need_matplotlib()
        picture_format(plot)
        check_place(plot)
    curve = None if against is None else read_curve(against, test)
    if curve is not None:
        wanted = curve.applied(wanted)
    setup = Setup(topology, nodes, version=version, env=env)
    doubtful = doubts(setup, strict, mark="# ", quiet=as_json)
    where = place(setup, wanted, procs_per_node, harness)
    target = _output(wanted)
    data: dict[str, Any] = {}
    with (
        working(jobs, executor) as workers,
        counted_progress(not no_progress, "simulated") as progress,
    ):
        show = None if as_json or curve is not None else click.echo
        result = table_of(where, test, wanted, jobs=workers, show=show)
        if curve is not None:
            compared = compare(curve, result, jobs=workers, progress=progress)
            data["against"] = compared.to_json()
    if curve is not None and not as_json:
        click.echo("\n".join(compared.lines()))
    for text in result.explained() if explain else ():
        if not as_json:
            click.echo(text)
    if plot is not None:
        measured: dict[str, Any] = {} if curve is None else {"measured_us": curve.times_us}
        result.plot(**measured).save(plot)
    data |= {"doubts": doubtful} if doubtful else {}
    data = result.to_json(["clusim", *sys.argv[1:]]) | data
    if target is not None:
        write_text(target, json.dumps(data) + "\n")
    if as_json:
        click.echo(json.dumps(data))
    return int(data["out_of_bounds"]["count"] > 0)


def _wanted(flags: dict[str, str | None]) -> PerfOptions:
    return parse_flags({name: value for name, value in flags.items() if value is not None})


def asked(faults: tuple[str, ...] = (), **given: Any) -> PerfRun:
    """Return the requested run; nccl-tests has no flag for the faults."""
    from clusim.nccltests.sweep import place, program_named
    from clusim.simulation.request import taken
    from clusim.simulation.setup import Setup
    from clusim.studies.whatif import PerfRun

    wanted = _wanted({flag.name: given[flag.name] for flag in FLAGS})
    setup = Setup(faults=faults, **taken(given, Setup))
    where = place(setup, wanted, given["procs_per_node"], given["harness"])
    return PerfRun(where, program_named(given["program"]), wanted)


def _output(options: PerfOptions) -> Path | None:
    if not options.output_file:
        return None
    path = Path(options.output_file)
    if not path.parent.is_dir():
        raise InputError(f"-J {options.output_file}: no directory {path.parent}")
    check_place(path)
    return path
