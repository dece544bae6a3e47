"""The busiest wire of a step while ranks wait for communication, and the calls that share it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from clusim.base.arrays import Array
from clusim.base.terms.links import link_class_name
from clusim.results.causes import (
    AS_BUSY,
    SHOWN_PLACES,
    CauseResource,
    also_limiting,
    wire_key,
)
from clusim.results.intervals import Union
from clusim.results.result import Result
from clusim.training.breakdown import Spans, unfolded
from clusim.workload.parallel.fold import FoldedBlock, by_kind, pauses_of

AT_ONCE = 1 << 20
"""Number of array elements to compute at once, for memory."""


@dataclass(frozen=True, slots=True)
class FullWire:
    """The busiest wire during exposed communication.

    Attributes
    ----------
    what : str
        Its class in words.
    link, wire_class : str
        Its link and link class.
    lost : float
        Share of exposed communication caused by a fault of the link.
    also : tuple of str
        Other links that are almost as full, each with its busy share of exposed communication.
    """

    what: str
    link: str
    wire_class: str
    lost: float = 0.0
    also: tuple[str, ...] = ()


def full_wire(
    result: Result,
    blocks: Iterable[FoldedBlock],
    spans: Mapping[int, Spans],
    window: tuple[int, int],
) -> FullWire | None:
    """Return the wire with most load during exposed communication; None without load.

    Histories of the run, and busy times of replicated blocks, are weighted by the exposed time of ranks in each bin.
    """
    all_edges = result.bins.edge_ps
    edges = np.clip(all_edges, *window)
    lengths = np.maximum(1, np.diff(all_edges))
    exposed = np.mean(
        [_exposed(rank_spans, edges) for rank_spans in spans.values()], axis=0
    )
    share = exposed / lengths
    load: Array = result.bins.wires["busy"] @ share
    row = {name: number for number, name in enumerate(result.wires.names)}
    for block, repeated in by_kind(blocks):
        pauses = pauses_of(block, repeated)
        low = result.tasks.start_ps[pauses].min(axis=1)
        length = np.maximum(1, result.tasks.end_ps[pauses].max(axis=1) - low)
        done = np.diff(_count_ended(low, length, all_edges))
        wires = [row[name] for name in block.wires]
        load[wires] += block.done.busy_ps * (done @ share)
    return _named(result, load, float(exposed.sum())) if load.any() else None


def _count_ended(low: Array, length: Array, edges: Array) -> Array:
    """Return the number of pauses that ended before each edge, parts of pauses included; times in ps."""
    groups = np.array_split(edges, 1 + edges.size * low.size // AT_ONCE)
    sums = [
        np.clip((edge[:, None] - low) / length, 0.0, 1.0).sum(axis=1)
        for edge in groups
    ]
    return np.concatenate(sums)


def _exposed(spans: Spans, edges: Array) -> Array:
    """Return the exposed communication of a rank between edges [ps]."""
    compute, moving, _ = unfolded(spans)
    low, high = edges[:-1], edges[1:]
    either = Union.of(compute, moving[:, :2]).within(low, high)
    return np.asarray(either - Union.of(compute).within(low, high))


def _named(result: Result, load: Array, exposed_ps: float) -> FullWire:
    """Return the wire with the most load [ps].

    With a fault, its excess over parallel wires is the cost of the fault.
    """
    wires = result.wires
    top = int(np.argmax(load))
    mine = [
        i
        for i, name in enumerate(wires.classes)
        if name == wires.classes[top] and load[i] > 0
    ]
    usual = float(np.median(load[mine]))
    rates = wires.effective_Bps, wires.rate_Bps
    rate_share = float(rates[0][top] / rates[1][top]) if rates[1][top] else 1.0
    link = link_of(wires.names, top)
    lost_ps = (
        load[top] - max(usual, rate_share * load[top])
        if rate_share < 1 - 1e-9
        else 0.0
    )
    lost = min(1.0, max(0.0, lost_ps / max(1.0, exposed_ps)))
    shares = zip(wires.classes, (load / max(1.0, exposed_ps)).tolist(), strict=True)
    also = also_limiting(shares, wire_key(wires.classes[top]))
    name = wires.classes[top]
    class_wires = [
        i for i, class_name in enumerate(wires.classes) if class_name == name
    ]
    full = [i for i in class_wires if load[i] >= AS_BUSY * load[top]]
    dead = sum(not wires.effective_Bps[i] for i in class_wires)
    places = (
        tuple(link_of(wires.names, i) for i in full)
        if len(full) <= SHOWN_PLACES
        else ()
    )
    links = CauseResource(
        "", 0, (), 0, "links", len(class_wires), len(full), places, dead
    )
    return FullWire(
        f"over {link_class_name(name)}, {links.count()}", link, name, lost, also
    )


def link_of(names: Sequence[str], wire: int) -> str:
    """Return the name of a wire's link, from the source of its first direction."""
    source, _, target = names[wire].partition("->")
    base, dot, number = target.rpartition(".")
    back = f"{base}->{source}.{number}" if dot else f"{target}->{source}"
    first = back if back in names and names.index(back) < wire else names[wire]
    return first.replace("->", "<->")
