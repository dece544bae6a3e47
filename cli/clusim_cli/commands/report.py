"""``clusim report``: a run, or several, as one page."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

import click

from clusim_cli import options
from clusim_cli.outputs import GuardedCommand, beside, echo_done
from clusim_cli.traced import trace_of


@click.command(
    "report",
    cls=GuardedCommand,
    short_help="Write a run, or several, as one self-contained page.",
)
@click.argument("traces", nargs=-1, required=True, metavar="TRACE...")
@options.output(said="TRACE with .html, or comparison.html")
def command(traces: tuple[str, ...], output: Path | None) -> None:
    """Write TRACE as one HTML file below 1 MB that needs no network.

    The page has a summary, the system with its links coloured by load over time, a heatmap of wires, a timeline of
    ranks, tables of collectives and wires, and the inputs. Big traces are shown coarser; `clusim view` shows all
    details.

    Several runs are compared with the first: bottlenecks side by side, times and bandwidths on one axis, differences,
    busy wires. Each can be the words of a `clusim run` in quotes, as in `clusim diff`.
    """
    from clusim.base.files import write_bytes
    from clusim.base.units import format_size
    from clusim.report.html import page
    from clusim.report.page_data import Feed

    if len(traces) == 1:
        target = beside(Path(traces[0]), ".html", output)
        text, inputs = page(Feed.open(traces[0])), [Path(traces[0])]
    else:
        target = output or Path("comparison.html")
        text, inputs = _comparison(traces)
    data = text.encode()
    write_bytes(target, data, inputs)
    echo_done(target, format_size(len(data)))


def _comparison(traces: tuple[str, ...]) -> tuple[str, list[Path]]:
    """Return the page that compares runs, and their files."""
    from clusim.report.comparison import comparison_page, read_compared

    with TemporaryDirectory() as scratch:
        paths = [
            trace_of(words, Path(scratch) / f"{i}.h5")
            for i, words in enumerate(traces)
        ]
        runs = read_compared(paths, traces)
    return comparison_page("Runs compared", [("", runs)]), [
        path for path in paths if path.exists()
    ]
