"""``clusim shrink``: a job that loses a rank and continues without it."""

from __future__ import annotations

import json

import click

from clusim_cli import options
from clusim_cli.outputs import GuardedCommand, doubts
from clusim_cli.params import TOPOLOGY


@click.command(
    "shrink", cls=GuardedCommand, short_help="Lose a rank, shrink, and continue."
)
@click.argument("topology", type=TOPOLOGY)
@options.nodes()
@options.collective()
@options.size(default="64MiB", more="Of each iteration.")
@options.lost_rank(required=True)
@options.nccl_version()
@options.env()
@options.strict()
@options.as_json("clusim.studies.shrink:ShrunkJob")
def command(
    topology: str,
    nodes: int | None,
    operation: str,
    size_bytes: int,
    iterations: int,
    rank: int,
    at_ps: int,
    detection_ps: int | None,
    shrink_ps: int | None,
    version: str,
    env: tuple[tuple[str, str], ...],
    strict: bool,
    as_json: bool,
) -> None:
    """Simulate a job of equal collectives on TOPOLOGY that loses a rank: the others detect it, make a communicator
    without it (ncclCommShrink), repeat the lost iteration and finish the job.
    """
    from clusim.simulation.setup import Setup
    from clusim.studies.shrink import RankLoss, lose_rank, shrunk_lines

    setup = Setup(topology, nodes, version=version, env=env)
    doubts(setup, strict, quiet=as_json)
    failure = RankLoss(rank, at_ps, detection_ps, shrink_ps)
    job = lose_rank(setup, operation, size_bytes, failure, iterations=iterations)
    click.echo(
        json.dumps(job.to_json()) if as_json else "\n".join(shrunk_lines(job))
    )
