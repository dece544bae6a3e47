"""Schedules: programs of all ranks as data, with untimed execution and checks."""

from __future__ import annotations

from clusim.schedule.arrays import from_arrays, to_arrays
from clusim.schedule.builder import ProgramBuilder
from clusim.schedule.checks import validate
from clusim.schedule.collective_writer import CollectiveWriter, Part
from clusim.schedule.ir import (
    ABSENT,
    CollectiveCall,
    Connection,
    Instance,
    Prim,
    Schedule,
    Task,
    Template,
)
from clusim.schedule.shapes import Shape
from clusim.schedule.text import to_text

__all__ = [
    "ABSENT",
    "CollectiveCall",
    "CollectiveWriter",
    "Connection",
    "Instance",
    "Part",
    "Prim",
    "ProgramBuilder",
    "Schedule",
    "Shape",
    "Task",
    "Template",
    "from_arrays",
    "to_arrays",
    "to_text",
    "validate",
]

Plan = CollectiveWriter
"""Earlier name of `CollectiveWriter`."""
