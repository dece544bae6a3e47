"""``clusim exec``: an unmodified program that calls NCCL, on a simulated system."""

from __future__ import annotations

import click

from clusim_cli import options
from clusim_cli.outputs import GuardedCommand
from clusim_cli.params import TOPOLOGY


@click.command(
    "exec",
    cls=GuardedCommand,
    short_help="Run an NCCL program without GPUs.",
    context_settings={"allow_interspersed_args": False},
)
@options.nodes()
@options.env()
@options.nccl_version()
@options.policy()
@click.argument("topology", type=TOPOLOGY)
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
def command(
    topology: str,
    command: tuple[str, ...],
    nodes: int | None,
    env: tuple[tuple[str, str], ...],
    version: str,
    policy: str,
) -> int:
    """Run a program that calls NCCL and the CUDA runtime, such as a binary of nccl-tests, on TOPOLOGY: collectives have
    real data and simulated times, and the program's clocks are virtual.

    Options precede TOPOLOGY; arguments of the program follow its name. With MPI, start mpirun as the program;
    its ranks are distributed over the nodes. Variables NCCL_* of the environment have their effect. GPU code
    does not run: a kernel or function that is not simulated is an error with its name. CLUSIM_SHIM is the folder of
    another libnccl.so.2 than the installed one.
    """
    from clusim.shim.launcher import run_program
    from clusim.simulation.setup import Setup

    setup = Setup(topology, nodes, version=version, env=env, policy=policy)
    return run_program(setup, command)
