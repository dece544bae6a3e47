"""``clusim torchrun``: an unmodified PyTorch program on a simulated system."""

from __future__ import annotations

import json
from typing import Any

import click

from clusim_cli import options
from clusim_cli.outputs import GuardedCommand

DEFAULT = "dgx-h100"


@click.command(
    "torchrun",
    cls=GuardedCommand,
    short_help="Run a PyTorch program on a simulated system.",
    context_settings={"allow_interspersed_args": False},
)
@click.argument("program")
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
@options.topology(default=DEFAULT)
@options.nodes()
@click.option("--rank", type=click.IntRange(0), default=0, show_default=True,
              help="Rank that runs, and represents all.")  # fmt: skip
@click.option("-m", "--module", is_flag=True, help="PROGRAM is the name of a module.")
@options.env()
@options.nccl_version()
@options.as_json("clusim.programs:ProgramRun")
def command(program: str, arguments: tuple[str, ...], as_json: bool, **given: Any) -> int:
    """Run PROGRAM, a PyTorch script, as one rank of a job on all GPUs of a system.

    The program sees the system's GPUs as CUDA devices and NCCL as the back end, and measures virtual time: of kernels
    by the tables of `clusim train`, of collectives by simulation. Tensors on a GPU are without data; an unknown value
    that is read is 1.0, 1 or False. All ranks do the same work. Everything after PROGRAM is passed to it.

    PyTorch (a CPU build is enough) and a C++ compiler are required.
    """
    from clusim.programs import TorchProgram, run_program
    from clusim.replays.placing import ReplayRequest

    request = ReplayRequest(
        (), given["topology"], given["nodes"], env=given["env"], version=given["version"]
    )
    result = run_program(TorchProgram(program, arguments, given["module"]), request, given["rank"])
    click.echo(json.dumps(result.to_json()) if as_json else f"\n{result.report()}")
    return 0
