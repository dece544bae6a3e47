"""Where a command writes what it makes of a trace."""

from __future__ import annotations

from pathlib import Path

import click

__all__ = ["beside"]


def beside(trace: Path, ending: str, output: Path | None) -> Path:
    """Return `output`, or a file beside `trace` (or what a killed run left of one) with another ending."""
    stem = trace.name.removesuffix(".partial").removesuffix(".h5")
    target = output or trace.with_name(stem + ending)
    if target == trace:
        raise click.UsageError(f"{target}: would overwrite the trace; give another -o")
    return target
