"""Congestion: utilisation, stalls, imbalance of parallel links, and incast."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from clusim.analysis.critical import Traced, open_traced
from clusim.analysis.tablejson import HistoryRowJson
from clusim.base.arrays import Array
from clusim.base.tables import ColumnTable, group_values
from clusim.base.units import format_size

COLUMNS = (
    "level", "name", "class", "wires", "rate_GBps", "busy", "peak", "no_credit", "contended", "queue_max_bytes",
    "full", "imbalance", "sources", "bytes",
)  # fmt: skip

FULL = 0.95
"""A wire counts as full in a bin in which it is busy for this part."""

UNEVEN = 1.05
"""Parallel wires are listed if the busiest is busy for this multiple of the mean."""

MOST_PAIRS = 50_000
"""Pairs of endpoints up to which the sources of each wire are counted."""


def congestion(path: str | Path) -> ColumnTable:
    """Return the use of wires by level: ``tier``, ``group`` (uneven parallel wires), ``wire``.

    `busy` is the utilisation over the run (for tiers the mean of the wires with traffic), `peak` the utilisation of
    the busiest bin; `full` is the part of the run in bins at least 95% busy; `no_credit` the part in credit stalls;
    `contended` the part in which a packet waited while another was served. `imbalance` is the busiest wire over the
    mean of its tier or group. `sources` counts the endpoints whose traffic may cross a wire: many on an output of a
    switch is incast. Wires are sorted by busy time plus credit stalls, then by contention.
    """
    traced = open_traced(path)
    measures = _measures(traced)
    rows = [
        *_tiers(traced, measures),
        *_groups(traced, measures),
        *_wires(traced, measures),
    ]
    return ColumnTable.of(COLUMNS, rows, traced.facts, _notes(rows, traced))


def hot_spots(traced: Traced) -> Array:
    """Return the wires that carried anything, hottest first."""
    counters = traced.result.wires.counters
    stress = counters["busy_ps"] + counters["stall_credit_ps"]
    order = np.lexsort(
        (np.arange(len(counters)), -counters["stall_arbitration_ps"], -stress)
    )
    return np.asarray(order[counters["packets"][order] > 0])


_MERGED: dict[str, Callable[[Array], Any]] = {
    **{"rate": np.mean, "busy": np.mean, "peak": np.max, "no_credit": np.mean},
    **{"contended": np.mean, "queue": np.max, "full": np.mean, "bytes": np.sum},
}
"""Measures of wires, in the order of `COLUMNS`, and their value for several wires."""


def _measures(traced: Traced) -> dict[str, Array]:
    """Return the measures of every wire."""
    result = traced.result
    total = max(1, result.time_ps)
    counters = result.wires.counters
    widths = np.maximum(1, np.diff(result.bins.edge_ps))
    use = (
        result.bins.wires["busy"] / widths
        if len(widths)
        else np.zeros((len(counters), 1))
    )
    share = widths / max(1, widths.sum()) if len(widths) else np.ones(1)
    return {
        "rate": result.wires.rate_Bps,
        "busy": counters["busy_ps"] / total,
        "peak": use.max(axis=1, initial=0.0),
        "no_credit": counters["stall_credit_ps"] / total,
        "contended": counters["stall_arbitration_ps"] / total,
        "queue": counters["queued_max"],
        "full": (use >= FULL) @ share,
        "bytes": counters["bytes"],
    }


def tiers(traced: Traced) -> dict[str, Array]:
    """Return the tiers of a system, each with its wires that carried traffic.

    A tier is a link class; between switches it is identified by their names: ``edge->agg``.
    """
    wires, network = traced.result.wires, traced.network
    used = np.flatnonzero(wires.counters["packets"] > 0)

    def tier(wire: int) -> str:
        ends = [
            network.nodes[int(network.wires[end][wire])] for end in ("src", "dst")
        ]
        stems = "->".join(re.sub(r"[\d.]+$", "", end) or end for end in ends)
        return wires.classes[wire].replace("switch->switch", stems)

    result = group_values((tier(wire), wire) for wire in used.tolist())
    return {name: np.array(ids) for name, ids in result.items()}


def _row(
    who: tuple[str, str, str], mine: Array, measures: dict[str, Array]
) -> tuple[Any, ...]:
    """Return the row of several wires, given its level, name and class; sources are not counted."""
    rate, *values, carried = (
        merge(measures[name][mine]).item() for name, merge in _MERGED.items()
    )
    imbalance = float(measures["busy"][mine].max()) / values[0] if values[0] else 1.0
    return (*who, len(mine), rate / 1e9, *values, imbalance, 0, carried)


def _tiers(traced: Traced, measures: dict[str, Array]) -> Iterator[tuple[Any, ...]]:
    for name, mine in tiers(traced).items():
        yield _row(("tier", name, ""), mine, measures)


def _groups(traced: Traced, measures: dict[str, Array]) -> list[tuple[Any, ...]]:
    """Return the sets of parallel wires, most uneven first.

    Parallel wires join the same two graph nodes, or are alternatives of a route.
    """
    wires, network = traced.result.wires, traced.network
    off, flat = network.image["group_off"], network.image["group_wires"]
    sets = {
        tuple(flat[a:b].tolist()) for a, b in pairwise(off.tolist()) if b > a + 1
    }
    rows: list[tuple[Any, ...]] = []
    for members in sorted(sets):
        mine = np.array(members)
        if wires.counters["packets"][mine].any():
            source = network.nodes[int(network.wires["src"][mine[0]])]
            ends = sorted(
                {network.nodes[int(n)] for n in network.wires["dst"][mine]}
            )
            name = f"{source}->{ends[0]}" + (
                f"..{ends[-1]}" if len(ends) > 1 else ""
            )
            rows.append(
                _row(("group", name, wires.classes[mine[0]]), mine, measures)
            )
    rows = [row for row in rows if row[11] >= UNEVEN]
    return sorted(rows, key=lambda row: (-row[11], row[1]))


def _wires(traced: Traced, measures: dict[str, Array]) -> Iterator[tuple[Any, ...]]:
    wires, sources = traced.result.wires, _sources(traced)
    classes, busy = np.array(wires.classes, object), measures["busy"]
    used = wires.counters["packets"] > 0
    means = {
        name: float(busy[(classes == name) & used].mean())
        for name in set(classes[used])
    }
    for wire in hot_spots(traced).tolist():
        name = wires.classes[wire]
        rate, *values, carried = (measures[key][wire].item() for key in _MERGED)
        imbalance = values[0] / means[name] if means[name] else 1.0
        count = 0 if sources is None else int(sources[wire])
        who = ("wire", wires.names[wire], name, 1)
        yield (*who, rate / 1e9, *values, imbalance, count, carried)


def _pairs(traced: Traced) -> set[tuple[int, int]]:
    """Return the pairs of endpoints with traffic."""
    messages = traced.result.messages
    if messages is not None:
        ends = np.stack([messages.source, messages.destination], axis=1)
        return {(int(a), int(b)) for a, b in np.unique(ends, axis=0)}
    conns = traced.network.image["conns"]
    data = conns[np.isin(conns["kind"], (0, 1))]
    return {
        (int(a), int(b))
        for a, b in zip(data["src"], data["dst"], strict=True)
        if a != b
    }


def _sources(traced: Traced) -> Array | None:
    """Return the number of source endpoints of each wire; None if there are too many pairs."""
    pairs = _pairs(traced)
    if len(pairs) > MOST_PAIRS:
        return None
    result: list[set[int]] = [set() for _ in traced.network.names]
    for source, target in pairs:
        for stage in traced.network.stages(source, target):
            for wire in stage.lanes:
                result[wire].add(source)
    return np.array([len(sources) for sources in result])


def wire_history(path: str | Path) -> ColumnTable:
    """Return tiers (means) and every wire with traffic over time: a row a bin, times in ps."""
    traced = open_traced(path)
    bins, names = traced.result.bins, traced.result.wires.names
    edge_ps = bins.edge_ps
    measures = ("busy", "stall_credit", "stall_arbitration")
    widths = np.maximum(1, np.diff(edge_ps))

    table: dict[str, list[Any]] = {
        name: [] for name in HistoryRowJson.__annotations__
    }
    sets = [("tier", name, mine) for name, mine in tiers(traced).items()]
    sets += [("wire", names[w], np.array([w])) for w in hot_spots(traced).tolist()]
    for level, name, mine in sets:
        columns = [edge_ps[:-1], edge_ps[1:]]
        columns += [bins.wires[key][mine].mean(axis=0) / widths for key in measures]
        columns += [
            bins.wires["bytes"][mine].sum(axis=0),
            bins.wires["queue"][mine].max(axis=0),
        ]
        cells = [
            [level] * len(widths),
            [name] * len(widths),
            *(c.tolist() for c in columns),
        ]
        for column, values in zip(table.values(), cells, strict=True):
            column += values
    return ColumnTable(table, {"time_ps": traced.result.time_ps})


def _notes(rows: list[tuple[Any, ...]], traced: Traced) -> list[str]:
    wires = [row for row in rows if row[0] == "wire"]
    if not wires:
        return ["nothing crossed any wire"]
    top = wires[0]
    notes = [
        f"busiest wire: {top[1]} ({top[2]}): busy {top[5]:.1%}, credit stall {top[7]:.1%}, contended {top[8]:.1%},"
        f" queue up to {format_size(top[9])}"
    ]
    uneven = [row for row in rows if row[0] == "group"]
    if uneven:
        row = uneven[0]
        notes.append(
            f"the most uneven parallel wires are {row[1]} ({row[3]} wires):"
            f" the busiest has {row[11]:.2f} times the mean"
        )
    wide = traced.result.wires
    sending = wide.counters["busy_ps"][
        wide.from_endpoint & (wide.counters["packets"] > 0)
    ]
    usual = (
        float(sending.mean()) / max(1, traced.result.time_ps)
        if len(sending)
        else 0.0
    )
    switches = {wide.names[w] for w in np.flatnonzero(~wide.from_endpoint)}
    # Incast: an output of a switch is much busier than the wires of its senders.
    crowded = [
        row for row in wires if row[12] > 2 and row[8] > 0.2 and row[1] in switches
    ]
    crowded = [row for row in crowded if row[5] > 1.3 * usual]
    if crowded:
        row = max(crowded, key=lambda item: (item[12], item[5]))
        notes.append(
            f"incast: {row[12]} sources share {row[1]}, busy {row[5]:.1%} and contended {row[8]:.1%}"
        )
    return notes
