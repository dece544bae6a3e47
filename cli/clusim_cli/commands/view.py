"""``clusim view``: look at a trace in a browser."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import click

from clusim_cli.outputs import GuardedCommand


@click.command(
    "view", cls=GuardedCommand, short_help="Look at a trace in a browser."
)
@click.argument("trace", type=click.Path(path_type=Path))
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=0,
    help="Port to serve on.  [default: a free one]",
)
@click.option("--no-browser", is_flag=True, help="Only print the address.")
def command(trace: Path, port: int, no_browser: bool) -> None:
    """Show TRACE in a browser, served to this machine only, until Ctrl-C.

    The page of `clusim report`, but data are loaded when they are shown, so that traces of any size keep all detail:
    every wire up to 2,000 rows, and all recorded bins and tasks.
    """
    from clusim.report.page_data import Feed
    from clusim.report.server import PageServer

    with (
        PageServer(Feed.open(trace, rows=2000), port) as server,
        suppress(KeyboardInterrupt),
    ):
        click.echo(f"{server.url}  (Ctrl-C ends)")
        if not no_browser:
            import webbrowser

            webbrowser.open(server.url)
        server.serve_forever()
