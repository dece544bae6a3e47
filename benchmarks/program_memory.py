"""How much memory programs, connections and messages take: as a schedule, in its image, in the engine.

``python benchmarks/program_memory.py`` prints a table in Markdown. Each number is the difference between many machines
and few (or a long and a short time of messages) over the difference of their programs and connections, or messages.
Python's objects and arrays are counted by tracemalloc; for the engine glibc is asked what is allocated, with the fabric
alone and with all.
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
from clusim.simulation.plan import planned
from clusim.simulation.request import Request
from clusim.simulation.session import start_engine
from clusim.simulation.setup import Setup
from clusim.simulation.traffic import Traffic, to_image
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
WORK = ("conns", "instances", "inst_conns", "tasks", "succ", "prims", "templates", "costs")
MESSAGES = ("sources", "messages")


def held(make: Callable[[], object]) -> tuple[object, int, int]:
    """Return what `make` gives, what that holds, and what it took on the way [bytes]."""
    gc.collect()
    tracemalloc.start()
    made = make()
    gc.collect()
    now, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return made, now, most


class MallInfo(ctypes.Structure):
    """What glibc's ``mallinfo2`` says of allocated memory."""

    _fields_ = tuple((f"field{number}", ctypes.c_size_t) for number in range(10))


def allocated_bytes() -> int:
    """Return what is allocated from C: in pieces of the heap, and in mappings of their own [bytes]."""
    ask = ctypes.CDLL(None).mallinfo2
    ask.restype = MallInfo
    found = ask()
    return int(found.field7 + found.field4)


def in_image(image: Image, names: tuple[str, ...]) -> int:
    """Return what arrays take [bytes]."""
    return sum(int(getattr(image, name).nbytes) for name in names)


def grown(image: Image) -> int:
    """Return what the engine allocates for an image [bytes]."""
    gc.collect()
    before = allocated_bytes()
    engine = start_engine(image, "c", records=False)
    taken = allocated_bytes() - before
    del engine
    return taken


def in_engine(image: Image, names: tuple[str, ...]) -> int:
    """Return what the engine takes for what is in these arrays, the fabric left out [bytes]."""
    without: dict[str, Any] = {name: empty(name) for name in names}
    whole = grown(image)
    return whole - grown(replace(image, **without))


def measure(case: str) -> dict[str, int]:
    """Return what one case takes in this process [bytes], and how many programs or messages it has."""
    name, what = case.split("/")
    machine = topology.load(name)
    arrays_of(machine)
    if what.isdecimal():
        return messages(machine, int(what))
    request = Request(Setup(machine), "allreduce", SIZE_BYTES, what)
    planned(request)  # What is searched once is kept.
    _, schedule_bytes, _ = held(lambda: planned(request).schedule)
    schedule = planned(request).schedule
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
    """Return what messages take that arrive for so long [10 us]."""
    traffic = Traffic("uniform", 4096, 4096, load=0.5, duration_ps=tens_us * 10**7)
    arrays = arrays_of(machine)
    plan = traffic.plan(arrays)
    _, plan_bytes, _ = held(lambda: traffic.plan(arrays))
    _, kept, most = held(lambda: to_image(machine, traffic, plan))
    image = to_image(machine, traffic, plan)
    return {
        "rows": len(plan.messages.source),
        "schedule": plan_bytes,
        "lowering": most - kept,
        "image": in_image(image, MESSAGES),
        "engine": in_engine(image, MESSAGES),
    }


def alone(case: str) -> dict[str, int]:
    """Measure a case in a process of its own."""
    done = subprocess.run(
        [sys.executable, __file__, case], check=True, stdout=subprocess.PIPE, text=True
    )
    found: dict[str, int] = json.loads(done.stdout)
    return found


def main(names: list[str]) -> None:
    """Print the table, or what one case takes."""
    if names:
        print(json.dumps(measure(names[0])))
        return
    print(f"| bytes each, {8 * FEW} to {8 * MANY:,} GPUs | schedule | lowering | image | engine |")
    print("|---|---:|---:|---:|---:|")
    for what, case in CASES.items():
        few, many = (alone(case.format(number)) for number in (FEW, MANY))
        rows = many.pop("rows") - few.pop("rows")
        cells = [f"{round((many[part] - few[part]) / rows):,}" for part in many]
        print(f"| {what} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
