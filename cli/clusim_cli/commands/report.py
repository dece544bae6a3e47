"""``clusim report``: a run as one page."""

from __future__ import annotations

from pathlib import Path

import click

from clusim_cli import options
from clusim_cli.outputs import GuardedCommand, beside, echo_done

__all__ = ["command"]


@click.command("report", cls=GuardedCommand, short_help="Write a run as one self-contained page.")
@click.argument("trace", type=click.Path(path_type=Path))
@options.output("", "TRACE with .html")
def command(trace: Path, output: Path | None) -> None:
    """Write what TRACE says as one HTML file below 1 MB that needs no network.

    It holds a summary, the machine with its links coloured by load over time, a heatmap of wires, a timeline of ranks,
    tables of collectives and wires, and the inputs. Big traces are shown coarser; `clusim view` shows all they have.
    """
    from clusim.files import write_bytes
    from clusim.report.feed import Feed
    from clusim.report.html import page
    from clusim.units import format_size

    target = beside(trace, ".html", output)
    text = page(Feed.open(trace)).encode()
    write_bytes(target, text, [trace])
    echo_done(target, format_size(len(text)))
