"""Memory of programs, connections and messages: in the schedule, the image and the engine.

``python benchmarks/program_memory.py`` prints a table in Markdown. Each number is the memory difference
between many and few nodes (or between long and short message traffic) per additional program, connection
or message. tracemalloc counts Python's objects and arrays; glibc reports the engine's allocations, with
the topology alone and with the complete image.
"""

from __future__ import annotations

import ctypes
import gc
import json
import subprocess
import sys
import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from clusim import topology
from clusim.engine.image import Image, empty
from clusim.lowering import lower
from clusim.simulation.plan import plan
from clusim.simulation.request import Request
from clusim.simulation.session import start_engine
from clusim.simulation.setup import Setup
from clusim.simulation.traffic import Traffic
from clusim.simulation.traffic_image import to_image
from clusim.topology import Fabric
from clusim.topology.arrays import arrays_of

SIZE_BYTES = 1 << 30
FEW, MANY = 8, 128
"""Machines that are compared; messages arrive for ten times as many microseconds."""

CASES = {
    "ring, fat tree": "dgx-h100:nodes={},kind=fat-tree/ring",
    "NCCL's choice, SuperPOD": "superpod-h100:nodes={}/nccl",
    "SHARP, SuperPOD": "superpod-h100:nodes={}/sharp",
    "messages": "dgx-h100:nodes=8,kind=fat-tree/{}",
}
WORK = (
    "conns",
    "instances",
    "inst_conns",
    "tasks",
    "succ",
    "prims",
    "templates",
    "costs",
)
MESSAGES = ("sources", "messages")


def held(make: Callable[[], object]) -> tuple[object, int, int]:
    """Return the result of `make`, its memory and the peak memory of its construction [bytes]."""
    gc.collect()
    tracemalloc.start()
    made = make()
    gc.collect()
    now, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return made, now, most


class MallInfo(ctypes.Structure):
    """Allocated memory as reported by glibc's ``mallinfo2``."""

    _fields_ = tuple((f"field{number}", ctypes.c_size_t) for number in range(10))


def allocated_bytes() -> int:
    """Return the memory allocated from C, on the heap and in separate mappings [bytes]."""
    ask = ctypes.CDLL(None).mallinfo2
    ask.restype = MallInfo
    result = ask()
    return int(result.field7 + result.field4)


def in_image(image: Image, names: tuple[str, ...]) -> int:
    """Return the memory of arrays [bytes]."""
    return sum(int(getattr(image, name).nbytes) for name in names)


def grown(image: Image) -> int:
    """Return the engine's allocations for an image [bytes]."""
    gc.collect()
    before = allocated_bytes()
    engine = start_engine(image, "c", records=False)
    taken = allocated_bytes() - before
    del engine
    return taken


def in_engine(image: Image, names: tuple[str, ...]) -> int:
    """Return the engine's memory for these arrays, without the topology [bytes]."""
    without: dict[str, Any] = {name: empty(name) for name in names}
    whole = grown(image)
    return whole - grown(replace(image, **without))


def measure(case: str) -> dict[str, int]:
    """Measure the memory of one case in this process [bytes] and count its programs or messages."""
    name, what = case.split("/")
    machine = topology.load(name)
    arrays_of(machine)
    if what.isdecimal():
        return messages(machine, int(what))
    request = Request(Setup(machine), "allreduce", SIZE_BYTES, what)
    plan(request)  # results of searches are cached
    _, schedule_bytes, _ = held(lambda: plan(request).schedule)
    schedule = plan(request).schedule
    _, kept, most = held(lambda: lower(machine, schedule))
    image = lower(machine, schedule).image
    return {
        "rows": len(schedule.instances) + len(schedule.connections),
        "schedule": schedule_bytes,
        "lowering": most - kept,
        "image": in_image(image, WORK),
        "engine": in_engine(image, WORK),
    }


def messages(machine: Fabric, tens_us: int) -> dict[str, int]:
    """Return the memory of messages that arrive during a time [10 us]."""
    traffic = Traffic("uniform", 4096, 4096, load=0.5, duration_ps=tens_us * 10**7)
    arrays = arrays_of(machine)
    drawn = traffic.plan(arrays)
    _, plan_bytes, _ = held(lambda: traffic.plan(arrays))
    _, kept, most = held(lambda: to_image(machine, traffic, drawn))
    image = to_image(machine, traffic, drawn)
    return {
        "rows": len(drawn.messages.source),
        "schedule": plan_bytes,
        "lowering": most - kept,
        "image": in_image(image, MESSAGES),
        "engine": in_engine(image, MESSAGES),
    }


def alone(case: str) -> dict[str, int]:
    """Measure a case in a separate process."""
    done = subprocess.run(
        [sys.executable, __file__, case],
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    )
    result: dict[str, int] = json.loads(done.stdout)
    return result


def main(names: list[str]) -> None:
    """Print the table, or the memory of one case."""
    if names:
        print(json.dumps(measure(names[0])))
        return
    print(
        f"| bytes each, {8 * FEW} to {8 * MANY:,} GPUs | schedule | lowering | image | engine |"
    )
    print("|---|---:|---:|---:|---:|")
    for what, case in CASES.items():
        few, many = (alone(case.format(number)) for number in (FEW, MANY))
        rows = many.pop("rows") - few.pop("rows")
        cells = [f"{round((many[part] - few[part]) / rows):,}" for part in many]
        print(f"| {what} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
