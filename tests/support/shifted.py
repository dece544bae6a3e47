"""The same run, later: what starts at time 0 starts after a delay, and every message and fault with it."""

from __future__ import annotations

from dataclasses import fields, replace

import numpy as np

from clusim.engine.abi import TaskKind
from clusim.engine.image import DTYPES, Image
from clusim.engine.ranges import DURATION_END_PS

__all__ = ["later", "without_times"]


def later(image: Image, shift_ps: int) -> Image:
    """Return `image` with all it does `shift_ps` later; its tasks, instances and wires keep their numbers.

    The new tasks are delays at the end of the table: more than one where a single one may not be so long.
    """
    messages, faults = image.messages.copy(), image.faults.copy()
    messages["start_ps"] += shift_ps
    faults["time_ps"] += shift_ps
    moved = replace(image, messages=messages, faults=faults)
    if not len(image.tasks) or not shift_ps:
        return moved
    delays = []
    while shift_ps:
        delays.append(min(shift_ps, DURATION_END_PS - 1))
        shift_ps -= delays[-1]
    first, roots = len(image.tasks), np.flatnonzero(image.tasks["num_deps"] == 0)
    tasks = np.zeros(first + len(delays), DTYPES["tasks"])
    tasks[:first] = image.tasks
    tasks["num_deps"][roots] = 1
    chain = [[first + i + 1] for i in range(len(delays) - 1)] + [roots.tolist()]
    succ = image.succ.tolist()
    for row, delay_ps, after in zip(tasks[first:], delays, chain, strict=True):
        row["kind"], row["delay_ps"], row["num_deps"] = TaskKind.DELAY, delay_ps, 1
        row["succ_lo"] = len(succ)
        succ += after
        row["succ_hi"] = len(succ)
    tasks["num_deps"][first] = 0
    return replace(moved, tasks=tasks, succ=np.array(succ, DTYPES["succ"]))


def without_times(image: Image) -> Image:
    """Return `image` without messages and faults, whose times must lie in the first half of the range."""
    empty = {name: getattr(image, name)[:0] for name in ("sources", "messages", "faults")}
    assert {item.name for item in fields(Image)} >= set(empty)
    return replace(image, **empty)
