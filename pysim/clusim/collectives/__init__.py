"""Collectives: operations and algorithms as programs, on any group of ranks."""

from __future__ import annotations

from clusim.collectives.api import (
    ALGORITHMS,
    REGISTRY,
    Options,
    build,
    cut,
    emit,
    load_extensions,
)
from clusim.collectives.builder import ScheduleBuilder

__all__ = [
    "ALGORITHMS",
    "REGISTRY",
    "Options",
    "ScheduleBuilder",
    "build",
    "cut",
    "emit",
    "load_extensions",
]
