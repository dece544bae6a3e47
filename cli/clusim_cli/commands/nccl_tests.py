"""``clusim nccl-tests``: predicted output of nccl-tests programs."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from clusim.base.errors import InputError
from clusim.base.files import check_place, write_text
from clusim.nccltests.options import FLAGS, parse_flags
from clusim_cli import options
from clusim_cli.outputs import GuardedCommand, doubts, working
from clusim_cli.params import TIME, TOPOLOGY, one_of
from clusim_cli.progress import counted_progress

if TYPE_CHECKING:
    from collections.abc import Callable

    from clusim.nccltests.api import Table
    from clusim.nccltests.options import PerfOptions
    from clusim.studies.whatif import PerfRun
    from clusim.validation.collectives.against import Search
    from clusim.validation.collectives.measuredcurve import MeasuredCurve

TIME_LIMIT_PS = 60 * 10**12
"""Default wall-clock limit of the causes [ps]."""


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
@options.domains()
@click.option("--procs-per-node", type=click.IntRange(1),
              help="Processes on each node.  [default: 1 with -g or -t, else one per GPU]")  # fmt: skip
@click.option("--harness", type=one_of("nccl-tests", "torch", pytorch="torch", python="torch"),
              default="nccl-tests", show_default=True,
              help="Launcher: the program itself, or a Python loop around torch.distributed.")  # fmt: skip
@options.env()
@options.nccl_version()
@options.policy()
@options.jobs()
@options.executor()
@click.option(
    "--explain",
    is_flag=True,
    help="Print the bottleneck of every row's kernel below the table.",
)
@options.against(
    more="Causes are ranked if they are slow. FILE is an output of nccl-tests."
)
@click.option("--time-limit", "limit_ps", type=TIME, metavar="TIME",
              help="Wall-clock limit, such as 90s; the partial result is printed. Of the causes of --against."
              "  [default: 60s]")  # fmt: skip
@options.plot(more="It has the bus bandwidth of every size.")
@options.strict()
@options.as_json("clusim_cli.forms:PerfAgainstJson", "As -J writes it.")
@options.no_progress()
@_flags
def command(
    program: str,
    topology: str,
    nodes: int | None,
    domains: tuple[int, int] | None,
    procs_per_node: int | None,
    harness: str,
    env: tuple[tuple[str, str], ...],
    version: str,
    policy: str,
    jobs: int | None,
    executor: str | None,
    explain: bool,
    against: Path | None,
    limit_ps: int | None,
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

    With --against, the sizes, type, reduction, -g and -t are read from the measured table. If a range of sizes
    deviates from the prediction, possible causes, such as another protocol or algorithm, fewer channels, a failed link
    or disabled GPUDirect RDMA, are simulated at its smallest sizes, the cheapest first, and ranked by their deviation
    from the measurement.
    """
    from clusim.nccltests.api import Table
    from clusim.nccltests.sweep import place, program_named
    from clusim.simulation.setup import Setup
    from clusim.validation.collectives.against import Search
    from clusim.validation.collectives.measuredcurve import read_curve

    _check_options(against, limit_ps, plot)
    test, wanted = program_named(program), _wanted(flags)
    curve = None if against is None else read_curve(against, test)
    wanted = wanted if curve is None else curve.apply_to(wanted)
    setup = Setup(topology, nodes, version=version, env=env, policy=policy)
    doubtful = doubts(setup, strict, mark="# ", quiet=as_json)
    where = place(setup, wanted, procs_per_node, harness, domains)
    target = _output(wanted)
    data: dict[str, Any] = {"doubts": doubtful} if doubtful else {}
    with (
        working(jobs, executor) as workers,
        counted_progress(not no_progress, "simulated") as progress,
    ):
        result = Table(where, test, wanted)
        tell = _silent if as_json else click.echo
        if curve is None:
            for text, _ in result.simulated(jobs=workers):
                tell(text)
        else:
            limit = TIME_LIMIT_PS if limit_ps is None else limit_ps
            search = Search(workers, progress, limit)
            data["against"] = _compared(curve, result, tell, search)
    for text in result.verdict_comments() if explain else ():
        tell(text)
    if plot is not None:
        result.plot(measured_us=None if curve is None else curve.times_us).save(plot)
    data = result.to_json(["clusim", *sys.argv[1:]]) | data
    if target is not None:
        write_text(target, json.dumps(data) + "\n")
    if as_json:
        click.echo(json.dumps(data))
    return int(data["out_of_bounds"]["count"] > 0)


def _check_options(
    against: Path | None, limit_ps: int | None, plot: Path | None
) -> None:
    """Refuse a limit of time without --against, and a picture that cannot be written."""
    if limit_ps is not None and against is None:
        message = "--time-limit limits the causes of --against; add --against FILE"
        raise click.UsageError(message)
    if plot is not None:
        check_place(plot)


def _silent(_: str) -> None:
    """Discard a line."""


def _compared(
    curve: MeasuredCurve, table: Table, tell: Callable[[str], None], search: Search
) -> dict[str, Any]:
    """Simulate a table row by row and compare it with a curve; return the JSON form."""
    from clusim.validation.collectives.against import (
        Against,
        compare,
        head_lines,
        row_of,
    )

    for text in head_lines(curve, table):
        tell(text)
    for _, line in table.simulated(jobs=search.jobs):
        if line is not None:
            tell(row_of(curve, line).text())
    for text in Against(curve, table).error_lines():
        tell(text)
    compared = compare(curve, table, search)
    for text in compared.cause_lines():
        tell(text)
    return compared.to_json()


def _wanted(flags: dict[str, str | None]) -> PerfOptions:
    return parse_flags(
        {name: value for name, value in flags.items() if value is not None}
    )


def asked(faults: tuple[str, ...] = (), **given: Any) -> PerfRun:
    """Return the requested run; nccl-tests has no flag for the faults."""
    from clusim.nccltests.sweep import place, program_named
    from clusim.simulation.request import taken
    from clusim.simulation.setup import Setup
    from clusim.studies.whatif import PerfRun

    wanted = _wanted({flag.name: given[flag.name] for flag in FLAGS})
    setup = Setup(faults=faults, **taken(given, Setup))
    where = place(
        setup, wanted, given["procs_per_node"], given["harness"], given["domains"]
    )
    return PerfRun(where, program_named(given["program"]), wanted)


def _output(options: PerfOptions) -> Path | None:
    if not options.output_file:
        return None
    path = Path(options.output_file)
    if not path.parent.is_dir():
        raise InputError(f"-J {options.output_file}: no directory {path.parent}")
    check_place(path)
    return path
