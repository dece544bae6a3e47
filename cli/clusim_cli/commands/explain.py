"""``clusim explain``: what NCCL would choose on a topology, and why."""

from __future__ import annotations

import json

import click

from clusim_cli.outputs import GuardedCommand
from clusim_cli.params import ENV, NCCL_VERSION, SIZE

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
@NCCL_VERSION
@ENV
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def command(
    topology: str,
    collective: str,
    sizes: tuple[int, ...],
    nodes: int | None,
    version: str,
    environment: tuple[str, ...],
    as_json: bool,
) -> None:
    """Show what NCCL would choose on TOPOLOGY: rings, trees, NVLS heads, channels, its cost table, and for every
    size the algorithm, protocol, channels, threads and chunk, with the rule that decided. Faults that the topology's
    file has at time 0 are known to the plan."""
    from clusim.nccl import Collective, parse_assignments
    from clusim.nccl.explain import SIZES, explain, render
    from clusim.run.setup import Setup

    env = tuple(parse_assignments(environment).items())
    setup = Setup(topology, nodes, version=version, env=env)
    wanted = Collective[collective.upper()]
    notes = setup.said(wanted, sizes or SIZES)
    data = explain(setup.comm, wanted, sizes or SIZES, faults=setup.broken.lines, notes=notes)
    click.echo(json.dumps(data) if as_json else render(data))
