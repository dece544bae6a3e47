"""Pipelines: how long each stage computes, when it waits, and a timeline in text."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np

from clusim.analysis.critical import open_traced
from clusim.analysis.tablejson import PipelineRowJson
from clusim.analysis.tasks import RankTasks, run_tasks
from clusim.base.arrays import Array
from clusim.base.tables import ColumnTable
from clusim.base.units import format_time
from clusim.results.intervals import Union


def pipeline(path: str | Path) -> ColumnTable:
    """Return the kernels of each rank over the run.

    A bubble is time without a kernel: `fill_ps` before the first, `drain_ps` after the last, `gaps_ps` between;
    `waits_exposed_ps` is the part of the bubble in which the rank communicates. A rank is a stage's worker.
    """
    traced = open_traced(path)
    total, rows = traced.result.time_ps, []
    for tasks in run_tasks(traced):
        computing, talking = tasks.computing(), tasks.talking()
        bubble = total - computing.length_ps
        fill = drain = 0
        if len(computing.start_ps):
            fill, drain = (
                int(computing.start_ps[0]),
                total - int(computing.end_ps[-1]),
            )
        gaps = bubble - fill - drain if computing.length_ps else 0
        rows.append(
            (
                tasks.rank,
                computing.length_ps,
                bubble,
                bubble / max(1, total),
                fill,
                drain,
                gaps,
                max(0, len(computing.start_ps) - 1),
                talking.length_ps - computing.shared_ps(talking),
                int(tasks.computes.sum()),
            )
        )
    table = ColumnTable.of(PipelineRowJson.__annotations__, rows, traced.facts)
    if not any(table.columns["kernels"]):
        table.notes.append("no kernels in the run: only communication")
    elif rows:
        worst = max(rows, key=lambda row: (row[2], -row[0]))
        mean = float(np.mean([row[3] for row in rows]))
        table.notes.append(
            f"bubbles are {mean:.1%} of the run in the mean; the largest is rank {worst[0]}'s, {format_time(worst[2])}"
            f" ({format_time(worst[4])} to fill, {format_time(worst[5])} to drain, {format_time(worst[6])} between)"
        )
    return table


def timeline(path: str | Path, width: int = 96, most: int = 32) -> list[str]:
    """Return a line for each rank: F forward, B backward, # other kernels, = communication.

    Lower-case letters and ``+`` are kernels with concurrent communication, ``.`` is idle time. A character shows the
    state that filled most of its time.
    """
    traced = open_traced(path)
    run, total = run_tasks(traced), traced.result.time_ps
    edges = np.linspace(0, total, width + 1).astype(np.int64)
    ranks = run.ranks
    label = len(str(max(ranks, default=0)))
    letters = np.array([_letter(name) for name in run.names], object)
    lines = [
        f"rank {rank:>{label}} |{_line(run.of(rank), letters, edges)}|"
        for rank in ranks[:most]
    ]
    if len(ranks) > most:
        lines.append(f"... and {len(ranks) - most} more ranks")
    lines.append(f"{'':{label + 6}}0{format_time(total):>{width - 1}}")
    lines.append(
        "F forward  B backward  # other kernel  fb+ beside communication  = communication  . idle"
    )
    return lines


def _line(tasks: RankTasks, letters: Array, edges: Array) -> str:
    mine = np.flatnonzero(tasks.computes)
    kinds = letters[tasks.name[mine]]
    covered = {}
    for letter in ("F", "B", "#"):
        chosen = mine[kinds == letter]
        covered[letter] = _per_cell(
            Union(tasks.start_ps[chosen], tasks.end_ps[chosen]), edges
        )
    talk = tasks.communicates
    talking = _per_cell(Union(tasks.moves_ps[talk], tasks.end_ps[talk]), edges)
    spans = np.diff(edges)
    line = []
    for cell in range(len(spans)):
        letter = max(covered, key=lambda name: int(covered[name][cell]))
        amount, spoken, length = (
            int(covered[letter][cell]),
            int(talking[cell]),
            int(spans[cell]),
        )
        if 2 * amount >= length:
            is_hidden = 2 * spoken >= length
            line.append(
                {"F": "f", "B": "b", "#": "+"}[letter] if is_hidden else letter
            )
        else:
            line.append("=" if 2 * spoken >= length else ".")
    return "".join(line)


def _letter(name: str) -> str:
    """Return F or B for kernels named as forward or backward passes, # for others."""
    if step := re.match(r"[FBW]\d", name):
        # A pass over a microbatch, as named in training steps: W computes weight gradients.
        return "F" if step[0][0] == "F" else "B"
    low = name.lower()
    if "bwd" in low or "backward" in low:
        return "B"
    return "F" if "fwd" in low or "forward" in low else "#"


def _per_cell(union: Union, edges: Array) -> Array:
    return np.diff(union.until(edges))
