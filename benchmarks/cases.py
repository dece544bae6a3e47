"""Named benchmark cases, and small twins for instruction counts.

Supports older builds (`older.py`): it uses only `load`, `collectives.build`, `simulate` and
`simulate_traffic`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

__all__ = ["CASES", "GIB", "MIB", "Case"]

KIB = 1 << 10
MIB = 1 << 20
GIB = 1 << 30
HOPS_GOAL = {"goal_Mhops_per_s": 20.0, "goal_peak_rss_MB": 300.0}


def _collective(
    topology: str, operation: str, algorithm: str, granularity: str, size_bytes: int
) -> Any:
    import clusim

    fabric = clusim.load(topology)
    schedule = clusim.collectives.build(fabric, operation, algorithm, size_bytes)
    return clusim.simulate(fabric, schedule, granularity=granularity)


def _permutation(topology: str, message_bytes: int) -> Any:
    import clusim

    traffic = clusim.Traffic(
        pattern="permutation", message_bytes=message_bytes, packet_bytes=4 * KIB
    )
    return clusim.simulate_traffic(clusim.load(topology), traffic)


def _uniform(topology: str, duration_ps: int) -> Any:
    import clusim

    traffic = clusim.Traffic(
        pattern="uniform",
        message_bytes=4 * KIB,
        packet_bytes=4 * KIB,
        load=0.6,
        duration_ps=duration_ps,
    )
    return clusim.simulate_traffic(clusim.load(topology), traffic)


@dataclass(frozen=True, slots=True)
class Case:
    """Benchmark case: the run, its size, and its size for instruction counts (0: not counted)."""

    run: Callable[[int], Any]
    size: int
    small: int = 0
    goals: dict[str, float] = field(default_factory=dict)


def _exact(topology: str, operation: str, algorithm: str) -> Callable[[int], Any]:
    return partial(_collective, topology, operation, algorithm, "packet")


CASES: dict[str, Case] = {
    "ring-dgx-a100": Case(
        _exact("dgx-a100", "allreduce", "ring"), 256 * MIB, 4 * MIB, HOPS_GOAL
    ),
    "alltoall-dgx-h100": Case(
        _exact("dgx-h100", "alltoall", ""), 256 * MIB, 8 * MIB, HOPS_GOAL
    ),
    "nvls-dgx-h100": Case(
        _exact("dgx-h100", "allreduce", "nvls"), 64 * MIB, MIB, HOPS_GOAL
    ),
    "permutation-fat-tree-8": Case(
        partial(_permutation, "fat-tree:k=8"), 16 * MIB, MIB, HOPS_GOAL
    ),
    "permutation-fat-tree-16": Case(
        partial(_permutation, "fat-tree:k=16"), 2 * MIB, MIB // 4, HOPS_GOAL
    ),
    "uniform-mesh-8x8": Case(
        partial(_uniform, "mesh:8x8"), 4 * 10**9, 4 * 10**8, HOPS_GOAL
    ),
    "ring-superpod-8": Case(
        _exact("superpod-h100:nodes=8", "allreduce", "ring"), 8 * MIB, MIB, HOPS_GOAL
    ),
    "tree-p5-16": Case(
        _exact("aws-p5:nodes=16", "allreduce", "tree"), 4 * MIB, MIB // 8, HOPS_GOAL
    ),
    "permutation-superpod-2048": Case(  # 16,384 endpoints
        partial(_permutation, "superpod-h100:nodes=2048"),
        64 * KIB,
        goals={"goal_peak_rss_MB": 4000.0},
    ),
    "auto-8GiB-dgx-a100": Case(
        partial(_collective, "dgx-a100", "allreduce", "ring", "auto"),
        8 * GIB,
        goals={"goal_total_s": 3.0},
    ),
}
