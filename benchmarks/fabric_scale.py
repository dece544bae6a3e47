"""How long clusters take to build and to lower, and how much memory: one JSON line per size.

``python benchmarks/fabric_scale.py`` measures SuperPODs of 128, 1,024 and 16,384 GPUs, each in a process of its own;
``python benchmarks/fabric_scale.py NAME ...`` other clusters, such as ``dgx-a100:nodes=140,kind=fat-tree``.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import time

from clusim.fabric.arrays import arrays_of

CASES = ("superpod-h100:nodes=16", "superpod-h100:nodes=128", "superpod-h100:nodes=2048")


def measure(name: str) -> dict[str, object]:
    """Load and lower one cluster in this process."""
    start = time.perf_counter()
    from clusim import fabric

    machine = fabric.load(name)
    arrays = arrays_of(machine)
    took_s = time.perf_counter() - start
    peak_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    arrays_bytes = sum(
        getattr(arrays, part).nbytes
        for part in ("nodes", "endpoints", "wires", "targets", "routes", "group_off", "group_wires")
    )
    return {
        "case": name,
        "ranks": machine.num_ranks,
        "machines": machine.num_zones,
        "nodes": len(machine.nodes),
        "wires": len(arrays.wires),
        "routes": len(arrays.routes),
        "seconds": round(took_s, 3),
        "peak_MiB": round(peak_kib / 1024, 1),
        "arrays_MiB": round(arrays_bytes / 2**20, 1),
    }


def main(names: list[str]) -> None:
    """Measure each case; several in processes of their own, so that the peaks are theirs."""
    if len(names) == 1:
        print(json.dumps(measure(names[0])), flush=True)
        return
    for name in names or CASES:
        subprocess.run([sys.executable, __file__, name], check=True)


if __name__ == "__main__":
    main(sys.argv[1:])
