"""``clusim topo``: the topologies that are shipped, and checks of one's own."""

from __future__ import annotations

import click

__all__ = ["command"]


@click.group("topo", short_help="List, show and check topologies.")
def command() -> None:
    """List, show and check topologies."""


@command.command("list")
def list_topologies() -> None:
    """List the presets and the generators."""
    from clusim import fabric, resources
    from clusim.fabric.generators import GENERATORS

    for name in resources.shipped_topologies():
        preset = fabric.load(name)
        click.echo(f"{name:<16} {preset.num_ranks:>5} ranks  {preset.description}".rstrip())
    click.echo("")
    click.echo(f"generators: {', '.join(GENERATORS)}; for example fat-tree:k=8")


@command.command("show")
@click.argument("topology")
@click.option("--no-sources", is_flag=True, help="Leave out where the figures come from.")
def show(topology: str, no_sources: bool) -> None:
    """Print what TOPOLOGY consists of and where its figures come from."""
    from clusim import fabric

    click.echo(fabric.describe(fabric.load(topology), sources=not no_sources))


@command.command("check")
@click.argument("topologies", nargs=-1, required=True)
def check(topologies: tuple[str, ...]) -> None:
    """Check TOPOLOGIES: that they can be read, are connected, and can be simulated."""
    from clusim import fabric

    for name in topologies:
        machine = fabric.load(name)
        arrays = machine.lower()
        size = f"{machine.num_ranks} ranks, {len(machine.nodes)} nodes, {len(arrays.wires)} wires"
        click.echo(f"{name}: ok, {size}")
        for finding in fabric.check(machine):
            click.echo(f"  {finding.level}: {finding.what}")
