"""``clusim crossover``: the best algorithm for every size."""

from __future__ import annotations

import json

import click

from clusim_cli.outputs import GuardedCommand
from clusim_cli.params import ENV, NCCL_VERSION, NODES, SIZE
from clusim_cli.progress import counted_progress

__all__ = ["command"]


@click.command(
    "crossover", cls=GuardedCommand, short_help="Find the best algorithm for every size."
)
@click.argument("topology")
@NODES
@click.option("--collective", "-c", default="allreduce", show_default=True,
              help="allreduce, allgather, reducescatter, broadcast or reduce.")  # fmt: skip
@click.option("--size", "sizes", type=SIZE, multiple=True,
              help="May be repeated.  [default: 1 KiB to 1 GiB, times 4]")  # fmt: skip
@click.option(
    "--gpus", type=click.IntRange(1), help="GPUs of each machine that take part.  [default: all]"
)
@NCCL_VERSION
@ENV
@click.option(
    "--csv", "as_csv", is_flag=True, help="Print the configuration of NCCL's example tuner plugin."
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.option("--jobs", type=click.IntRange(1), help="Worker processes.  [default: one per core]")
@click.option("--no-progress", is_flag=True, help="Show no progress bar.")
def command(
    topology: str,
    nodes: int | None,
    collective: str,
    sizes: tuple[int, ...],
    gpus: int | None,
    version: str,
    environment: tuple[str, ...],
    as_csv: bool,
    as_json: bool,
    jobs: int | None,
    no_progress: bool,
) -> None:
    """Simulate a collective on TOPOLOGY with everything NCCL could use and, for all-reduce inside a machine, with the
    one-shot and two-shot kernels of inference engines, and show where the best one changes.

    Prints the time of an iteration as nccl-tests reports it with one process per GPU. With --csv: a configuration for
    the tuner plugin in NCCL's sources, with the best of what NCCL has for each range of sizes.
    """
    from clusim.nccl import parse_assignments
    from clusim.nccltests.crossover import SIZES, crossover, table_lines, tuner_csv
    from clusim.nccltests.operations import program_named
    from clusim.run.setup import Setup

    env = tuple(parse_assignments(environment).items())
    setup = Setup(topology, nodes, gpus, version, env)
    operation = program_named(collective).of.name
    wanted = tuple(sorted(set(sizes))) or SIZES
    with counted_progress(not no_progress, "simulated") as progress:
        found = crossover(setup, operation, wanted, jobs=jobs, progress=progress)
    if as_json:
        click.echo(json.dumps(found.to_json()))
    else:
        click.echo("\n".join(tuner_csv(found) if as_csv else table_lines(found)))
