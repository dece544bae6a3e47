"""Sweeps: a grid of runs in, a Parquet table of what each gave out, which is continued where it ended."""

from clusim.studies.sweep.grid import SweepGrid, read_grid
from clusim.studies.sweep.runner import SweepReport, sweep

__all__ = ["SweepGrid", "SweepReport", "read_grid", "sweep"]
