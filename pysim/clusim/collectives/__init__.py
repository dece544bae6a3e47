"""Collectives: operations and algorithms as programs, on any group of ranks."""

from __future__ import annotations

from clusim.collectives.api import ALGORITHMS, REGISTRY, Options, build, emit
from clusim.collectives.builder import ScheduleBuilder

__all__ = [
    "ALGORITHMS",
    "REGISTRY",
    "Options",
    "ScheduleBuilder",
    "build",
    "emit",
]
