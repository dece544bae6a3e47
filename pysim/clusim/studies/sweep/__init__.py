"""Sweeps: grids of runs with one row per run in a Parquet table, which can be continued."""

from clusim.studies.sweep.grid import SweepGrid, read_grid
from clusim.studies.sweep.runner import SweepReport, sweep

__all__ = ["SweepGrid", "SweepReport", "read_grid", "sweep"]
