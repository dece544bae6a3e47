"""The table of a program of nccl-tests as curves."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from clusim.base.errors import InputError
from clusim.nccltests.api import Table
from clusim.report.charts import curves

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def plot_table(table: Table, figure: str = "", **look: Any) -> Figure:
    """Draw ``busbw``, the bus bandwidth of every size."""
    if figure not in ("", "busbw"):
        raise InputError(f"figure {figure!r}: unknown; a table has one, 'busbw'")
    rows = [line for line in table.lines if line.size]
    if not rows:
        raise InputError("busbw: the table has no sizes above 0")
    series = {
        place: [line.halves[number].busbw for line in rows]
        for number, place in enumerate(("out of place", "in place"))
    }
    return curves([line.size for line in rows], series, table.summary().title, **look)
