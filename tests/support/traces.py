"""Small traces of every kind, for what reads traces."""

from __future__ import annotations

from pathlib import Path

import clusim
from clusim.collectives import emit
from clusim.schedule import Schedule
from clusim.schedule.builder import ProgramBuilder
from clusim.topology import Fabric

US = 1_000_000


def training_step(fabric: Fabric, layers: int = 2) -> Schedule:
    """Return layers of computation, each followed by an all-reduce that the next computation hides."""
    builder = ProgramBuilder(fabric.num_ranks, "small training step")
    for layer in range(layers):
        done = [
            builder.kernel(rank, compute_ps=20 * US, name=f"layer {layer} backward")
            for rank in range(fabric.num_ranks)
        ]
        after = [(task,) for task in done]
        emit(builder, fabric, "allreduce", "ring", 1 << 20, stream="dp", after=after, channels=4)
    return builder.build()


def write_collective(path: Path) -> Path:
    """Write the trace of an all-reduce with its slices."""
    fabric = clusim.load("dgx-a100")
    schedule = clusim.collectives.build(fabric, "allreduce", "ring", 1 << 20, channels=4)
    command = "clusim run dgx-a100 --size 1MiB"
    clusim.simulate(
        fabric, schedule, trace_out=path, trace_primitives=True, command=command, confirm=False
    )
    return path


def write_cluster(path: Path) -> Path:
    """Write the trace of an all-reduce over two machines with its slices."""
    fabric = clusim.load("dgx-a100", nodes=2)
    schedule = clusim.collectives.build(fabric, "allreduce", "ring", 1 << 20, channels=4)
    clusim.simulate(fabric, schedule, trace_out=path, trace_primitives=True, confirm=False)
    return path


def write_training(path: Path) -> Path:
    """Write the trace of a training step with its slices."""
    fabric = clusim.load("dgx-h100")
    clusim.simulate(
        fabric, training_step(fabric), trace_out=path, trace_primitives=True, confirm=False
    )
    return path


def write_incast(path: Path) -> Path:
    """Write the trace of an incast over NICs with a sender policy."""
    clusim.traffic(
        "hgx-h20", "incast", "256KiB", nodes=3, policy="sender=dctcp", trace_out=path, confirm=False
    )
    return path


def write_traffic(path: Path, fabric: str = "fat-tree:k=4") -> Path:
    """Write the trace of synthetic traffic."""
    traffic = clusim.Traffic("permutation", 64 << 10, 4096)
    clusim.simulate_traffic(clusim.load(fabric), traffic, trace_out=path, confirm=False)
    return path
