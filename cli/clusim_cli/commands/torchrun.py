"""``clusim torchrun`` and ``clusim capture``: an unmodified PyTorch program on a simulated system."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from clusim.base.units import parse_ranks
from clusim_cli import options
from clusim_cli.outputs import OUTPUT, GuardedCommand
from clusim_cli.params import Value

DEFAULT = "dgx-h100"


def _distinct(text: str) -> tuple[int, ...] | None:
    """Return the ranks that run: None for ``auto``, empty for ``all``."""
    word = text.strip().lower()
    return None if word == "auto" else () if word == "all" else parse_ranks(text)


def _compared(text: str) -> tuple[int, ...] | None:
    """Return the compared ranks: None for ``auto``, empty for ``off``."""
    word = text.strip().lower()
    return None if word == "auto" else () if word == "off" else parse_ranks(text)


def of_program(run: Callable[..., int]) -> Callable[..., int]:
    """Add the arguments and options of a program."""
    for option in reversed(
        (
            click.argument("program"),
            click.argument("arguments", nargs=-1, type=click.UNPROCESSED),
            options.topology(default=DEFAULT),
            options.nodes(),
            click.option("--nproc-per-node", type=click.IntRange(1),
                         help="Ranks per node; default: one per GPU."),
            click.option("--distinct", type=Value("auto|all|ranks", _distinct), default="auto",
                         show_default=True, metavar="auto|all|RANKS",
                         help="Ranks that run as processes and represent the others: all, or a list such as 0,16-19."
                         " By default, rank 0, and the ranks of its group when it sends or receives a message."),
            click.option("--compare", type=Value("auto|off|ranks", _compared), default="auto",
                         show_default=True, metavar="auto|off|RANKS",
                         help="Ranks to be compared with their representatives, operation by operation, in the first"
                         " two steps. Default: the second rank, the last of the first node, the first of the second"
                         " node, and the last."),
            click.option("--data", type=click.Choice(["shapes", "real"], case_sensitive=False),
                         default="shapes", show_default=True,
                         help="Tensors on a GPU: shapes, or real data, computed on the CPU by a process per rank."),
            click.option("-m", "--module", is_flag=True, help="PROGRAM is the name of a module."),
        )
    ):  # fmt: skip
        run = option(run)
    return run


def ran(given: dict[str, Any], record: tuple[Path, int] | None) -> int:
    """Run a program, record a step, and print the report."""
    from clusim.programs import ProgramRanks, RecordedStep, TorchProgram, run_program
    from clusim.replays.placing import ReplayRequest

    request = ReplayRequest(
        (),
        given["topology"],
        given["nodes"],
        env=given.get("env", ()),
        version=given.get("version", ""),
        policy=given.get("policy", ""),
    )
    program = TorchProgram(given["program"], given["arguments"], given["module"])
    real = given["data"] == "real"
    ranks = ProgramRanks(
        given["nproc_per_node"], given["distinct"], real, given["compare"]
    )
    result = run_program(program, request, ranks, record and RecordedStep(*record))
    click.echo(
        json.dumps(result.to_json()) if given["as_json"] else f"\n{result.report()}"
    )
    return 0


@click.command(
    "torchrun",
    cls=GuardedCommand,
    short_help="Run a PyTorch program on a simulated system.",
    context_settings={"allow_interspersed_args": False},
)
@of_program
@options.env()
@options.nccl_version()
@options.policy()
@click.option("--record", type=OUTPUT, metavar="FILE.et",
              help="Write the last optimizer step as a Chakra trace.")  # fmt: skip
@options.as_json("clusim.programs:ProgramRun")
def command(record: Path | None, **given: Any) -> int:
    """Run PROGRAM, a PyTorch script, as a job on all GPUs of a system.

    The program sees the system's GPUs as CUDA devices and NCCL as the back end, and measures virtual time: of kernels
    by the tables of `clusim train`, of collectives by simulation. Tensors on a GPU are without data; an unknown value
    that is read is 1.0, 1 or False. A rank represents ranks that do the same work. Everything after PROGRAM is passed
    to it.

    PyTorch (a CPU build is enough) and a C++ compiler are required.
    """
    return ran(given, None if record is None else (record, 0))
