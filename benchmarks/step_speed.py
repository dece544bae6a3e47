"""Simulation cost of training steps: processor time, peak memory and step time.

``python benchmarks/step_speed.py`` measures shipped workloads, each in a separate process, one JSON line
per mode; ``python benchmarks/step_speed.py NAME ...`` others. The modes are *default* and *plainly*, in
``quick`` bursts with all messages between stages and all reductions in the schedule; ``ratio`` is the
processor time of plainly over that of default, both measured in the same minute. ``--only-default``
omits plainly, for steps that would need long.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import time

from clusim.training import run as training_run
from clusim.training import train
from clusim.workload import load_workload

CASES = ("resnet50-dgx1v", "bert-allreduce", "megatron-22b", "gpt3-175b-megatron")
NEVER = 1 << 60


def measure(name: str, plainly: bool) -> dict[str, object]:
    """Simulate one step in this process."""
    if plainly:
        training_run.MOST_MESSAGES = training_run.MOST_RANKS = NEVER
    began_s = time.process_time()
    result = train(
        load_workload(name), steps=1, granularity="quick" if plainly else "step"
    )
    took_s = time.process_time() - began_s
    return {
        "case": name,
        "way": "plainly" if plainly else "default",
        "gpus": result.plan.mesh.size,
        "cpu_s": round(took_s, 2),
        "peak_MiB": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10,
        "step_s": round(result.step_time_s, 9),
        "bound": result.error_bound,
        "tasks": result.tasks,
        "load": round(os.getloadavg()[0], 1),
    }


def main(arguments: list[str]) -> None:
    """Measure cases in separate processes, or one in this process."""
    if arguments[:1] == ["--one"]:
        print(json.dumps(measure(arguments[1], arguments[2] == "plainly")))
        return
    names = [name for name in arguments if not name.startswith("--")] or CASES
    ways = ("default",) if "--only-default" in arguments else ("plainly", "default")
    for name in names:
        rows = []
        for way in ways:
            command = [sys.executable, __file__, "--one", name, way]
            done = subprocess.run(
                command, capture_output=True, text=True, check=True
            )
            rows.append(json.loads(done.stdout))
            if len(rows) == 2:
                rows[1]["ratio"] = round(rows[0]["cpu_s"] / rows[1]["cpu_s"], 2)
                rows[1]["off"] = round(rows[1]["step_s"] / rows[0]["step_s"] - 1, 6)
            print(json.dumps(rows[-1]), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
