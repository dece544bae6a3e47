"""Pictures of a training step."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from clusim.base.errors import InputError
from clusim.report.charts import stacked_bars
from clusim.report.plots import plot_result
from clusim.training.breakdown import PARTS
from clusim.training.result import TrainingResult

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MOST_RANKS = 32
"""Maximum bars; among more ranks, the ranks with most exposed communication are drawn."""


def plot_step(result: TrainingResult, figure: str = "", **look: Any) -> Figure:
    """Draw ``ranks`` (breakdown of every rank), or the wires: ``heatmap``, ``topology``."""
    if figure in ("heatmap", "topology"):
        return plot_result(result.result, figure, **look)
    if figure not in ("", "ranks"):
        raise InputError(f"figure {figure!r}: unknown; there are ranks, heatmap, topology")
    shown = sorted(result.ranks, key=lambda row: -row.exposed_ps)[:MOST_RANKS]
    shown.sort(key=lambda row: row.rank)
    whole = np.array([max(1, row.total_ps) for row in shown])
    parts = {
        words: np.array([getattr(row, f"{part}_ps") for row in shown]) / whole
        for part, words in PARTS.items()
    }
    title = result.summary().title
    return stacked_bars([f"rank {row.rank}" for row in shown], parts, title, **look)
