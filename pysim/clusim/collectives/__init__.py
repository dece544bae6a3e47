"""Collectives: operations and algorithms as programs, on any group of ranks."""

from __future__ import annotations

from clusim.collectives.builder import ScheduleBuilder
from clusim.collectives.front import ALGORITHMS, Options, build, emit, operation_name
from clusim.collectives.functions import (
    all_gather,
    alltoall,
    barrier,
    broadcast,
    butterfly_allreduce,
    driver_allreduce,
    gather,
    hierarchical_allreduce,
    naive_allreduce,
    nvls_allreduce,
    oneshot_allreduce,
    reduce,
    reduce_scatter,
    ring_allreduce,
    scatter,
    sendrecv,
    sharp_allreduce,
    tree_allreduce,
    twoshot_allreduce,
)

__all__ = [
    "ALGORITHMS",
    "Options",
    "ScheduleBuilder",
    "all_gather",
    "alltoall",
    "barrier",
    "broadcast",
    "build",
    "butterfly_allreduce",
    "driver_allreduce",
    "emit",
    "gather",
    "hierarchical_allreduce",
    "naive_allreduce",
    "nvls_allreduce",
    "oneshot_allreduce",
    "operation_name",
    "reduce",
    "reduce_scatter",
    "ring_allreduce",
    "scatter",
    "sendrecv",
    "sharp_allreduce",
    "tree_allreduce",
    "twoshot_allreduce",
]
