"""Measure speed and memory: one JSON line per case, each case in a process of its own.

Goals (on one core of a small shared machine, counters on) are printed beside what was measured; nothing
fails here. Run all with ``make bench``, or some: ``python benchmarks/run.py ring-dgx-a100 mesh-8x8``.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

MIB = 1 << 20
GIB = 1 << 30


def _collective(
    topology: str, operation: str, algorithm: str, size_bytes: int, granularity: str
) -> Any:
    import clusim

    fabric = clusim.load(topology)
    schedule = clusim.collectives.build(fabric, operation, algorithm, size_bytes)
    return clusim.simulate(fabric, schedule, granularity=granularity)


def _traffic(topology: str, **pattern: Any) -> Any:
    import clusim

    return clusim.simulate_traffic(
        clusim.load(topology), clusim.Traffic(packet_bytes=4096, **pattern)
    )


HOPS_GOAL = {"goal_Mhops_per_s": 20.0, "goal_peak_rss_MB": 300.0}

CASES: dict[str, tuple[Callable[[], Any], dict[str, float]]] = {
    "ring-dgx-a100": (
        lambda: _collective("dgx-a100", "allreduce", "ring", 256 * MIB, "packet"),
        HOPS_GOAL,
    ),
    "alltoall-dgx-h100": (
        lambda: _collective("dgx-h100", "alltoall", "", 256 * MIB, "packet"),
        HOPS_GOAL,
    ),
    "permutation-fat-tree-8": (
        lambda: _traffic("fat-tree:k=8", pattern="permutation", message_bytes=16 * MIB),
        HOPS_GOAL,
    ),
    "uniform-mesh-8x8": (
        lambda: _traffic(
            "mesh:8x8", pattern="uniform", message_bytes=4096, load=0.6, duration_ps=4 * 10**9
        ),
        HOPS_GOAL,
    ),
    "auto-8GiB-dgx-a100": (
        lambda: _collective("dgx-a100", "allreduce", "ring", 8 * GIB, "auto"),
        {"goal_total_s": 3.0},
    ),
}


def measure(case: str) -> dict[str, Any]:
    """Run `case` in this process."""
    began_s = time.perf_counter()
    result = CASES[case][0]()
    total_s = time.perf_counter() - began_s
    return {
        "case": case,
        "packet_hops": result.packet_hops,
        "grants": result.grants,
        "wall_s": round(result.wall_s, 3),
        "total_s": round(total_s, 3),
        "Mhops_per_s": round(result.packet_hops / result.wall_s / 1e6, 1),
        "Mgrants_per_s": round(result.grants / result.wall_s / 1e6, 1),
        "peak_rss_MB": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, 1),
        "time_ps": result.time_ps,
        "fingerprint": f"{result.fingerprint:016x}",
    } | CASES[case][1]


def measure_shell(repeats: int = 5) -> dict[str, Any]:
    """Time a 1 MiB run as a user types it, best of `repeats`."""
    command = [sys.executable, "-m", "clusim", "run", "dgx-a100", "--size", "1MiB", "--no-progress"]
    times = []
    for _ in range(repeats):
        began_s = time.perf_counter()
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        times.append(time.perf_counter() - began_s)
    return {"case": "shell-1MiB", "total_s": round(min(times), 3), "goal_total_s": 0.6}


def main(arguments: list[str]) -> None:
    """Print one line per case."""
    if arguments[:1] == ["--one"]:
        print(json.dumps(measure(arguments[1])), flush=True)
        return
    for case in arguments or [*CASES, "shell-1MiB"]:
        if case == "shell-1MiB":
            print(json.dumps(measure_shell()), flush=True)
        elif case in CASES:
            subprocess.run([sys.executable, __file__, "--one", case], check=True)
        else:
            raise SystemExit(f"no case {case!r}; one of {', '.join(CASES)}, shell-1MiB")


if __name__ == "__main__":
    main(sys.argv[1:])
