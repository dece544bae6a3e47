"""Replicated parts of a trace, read and checked: parts at places at times, as in `clusim.results.replicated`."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clusim.base.errors import TraceError
from clusim.results.replicated import FoldedBlocks
from clusim.results.trace.columns import read, read_texts
from clusim.results.trace.layout import WIRE_TOTALS
from clusim.results.trace.structure import Opened

Array = NDArray[Any]

MOST_TASKS = 1 << 28
"""Most tasks that the blocks of a trace may come to."""

MOST_OF_RANK = 1 << 23
"""Most of them that one rank may have: they are in memory together."""


def read_folded(file: Opened, start_ps: Array, end_ps: Array) -> FoldedBlocks | None:
    """Return what pauses stand for, of tasks with these starts and ends [ps]; None where nothing was folded.

    Raises
    ------
    TraceError
        Columns that do not fit each other.
    """
    if "/folded" not in file:
        return None
    found: dict[str, Any] = {}
    for item in fields(FoldedBlocks):
        name = "/folded/" + item.name.replace("_", "/", 1)
        if item.name == "counters":
            found[item.name] = {name: read(file, f"/folded/wires/{name}") for name in WIRE_TOTALS}
        else:
            found[item.name] = (
                read_texts(file, name) if item.type == "list[str]" else read(file, name)
            )
    folded = FoldedBlocks(**found)
    wrong = _wrong(folded, start_ps, end_ps)
    if wrong:
        raise TraceError(f"{file.filename}: /folded: {wrong}")
    return folded


def _wrong(folded: FoldedBlocks, start_ps: Array, end_ps: Array) -> str:
    """Return what does not fit; empty if all does."""
    sizes = folded.parts_ranks[folded.places_part]
    tasks = np.diff(folded.parts_tasks_off)
    of_part = np.repeat(np.arange(len(folded.parts_ranks)), tasks)
    calls = np.diff(folded.parts_calls_off)
    if len(np.unique(folded.places_part)) < len(folded.parts_ranks):
        return "places: a part that is nowhere"
    if (folded.sizes != sizes).any():
        return "places: not as many ranks as their part has"
    if (folded.tasks_slot >= folded.parts_ranks[of_part]).any():
        return "tasks/slot: a rank that the part does not have"
    if (folded.tasks_call >= calls[of_part]).any():
        return "tasks/call: a collective that the part does not have"
    of_call = np.repeat(np.arange(len(folded.parts_ranks)), calls)
    if (folded.calls_root >= folded.parts_ranks[of_call]).any():
        return "calls/root: a rank that the part does not have"
    if "" in folded.calls_operation or "" in folded.calls_dtype:
        return "calls: an empty text"
    if ((folded.tasks_start > folded.tasks_moves) | (folded.tasks_moves > folded.tasks_end)).any():
        return "tasks: an end before its start"
    if len(folded.pauses_task) != folded.off[-1]:
        return "pauses/task: not one for every rank of every block"
    each = tasks[folded.places_part[folded.blocks_place]]
    if float(each.sum(dtype=np.float64)) > MOST_TASKS:
        return f"blocks of more than {MOST_TASKS:,} tasks"
    longest = np.zeros(len(tasks), np.int64)
    np.maximum.at(longest, of_part, folded.tasks_end)
    start, end = start_ps[folded.pauses_task], end_ps[folded.pauses_task]
    lasts = np.repeat(longest[folded.places_part[folded.blocks_place]], np.diff(folded.off))
    ended = end >= 0
    most = int(end.max(initial=0))
    if (start[ended] + lasts[ended] > most).any():
        return "a block that goes on behind the last pause"
    return _too_many(folded, each)


def _too_many(folded: FoldedBlocks, each: Array) -> str:
    """Return whether a rank has more tasks than can be held."""
    of_place = np.bincount(folded.blocks_place, weights=each, minlength=len(folded.places_part))
    of_rank = np.bincount(folded.ranks_rank, weights=np.repeat(of_place, folded.sizes))
    if of_rank.max(initial=0) > MOST_OF_RANK:
        return f"blocks of more than {MOST_OF_RANK:,} tasks at a rank"
    return ""
