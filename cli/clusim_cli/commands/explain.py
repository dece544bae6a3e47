"""``clusim explain``: NCCL's choices on a topology, with reasons."""

from __future__ import annotations

import json

import click

from clusim_cli import options
from clusim_cli.outputs import GuardedCommand, doubts
from clusim_cli.params import TOPOLOGY


@click.command(
    "explain",
    cls=GuardedCommand,
    short_help="Show NCCL's choices on a topology, and the reasons.",
)
@click.argument("topology", type=TOPOLOGY)
@options.collective()
@options.sizes(said="8 B to 8 GiB, times 4")
@options.nodes()
@options.nccl_version()
@options.env()
@options.symmetric()
@options.strict()
@options.as_json("clusim_cli.forms:ExplainSaidJson")
def command(
    topology: str,
    operation: str,
    sizes: tuple[int, ...],
    nodes: int | None,
    version: str,
    env: tuple[tuple[str, str], ...],
    symmetric: bool,
    strict: bool,
    as_json: bool,
) -> None:
    """Show NCCL's choices on TOPOLOGY: rings, trees, NVLS heads, channels, its cost table, and for every size the
    algorithm, protocol, channels, threads and chunk, with the deciding rule. The plan avoids faults that the
    topology's file has at time 0."""
    from clusim.base.terms.operations import COLLECTIVE_OF, operation_named
    from clusim.nccl.env import windows
    from clusim.nccl.explain import SIZES, explain, render
    from clusim.simulation.plan import idle_notes
    from clusim.simulation.request import Request
    from clusim.simulation.setup import Setup

    setup = Setup(topology, nodes, version=version, env=(*env, *windows(symmetric)))
    result = doubts(setup, strict, quiet=as_json)
    name = operation_named(operation, tuple(COLLECTIVE_OF)).name
    wanted = COLLECTIVE_OF[name]
    requests = (Request(setup, name, size_bytes) for size_bytes in sizes or SIZES)
    notes = (*setup.said(wanted, sizes or SIZES), *idle_notes(requests))
    data = explain(
        setup.comm, wanted, sizes or SIZES, faults=setup.broken.lines, notes=notes
    )
    click.echo(json.dumps({**data, "doubts": result}) if as_json else render(data))
