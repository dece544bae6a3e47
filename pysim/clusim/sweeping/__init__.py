"""Sweeps: a grid of runs in, a Parquet table of what each gave out, which is continued where it ended."""

from clusim.sweeping.grid import SweepGrid, read_grid
from clusim.sweeping.runner import SweepReport, sweep

__all__ = ["SweepGrid", "SweepReport", "read_grid", "sweep"]
