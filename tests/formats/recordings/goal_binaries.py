"""Binary GOAL schedules, as txt2bin of LogGOPSim writes them, for tests and for traces/ring-4.goal.bin."""

from __future__ import annotations

import struct
from collections.abc import Sequence

from clusim_formats.recordings.goal_order import GoalStep

COOKIE = 4223
_TYPES = {"send": 1, "recv": 2, "compute": 3}


def part(steps: Sequence[GoalStep]) -> bytes:
    """Return the part of a rank: counts, what waits for nothing, operations, and who waits for each."""
    waits = [len(step.needs) + len(step.starts) for step in steps]
    roots = [at for at, number in enumerate(waits) if not number]
    edges: list[int] = []
    rows = b""
    for at, step in enumerate(steps):
        ends = [later for later, other in enumerate(steps) for e in other.needs if e == at]
        starts = [later for later, other in enumerate(steps) for e in other.starts if e == at]
        rows += struct.pack(
            "<IBIQIBBIIII", waits[at], _TYPES[step.kind], max(0, step.peer) if step.kind == "compute" else
            step.peer % (1 << 32), step.size, step.tag % (1 << 32), step.cpu, 0,
            len(ends), len(edges), len(starts), len(edges) + len(ends),
        )  # fmt: skip
        edges += ends + starts
    numbers = (len(steps), len(roots), *roots)
    return (
        struct.pack(f"<{len(numbers)}I", *numbers) + rows + struct.pack(f"<{len(edges)}I", *edges)
    )


def binary(ranks: Sequence[Sequence[GoalStep]]) -> bytes:
    """Return a whole file."""
    parts = [part(steps) for steps in ranks]
    at = 6 + 16 * len(parts)
    table = b""
    for data in parts:
        table += struct.pack("<QQ", at, at + len(data))
        at += len(data)
    cpus = max(step.cpu for steps in ranks for step in steps)
    return struct.pack("<QIBB", COOKIE, len(parts), cpus, 0) + table + b"".join(parts)
