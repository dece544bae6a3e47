"""``clusim explain``: what NCCL would choose on a topology, and why."""

from __future__ import annotations

import json

import click

from clusim_cli.outputs import GuardedCommand
from clusim_cli.params import SIZE

__all__ = ["command"]

COLLECTIVES = ("allreduce", "allgather", "reducescatter", "broadcast", "reduce")


class _Collective(click.ParamType[str]):
    name = "collective"

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
        word = value.lower().replace("_", "").replace("-", "").removesuffix("perf")
        if word not in COLLECTIVES:
            self.fail(f"{value!r}: not a collective; give {', '.join(COLLECTIVES)}", param, ctx)
        return word


@click.command(
    "explain", cls=GuardedCommand, short_help="Show what NCCL would choose on a topology, and why."
)
@click.argument("topology")
@click.option(
    "--collective",
    "-c",
    type=_Collective(),
    default="allreduce",
    show_default=True,
    help="allreduce, allgather, reducescatter, broadcast or reduce.",
)
@click.option(
    "--size",
    "sizes",
    type=SIZE,
    multiple=True,
    help="Size as in nccl-tests, the larger of what a rank sends and receives; may be repeated.",
)
@click.option("--nodes", type=click.IntRange(1), help="Join so many of these machines.")
@click.option("--nccl-version", default="2.27", show_default=True, help="2.4 to 2.30.")
@click.option(
    "--env",
    "environment",
    multiple=True,
    metavar="NAME=VALUE",
    help="A variable of NCCL, for example NCCL_ALGO=Ring,Tree; may be repeated.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def command(
    topology: str,
    collective: str,
    sizes: tuple[int, ...],
    nodes: int | None,
    nccl_version: str,
    environment: tuple[str, ...],
    as_json: bool,
) -> None:
    """Show what NCCL would choose on TOPOLOGY: rings, trees, NVLS heads, channels, its cost table, and for every
    size the algorithm, protocol, channels, threads and chunk, with the rule that decided."""
    from clusim import fabric
    from clusim.nccl import Collective, communicator, parse_assignments, parse_env, parse_version
    from clusim.nccl.explain import SIZES, explain, render

    version = parse_version(nccl_version)
    settings = parse_env(parse_assignments(environment))
    comm = communicator(fabric.load(topology, nodes=nodes), version, settings)
    data = explain(comm, Collective[collective.upper()], sizes or SIZES)
    click.echo(json.dumps(data) if as_json else render(data))
