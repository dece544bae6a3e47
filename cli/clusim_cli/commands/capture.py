"""``clusim capture``: a step of a PyTorch program as a Chakra trace."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from clusim_cli import options
from clusim_cli.commands.torchrun import of_program, ran
from clusim_cli.outputs import GuardedCommand


@click.command(
    "capture",
    cls=GuardedCommand,
    short_help="Record a step of a PyTorch program.",
    context_settings={"allow_interspersed_args": False},
)
@of_program
@options.output(default="step.et")
@click.option("--step", type=click.IntRange(1), default=2, show_default=True,
              help="Optimizer step to record; the program ends after it.")  # fmt: skip
@options.as_json("clusim.programs:ProgramRun")
def command(output: Path, step: int, **given: Any) -> int:
    """Record an optimizer step of PROGRAM, a PyTorch script, as a Chakra trace for `clusim replay`.

    The program runs as in `clusim torchrun`, but collectives are not simulated and last no time, so that large jobs are
    recorded in seconds. The trace contains the operators of one rank with their shapes, the collectives and the
    dependencies; it states that this rank represents the others.
    """
    return ran(given, (output, step))
