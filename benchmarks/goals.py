"""Print packet-hops per second beside their goals, as a table: ``python benchmarks/goals.py``.

Each run is a process pinned to one core per thread. The table shows the fastest of ``--repeats``
runs by the processor time of the engine, and the ratio of wall-clock times with one and two
threads. Other programs slow runs down: the load at the start is printed, and a median over the
fastest above 1.1 shows that the computer was not quiet.

    --repeats N      runs per case (5)
    --threads        add runs with two threads
    NAME ...         select cases
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from dataclasses import dataclass, replace
from typing import Any

from cases import CASES, MIB
from run import measure


@dataclass(frozen=True, slots=True)
class Goal:
    """Benchmark case at one size (0: the usual size), with goals: M hops/s, speed-up by two threads."""

    case: str
    size: int
    Mhops_per_s: float
    threads_ratio: float = 0


GOALS = {
    "ring, 8 GPUs": Goal("ring-dgx-a100", 64 * MIB, 20, 1.6),
    "all-to-all, 8 GPUs": Goal("alltoall-dgx-h100", 128 * MIB, 20),
    "permutation, 128 hosts": Goal("permutation-fat-tree-8", 0, 20),
    "permutation, 1,024 hosts": Goal("permutation-fat-tree-16", 0, 10, 1.6),
    "mesh 8x8": Goal("uniform-mesh-8x8", 0, 20),
    "NVLS, 8 GPUs, 1 MiB": Goal("nvls-dgx-h100", MIB, 10),
    "NVLS, 8 GPUs, 8 MiB": Goal("nvls-dgx-h100", 8 * MIB, 10),
    "NVLS, 8 GPUs, 64 MiB": Goal("nvls-dgx-h100", 64 * MIB, 10),
}


def _in_this_process(goal: Goal, threads: int) -> dict[str, Any]:
    CASES[goal.case] = replace(
        CASES[goal.case], size=goal.size or CASES[goal.case].size
    )
    return measure(goal.case, threads)


def _runs(name: str, threads: int, repeats: int) -> list[dict[str, Any]]:
    """Run a case in separate processes, with one core per thread."""
    cores = set(sorted(os.sched_getaffinity(0))[-threads:])
    command = [sys.executable, __file__, name, "--one", str(threads)]
    found = []
    for _ in range(repeats):
        done = subprocess.run(
            command,
            check=True,
            stdout=subprocess.PIPE,
            text=True,
            preexec_fn=lambda: os.sched_setaffinity(0, cores),
        )
        found.append(json.loads(done.stdout))
    return found


def row(name: str, repeats: int, threads: bool) -> list[str]:
    """Return the cells of a case: goal, fastest, median over fastest, speed-up by two threads."""
    goal = GOALS[name]
    ones = _runs(name, 1, repeats)
    times_s = [float(run["cpu_s"]) for run in ones]
    speed = ones[0]["packet_hops"] / min(times_s) / 1e6
    cells = [name, f"{goal.Mhops_per_s:g}", f"{speed:.1f}"]
    cells.append(f"{statistics.median(times_s) / min(times_s):.2f}")
    if threads and goal.threads_ratio:
        twos = _runs(name, 2, repeats)
        if {run["fingerprint"] for run in twos} != {ones[0]["fingerprint"]}:
            raise SystemExit(f"{name}: two threads have another result than one")
        ratio = min(run["wall_s"] for run in ones) / min(
            run["wall_s"] for run in twos
        )
        cells.append(f"{ratio:.2f} (goal {goal.threads_ratio:g})")
    return cells


def main() -> None:
    """Print the table row by row."""
    parser = argparse.ArgumentParser(
        description="Packet-hops per second beside their goals."
    )
    parser.add_argument("cases", nargs="*", metavar="NAME")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--threads", action="store_true")
    parser.add_argument("--one", type=int, default=0, help=argparse.SUPPRESS)
    args = parser.parse_args()
    unknown = [name for name in args.cases if name not in GOALS]
    if unknown:
        raise SystemExit(f"no case {unknown[0]!r}; one of: {'; '.join(GOALS)}")
    if args.one:
        print(json.dumps(_in_this_process(GOALS[args.cases[0]], args.one)))
        return
    print(
        f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores, {args.repeats} runs of a case\n"
    )
    head = ["run", "goal, M hops/s", "fastest", "median over fastest"]
    head += ["two threads"] if args.threads else []
    print("| " + " | ".join(head) + " |\n|---|" + "---:|" * (len(head) - 1))
    for name in args.cases or GOALS:
        cells = row(name, args.repeats, args.threads)
        cells += [""] * (len(head) - len(cells))
        print("| " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
