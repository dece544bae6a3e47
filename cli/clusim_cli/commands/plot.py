"""``clusim plot``: figures for papers, slides and tickets."""

from __future__ import annotations

from pathlib import Path

import click

from clusim_cli import options
from clusim_cli.outputs import PICTURE, GuardedCommand
from clusim_cli.params import one_of


@click.command("plot", cls=GuardedCommand, short_help="Draw a figure of a trace.")
@click.argument("trace", type=click.Path(path_type=Path))
@click.argument(
    "figure", type=one_of("heatmap", "timeline", "overlap", "topology", "flows")
)
@options.output(
    more="Its ending is .png, .svg or .pdf.", said="FIGURE.png", type=PICTURE
)
@click.option("--width", type=click.FloatRange(1, 60), default=3.4, show_default=True,
              help="Width in inches: 3.4 is a column, 10 fills a slide.")  # fmt: skip
@click.option("--measure", type=one_of("load", "peak", "credit", "contended", "queue"), default="load",
              show_default=True, help="Quantity of heatmap and topology.")  # fmt: skip
@click.option(
    "--dpi",
    type=click.IntRange(50, 1200),
    default=300,
    show_default=True,
    help="Resolution of a .png.",
)
def command(
    trace: Path,
    figure: str,
    output: Path | None,
    width: float,
    measure: str,
    dpi: int,
) -> None:
    """Draw FIGURE of TRACE: heatmap of wires over time, timeline of ranks, overlap of computation and communication,
    topology with links coloured by load, or flows with rate control: their rates, and queues, marks and round trips."""
    from clusim.base.files import is_stream, refuse_inputs
    from clusim.report.page_data import Feed
    from clusim.report.plot_style import Look
    from clusim.report.plots import save_figure

    target = output or Path(f"{figure}.png")
    refuse_inputs(target, [trace])
    save_figure(
        Feed.open(trace, findings=False), figure, target, Look(width, measure, dpi)
    )
    click.echo(str(target), err=is_stream(target))
