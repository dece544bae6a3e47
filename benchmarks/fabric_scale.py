"""Preparation time and memory of clusters and their collectives: one JSON line per size.

``python benchmarks/fabric_scale.py`` measures SuperPODs of 128, 1,024 and 16,384 GPUs, each in a
separate process; ``python benchmarks/fabric_scale.py NAME ...`` other clusters, such as
``dgx-a100:nodes=140,kind=fat-tree``. The suffix ``/allreduce/ring`` also generates that collective's
programs, places them on the topology and passes them to the engine, without a run. ``--growth`` prints a
table of this for rings, NCCL's choice and SHARP on SuperPODs, fat trees and dragonflies of 64 to 16,384
GPUs.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from clusim.topology import Fabric
from clusim.topology.arrays import arrays_of

CASES = (
    "superpod-h100:nodes=16",
    "superpod-h100:nodes=128",
    "superpod-h100:nodes=2048",
)

MACHINES = (8, 32, 128, 512, 2048)
GROWTH = {
    "SuperPOD, ring": "superpod-h100:nodes={}/allreduce/ring",
    "SuperPOD, as NCCL chooses": "superpod-h100:nodes={}/allreduce/nccl",
    "SuperPOD, SHARP": "superpod-h100:nodes={}/allreduce/sharp",
    "fat tree, ring": "dgx-h100:nodes={},kind=fat-tree/allreduce/ring",
    "dragonfly, ring": "dgx-h100:nodes={},kind=dragonfly/allreduce/ring",
}
SIZE_BYTES = 1 << 30
LIMIT_S = 300
"""Processor time after which a case is given up [s]."""


class Laps:
    """Processor time of parts [s]."""

    def __init__(self) -> None:
        self.took: dict[str, object] = {}

    @contextmanager
    def lap(self, name: str) -> Iterator[None]:
        """Measure the time of the enclosed block."""
        start = time.process_time()
        yield
        self.took[f"{name}_s"] = round(time.process_time() - start, 3)


def peak_MiB() -> float:
    """Return the most memory that this process had [MiB]."""
    return round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, 1)


def measure(case: str) -> dict[str, object]:
    """Load and lower one cluster in this process, and a collective if the case names one."""
    name, *collective = case.split("/")
    start = time.perf_counter()
    from clusim import topology

    machine = topology.load(name)
    arrays = arrays_of(machine)
    took_s = time.perf_counter() - start
    arrays_bytes = sum(
        getattr(arrays, part).nbytes
        for part in (
            "nodes",
            "endpoints",
            "wires",
            "targets",
            "routes",
            "group_off",
            "group_wires",
        )
    )
    result = {
        "case": case,
        "ranks": machine.num_ranks,
        "machines": machine.num_zones,
        "nodes": len(machine.nodes),
        "wires": len(arrays.wires),
        "routes": len(arrays.routes),
        "seconds": round(took_s, 3),
        "peak_MiB": peak_MiB(),
        "arrays_MiB": round(arrays_bytes / 2**20, 1),
    }
    return result | prepare(machine, *collective) if collective else result


def prepare(machine: Fabric, operation: str, algorithm: str) -> dict[str, object]:
    """Generate a collective's programs, place them on a topology and pass them to the engine."""
    from clusim.lowering import lower
    from clusim.simulation.plan import plan
    from clusim.simulation.request import Request
    from clusim.simulation.session import start_engine
    from clusim.simulation.setup import Setup

    before_MiB, laps = peak_MiB(), Laps()
    with laps.lap("programs"):
        request = Request(Setup(machine), operation, SIZE_BYTES, algorithm)
        schedule = plan(request).schedule
    with laps.lap("lowering"):
        image = lower(machine, schedule).image
    with laps.lap("engine"):
        start_engine(image, "c", records=False)
    parts = len(schedule.instances) + len(schedule.connections)
    return {
        **laps.took,
        "instances": len(schedule.instances),
        "connections": len(schedule.connections),
        "whole_peak_MiB": peak_MiB(),
        "bytes_each": round((peak_MiB() - before_MiB) * 2**20 / parts),
    }


def alone(case: str) -> dict[str, object] | None:
    """Measure a case in a separate process, for its peak memory; None after a time-out."""
    code = (
        f"import resource, runpy, sys; resource.setrlimit(resource.RLIMIT_CPU, ({LIMIT_S}, {LIMIT_S}));"
        f" sys.argv = {[__file__, case]!r}; runpy.run_path({__file__!r}, run_name='__main__')"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], check=False, capture_output=True, text=True
    )
    if done.returncode < 0:
        return None
    if done.returncode:
        raise SystemExit(done.stderr)
    result: dict[str, object] = json.loads(done.stdout)
    return result


def growth(machines: tuple[int, ...] = MACHINES) -> None:
    """Print preparation costs of collectives on growing systems, in Markdown."""
    columns = ("fabric", "programs", "lowering", "engine")
    head = " | ".join(f"{name} [s]" for name in columns)
    print(
        f"| | GPUs | {head} | peak [MiB] | programs and connections | bytes each |"
    )
    print(f"|---{'|---:' * (len(columns) + 4)}|")
    for what, case in GROWTH.items():
        for number in machines:
            result = alone(case.format(number))
            if result is None:
                print(
                    f"| {what} | {8 * number:,} | more than {LIMIT_S} s of processor time |",
                    flush=True,
                )
                break
            took = [
                result["seconds"],
                *(result[f"{name}_s"] for name in columns[1:]),
            ]
            parts = int(str(result["instances"])) + int(str(result["connections"]))
            cells = [
                *took,
                result["whole_peak_MiB"],
                f"{parts:,}",
                result["bytes_each"],
            ]
            print(
                f"| {what} | {result['ranks']:,} | {' | '.join(map(str, cells))} |",
                flush=True,
            )


def main(names: list[str]) -> None:
    """Measure each case; several cases run in separate processes, to separate peak memory."""
    if names[:1] == ["--growth"]:
        growth(tuple(map(int, names[1:])) or MACHINES)
    elif len(names) == 1:
        print(json.dumps(measure(names[0])), flush=True)
    else:
        for name in names or CASES:
            print(json.dumps(alone(name)), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
