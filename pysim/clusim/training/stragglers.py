"""Stragglers of a training step: slow ranks, stages with more work, links that communication fills."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clusim.analysis.expanded import expanded
from clusim.analysis.intervals import Union
from clusim.base.terms.links import joined
from clusim.results.result import Result
from clusim.schedule.ir import Schedule
from clusim.training.breakdown import Breakdown, Spans, unfolded
from clusim.workload.mesh import Mesh

Array = NDArray[Any]

SLOWER = 1.05
"""Least factor by which kernels of a slow rank are longer than those of its peers; beside communication they may be,
too.
"""

FULLER = 1.2
"""Least factor by which a link is busier than its parallel links."""

HEAVIER = 1.1
"""Least factor by which a stage computes longer than the other stages."""


@dataclass(frozen=True, slots=True)
class FullWire:
    """The wire that is busiest while communication is exposed.

    Attributes
    ----------
    what : str
        Its class in words.
    place, link : str
        Its link, if it is fuller than its like, and in any case.
    lost : float
        The part of exposed communication for which a fault of it is to blame.
    """

    what: str
    place: str
    link: str
    lost: float = 0.0


def slow_ranks(
    schedule: Schedule, start: Array, end: Array, low: int, slowed: Mapping[int, float]
) -> dict[int, float]:
    """Return the ranks whose kernels take longer than the median rank's, and what part of their time is too much.

    Parameters
    ----------
    low : int
        Kernels count that start then or later [ps].
    slowed : mapping of int to float
        By how much the schedule's own times of kernels are longer for a rank.
    """
    took: dict[int, int] = {}
    alone: dict[int, float] = {}
    for index, task in enumerate(schedule.tasks):
        if task.kind == "kernel" and start[index] >= low:
            length = int(end[index]) - int(start[index])
            took[task.rank] = took.get(task.rank, 0) + length
            nominal = task.compute_ps / slowed.get(task.rank, 1.0)
            alone[task.rank] = alone.get(task.rank, 0) + nominal
    stretch = {rank: took[rank] / alone[rank] for rank in took if alone[rank] > 0}
    if len(stretch) < 2:
        return {}
    usual = sorted(stretch.values())[(len(stretch) - 1) // 2]
    return {rank: 1 - usual / own for rank, own in stretch.items() if own > SLOWER * usual}


def heavy_stage(ranks: Sequence[Breakdown], mesh: Mesh) -> str:
    """Say which stage of a pipeline computes longer than the others, whose ranks then wait for it; empty if none."""
    if mesh.pipeline < 2:
        return ""
    compute = {row.rank: row.compute_ps for row in ranks}
    means = [np.mean([compute[rank] for rank in mesh.stage(s)]) for s in range(mesh.pipeline)]
    most, mean = int(np.argmax(means)), float(np.mean(means))
    if not mean or means[most] < HEAVIER * mean:
        return ""
    return f"behind stage {most}, which computes {means[most] / mean:.2f} times as long as stages do on average"


def full_wire(
    result: Result, spans: Mapping[int, Spans], window: tuple[int, int]
) -> FullWire | None:
    """Return the wire that carried most while ranks were exposed to communication; None if none was.

    Histories of the run, what is folded included, count as far as ranks were exposed in their bins.
    """
    run = expanded(result)
    edges = np.clip(run.bins.edge_ps, *window)
    lengths = np.maximum(1, np.diff(run.bins.edge_ps))
    exposed = np.mean([_exposed(own, edges) for own in spans.values()], axis=0)
    load: Array = run.bins.wires["busy"] @ (exposed / lengths)
    return _named(result, load, float(exposed.sum())) if load.any() else None


def _exposed(own: Spans, edges: Array) -> Array:
    """Return how long a rank is exposed to communication between edges [ps]."""
    compute, moving, _ = unfolded(own)
    computing = Union(compute[:, 0], compute[:, 1])
    either = np.concatenate((compute, moving))
    both = Union(either[:, 0], either[:, 1])
    low, high = edges[:-1], edges[1:]
    found: Array = both.within(low, high) - computing.within(low, high)
    return found


def _named(result: Result, load: Array, exposed_ps: float) -> FullWire:
    """Name the wire with the most load [ps]; what it has more than its like, with a fault, is what the fault costs."""
    wires = result.wires
    top = int(np.argmax(load))
    mine = [i for i, name in enumerate(wires.classes) if name == wires.classes[top] and load[i] > 0]
    usual = float(np.median(load[mine]))
    rates = wires.effective_Bps, wires.rate_Bps
    left = float(rates[0][top] / rates[1][top]) if rates[1][top] else 1.0
    link = link_of(wires.names, top)
    place = link if load[top] > FULLER * usual else ""
    lost_ps = load[top] - max(usual, left * load[top]) if left < 1 - 1e-9 else 0.0
    lost = min(1.0, max(0.0, lost_ps / max(1.0, exposed_ps)))
    return FullWire(f"over {joined(wires.classes[top])}", place, link, lost)


def link_of(names: Sequence[str], wire: int) -> str:
    """Return the name of a wire's link, written from where the first of its directions starts."""
    source, _, target = names[wire].partition("->")
    base, dot, number = target.rpartition(".")
    back = f"{base}->{source}.{number}" if dot else f"{target}->{source}"
    first = back if back in names and names.index(back) < wire else names[wire]
    return first.replace("->", "<->")
