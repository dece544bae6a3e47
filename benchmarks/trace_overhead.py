"""Overhead of traces: runs without one, with wire bins and tasks, and with all slices.

Prints one JSON line per case and form: seconds of the fastest of a few interleaved runs, overhead
relative to no trace, and the size of the file. The goal is less than 10% for wire bins and task records.
Run it on an idle computer: ``python benchmarks/trace_overhead.py``.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import clusim
from clusim.schedule import Schedule
from clusim.topology import Fabric

REPEATS = 3
GOAL = 0.10


def training_step(fabric: Fabric) -> Schedule:
    """Return eight layers of kernels with all-reduces beside them."""
    builder = clusim.collectives.ScheduleBuilder(fabric, "training step")
    for layer in range(8):
        done = {
            rank: [builder.kernel(rank, compute_ps=2 * 10**8, name=f"layer {layer}")]
            for rank in range(fabric.num_ranks)
        }
        builder.collective("allreduce", 16 << 20, stream="dp", after=done)
    return builder.build()


def cases() -> dict[str, tuple[Fabric, Schedule]]:
    """Return the runs that are measured."""
    a100, h100 = clusim.load("dgx-a100"), clusim.load("dgx-h100")
    build = clusim.collectives.build
    return {
        "ring 64 MiB, dgx-a100": (a100, build(a100, "allreduce", "ring", 64 << 20)),
        "ring 256 MiB, dgx-h100": (
            h100,
            build(h100, "allreduce", "ring", 256 << 20),
        ),
        "training step, dgx-h100": (h100, training_step(h100)),
    }


def seconds(
    fabric: Fabric, schedule: Schedule, path: Path | None, slices: bool
) -> float:
    """Return the wall-clock time of one run [s]."""
    began_s = time.perf_counter()
    clusim.simulate(
        fabric, schedule, trace_out=path, trace_primitives=slices if path else None
    )
    return time.perf_counter() - began_s


def main() -> int:
    """Measure all cases; return 1 if bins and tasks cost more than the goal."""
    worst = 0.0
    with TemporaryDirectory() as folder:
        path = Path(folder) / "run.h5"
        for name, (fabric, schedule) in cases().items():
            forms = {
                "none": (None, False),
                "bins and tasks": (path, False),
                "slices": (path, True),
            }
            best = dict.fromkeys(forms, float("inf"))
            sizes = dict.fromkeys(forms, 0)
            for _ in range(REPEATS):
                for form, (out, slices) in forms.items():
                    best[form] = min(
                        best[form], seconds(fabric, schedule, out, slices)
                    )
                    sizes[form] = path.stat().st_size if out else 0
            for form, took in best.items():
                more = took / best["none"] - 1
                if form == "bins and tasks":
                    worst = max(worst, more)
                row = {
                    "case": name,
                    "trace": form,
                    "seconds": round(took, 3),
                    "overhead": round(more, 4),
                }
                print(json.dumps(row | {"bytes": sizes[form]}), flush=True)
    print(json.dumps({"goal": GOAL, "worst": round(worst, 4)}))
    return int(worst > GOAL)


if __name__ == "__main__":
    sys.exit(main())
