"""``clusim cache``: on-disk cache of estimates."""

from __future__ import annotations

import json

import click

from clusim.base.units import format_size
from clusim_cli import options
from clusim_cli.outputs import GuardedCommand


@click.command(
    "cache",
    cls=GuardedCommand,
    short_help="Show or clear the cache of topologies and estimates.",
)
@click.option(
    "--clear",
    is_flag=True,
    help="Remove all parts, including other versions of clusim.",
)
@options.as_json("clusim_cli.forms:CacheJson")
def command(clear: bool, as_json: bool) -> int:
    """Show the folder and number of cached parts of training steps (clusim train --estimate) and topologies.

    The folder is the platform's cache folder, unless the environment variable CLUSIM_CACHE is set. Parts are never
    shared between versions of clusim.
    """
    from clusim.base.kept import SampleCache

    kept = SampleCache()
    count, size_bytes = kept.sizes()
    if clear:
        kept.clear()
    if as_json:
        result = {
            "folder": str(kept.folder),
            "parts": count,
            "bytes": size_bytes,
            "cleared": clear,
        }
        click.echo(json.dumps(result))
    else:
        done = "removed from" if clear else "in"
        click.echo(
            f"{count:,} parts, {format_size(size_bytes)}, {done} {kept.folder}"
        )
    return 0
