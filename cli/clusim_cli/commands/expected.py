"""``clusim expected``: expected bus bandwidths of a system, and a gate for its acceptance."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from clusim.base.tables import text_table
from clusim.base.units import format_size
from clusim_cli import options
from clusim_cli.outputs import GuardedCommand
from clusim_cli.params import TOPOLOGY

if TYPE_CHECKING:
    from clusim.validation.acceptance import AcceptedRow


@click.command(
    "expected",
    cls=GuardedCommand,
    short_help="Print expected bus bandwidths; judge measurements.",
)
@click.argument("topology", type=TOPOLOGY)
@click.argument("count", type=click.IntRange(2), metavar="GPUS")
@options.collective()
@options.sizes(said="1 MiB to 1 GiB, times 4; with --against, its sizes")
@options.against(more="An output of nccl-tests; exit code 1 if a row fails.")
@click.option("--tolerance", type=click.FloatRange(0, 100), default=None, metavar="PCT",
              help="Accepted deviation below the expected bandwidth.  [default: the interval]")  # fmt: skip
@options.as_json("clusim.validation.acceptance:Acceptance")
def command(
    topology: str,
    count: int,
    operation: str,
    sizes: tuple[int, ...],
    against: Path | None,
    tolerance: float | None,
    as_json: bool,
) -> int:
    """Print times and bus bandwidths of nccl-tests that are expected on GPUS of TOPOLOGY, with intervals.

    With --against, a row fails if its bandwidth is below the interval.
    """
    from clusim.validation.acceptance import accept

    rows = accept(
        (topology, operation, count),
        sizes or tuple(1 << power for power in range(20, 31, 2)),
        None if against is None else str(against),
        tolerance,
    )
    click.echo(
        json.dumps(rows.to_json()) if as_json else "\n".join(_lines(rows.rows))
    )
    return 0 if rows.all_pass else 1


def _lines(rows: list[AcceptedRow]) -> Iterator[str]:
    head = ("size", "time", "busbw", "at least", "measured", "")
    cells = [
        (
            format_size(row.expected.size_bytes),
            f"{row.expected.time_us:,.2f} us",
            f"{row.expected.busbw_GBps:.2f} GB/s",
            "" if row.least_GBps is None else f"{row.least_GBps:.2f} GB/s",
            "" if row.measured_GBps is None else f"{row.measured_GBps:.2f} GB/s",
            row.verdict,
        )
        for row in rows
    ]
    # Without a measurement the last two columns are empty.
    columns = 6 if any(row.measured_GBps is not None for row in rows) else 4
    layout = "  ".join(["", *["{:>..}"] * min(columns, 5), *["{}"] * (columns == 6)])
    yield from text_table(layout, [row[:columns] for row in (head, *cells)])
