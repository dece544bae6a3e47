"""``clusim crossover``: the best algorithm for every size."""

from __future__ import annotations

import json

import click

from clusim_cli import options
from clusim_cli.outputs import GuardedCommand, doubts, working
from clusim_cli.params import TOPOLOGY
from clusim_cli.progress import counted_progress


@click.command(
    "crossover",
    cls=GuardedCommand,
    short_help="Find the best algorithm for every size.",
)
@click.argument("topology", type=TOPOLOGY)
@options.nodes()
@options.collective()
@options.sizes(said="1 KiB to 1 GiB, times 4")
@click.option(
    "--gpus",
    type=click.IntRange(1),
    help="Participating GPUs of each node.  [default: all]",
)
@options.nccl_version()
@options.env()
@options.as_csv(more="It is the configuration of NCCL's example tuner plugin.")
@options.strict()
@options.as_json("clusim_cli.forms:CrossoverSaidJson")
@options.jobs()
@options.executor()
@options.no_progress()
def command(
    topology: str,
    nodes: int | None,
    operation: str,
    sizes: tuple[int, ...],
    gpus: int | None,
    version: str,
    env: tuple[tuple[str, str], ...],
    as_csv: bool,
    strict: bool,
    as_json: bool,
    jobs: int | None,
    executor: str | None,
    no_progress: bool,
) -> None:
    """Simulate a collective on TOPOLOGY with every algorithm and protocol that NCCL could use and, for all-reduce in
    one node, with the one-shot and two-shot kernels of inference engines, and show the sizes at which the best one
    changes.

    Prints the time of an iteration as nccl-tests reports it with one process per GPU. With --csv: a configuration for
    the tuner plugin in NCCL's sources, with NCCL's best choice for each range of sizes.
    """
    from clusim.simulation.setup import Setup
    from clusim.studies.crossover import SIZES, crossover, table_lines, tuner_csv

    setup = Setup(topology, nodes, gpus, version, env)
    doubtful = doubts(setup, strict, mark="# " if as_csv else "", quiet=as_json)
    wanted = tuple(sorted(set(sizes))) or SIZES
    with (
        working(jobs, executor) as workers,
        counted_progress(not no_progress, "simulated") as progress,
    ):
        result = crossover(setup, operation, wanted, jobs=workers, progress=progress)
    if as_json:
        click.echo(json.dumps({**result.to_json(), "doubts": doubtful}))
    else:
        click.echo("\n".join(tuner_csv(result) if as_csv else table_lines(result)))
