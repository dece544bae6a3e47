"""Flows with rate control over a run: rates, marks, round trips, and the time in which a policy held a flow.

A flow is *held* in a time bin if its rate at the end is below the rate of the NIC port, or its window is full. Held
flows limit a run while no wire on their way is full.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from clusim.analysis.critical import Traced, open_traced
from clusim.analysis.flowrates import jain
from clusim.analysis.network import Stage
from clusim.analysis.tablejson import FlowUseRowJson
from clusim.base.arrays import Array
from clusim.base.tables import ColumnTable
from clusim.base.units import format_rate, format_time
from clusim.results.causes import Census
from clusim.results.flows import Flows

HELD_HALF = 0.5
"""Share of its active time from which a flow counts as held."""


class FlowUse:
    """Flows of a run, with the wires that they cross.

    Attributes
    ----------
    active, held : ndarray of bool, shape (flows, bins)
        Bins from the first to the last payload of a flow, and its held bins.
    """

    def __init__(self, traced: Traced) -> None:
        bins = traced.result.bins
        self._traced = traced
        self.flows: Flows = bins.flows
        self._width_ps = np.diff(bins.edge_ps).astype(np.float64)
        tables = self.flows.tables
        moving = (tables["sent"] > 0) | (tables["in_flight"] > 0)
        begun = np.logical_or.accumulate(moving, axis=1)
        self.active = (
            begun & np.logical_or.accumulate(moving[:, ::-1], axis=1)[:, ::-1]
        )
        self.held = self.active & self.flows.held_bins
        self._busy_ps = bins.wires["busy"]

    def _stages(self, number: int) -> list[Stage]:
        """Return the wires of a flow, hop by hop."""
        network = self._traced.network
        conns = network.image["conns"]
        if number >= len(conns):
            return network.stages_of_source(number - len(conns))
        return network.stages_of(number, int(conns["src"][number]), 0)

    @cached_property
    def wires(self) -> list[Array]:
        """Wires on all parallel paths of each flow."""
        routes = (self._stages(number) for number in self.flows.numbers.tolist())
        return [
            np.array([wire for stage in route for wire in stage.lanes], np.int64)
            for route in routes
        ]

    @cached_property
    def fullest(self) -> Array:
        """Utilisation of the fullest wire on the way of each flow, over the time in which it is held."""
        result = np.zeros(len(self.flows))
        for row, route in enumerate(self.wires):
            bins = self.held[row]
            held_ps = self._width_ps[bins].sum()
            if held_ps and len(route):
                busy_ps = self._busy_ps[route][:, bins].sum(axis=1)
                result[row] = min(1.0, busy_ps.max() / held_ps)
        return result

    def time_ps(self, which: Array) -> Array:
        """Return the time of chosen bins of each flow [ps]."""
        return np.asarray(which @ self._width_ps)

    @cached_property
    def held_flows(self) -> Array:
        """Rows of the flows that are held for at least half of their active time."""
        active_ps = self.time_ps(self.active)
        return np.flatnonzero(
            (active_ps > 0) & (self.time_ps(self.held) >= HELD_HALF * active_ps)
        )

    def busy_while_held(self, rows: Array) -> float:
        """Return the utilisation of the fullest wire on the way of flows, mean over the time in which they are held."""
        held_ps = self.time_ps(self.held)[rows]
        return float(self.fullest[rows] @ held_ps) / max(1.0, float(held_ps.sum()))

    @cached_property
    def lost_ps(self) -> dict[str, int]:
        """Time in which wires were idle because a policy held flows [ps].

        It is the mean over the active flows, summed over bins.
        """
        lost = self.held * (1.0 - self.fullest[:, None])
        mean = lost / np.maximum(1, self.active.sum(axis=0)) @ self._width_ps
        result: dict[str, int] = {}
        for name, ps in zip(self.flows.control, mean.tolist(), strict=True):
            result[name] = result.get(name, 0) + round(ps)
        return result

    def census(self, control: str) -> Census:
        """Count the flows of a policy: all, and held ones, with the utilisation of their fullest wires meanwhile."""
        mine = np.array([name == control for name in self.flows.control])
        active = np.flatnonzero(mine & self.active.any(axis=1))
        limited = np.array(
            [row for row in self.held_flows.tolist() if mine[row]], np.int64
        )
        unit = f"flows at {self.busy_while_held(limited):.0%} of the wire"
        return Census(
            unit,
            len(active),
            tuple(self.flows.names[row] for row in limited.tolist()),
        )

    def sentences(self) -> list[str]:
        """Return the summary of all flows."""
        tables = self.flows.tables
        used = np.flatnonzero(self.active.any(axis=1))
        if not len(used):
            return []
        sent = tables["sent"].sum(axis=1)
        rates = sent[used] * 1e12 / self.time_ps(self.active)[used]
        low = format_rate(float(rates.min()))
        high = format_rate(float(rates.max()))
        median = format_rate(float(np.median(rates)))
        names = ", ".join(dict.fromkeys(self.flows.control))
        result = [
            f"{len(used)} flows with rate control ({names}): median {median}, {low} to {high},"
            f" Jain's index {jain(rates.tolist()):.2f}"
        ]
        if len(self.held_flows):
            result.append(
                f"rate control holds {len(self.held_flows)} of {len(used)} flows; their fullest wires are then"
                f" {self.busy_while_held(self.held_flows):.0%} busy"
            )
        marked = tables["marked"].sum() / max(1, sent.sum())
        sentence = f"{marked:.1%} of their payload was marked"
        trips_ps = tables["rtt"][self.active & (tables["rtt"] >= 0)]
        if len(trips_ps):
            usual = format_time(int(np.median(trips_ps)))
            shortest = format_time(int(trips_ps.min()))
            sentence += f"; round trip: median {usual}, least {shortest}"
        result.append(sentence)
        return result


def flow_use(path: str | Path) -> ColumnTable:
    """Return the flows with rate control in the order of their payload, the largest first.

    `rate_GBps` is the mean rate from a flow's first to its last payload, `line` its share of the rate of the port,
    `held` the share of this time in which the policy holds the flow, `marked` the share of its payload that was
    delivered with a mark. `rtt_ps` and `window_bytes` are medians of samples. `wire` is the fullest wire on its way,
    with its utilisation in this time, and its longest queue.
    """
    traced = open_traced(path)
    rows, notes = [], ["no flow with rate control sent payload"]
    if traced.result.bins.flows:
        use = FlowUse(traced)
        rows, notes = list(_rows(use, traced)), use.sentences() or notes
    return ColumnTable.of(FlowUseRowJson.__annotations__, rows, traced.facts, notes)


def _median(values: Array) -> int | None:
    """Return the median of the values that are known; None without any."""
    chosen = values[values >= 0]
    if not len(chosen):
        return None
    return int(np.median(chosen))


def _rows(use: FlowUse, traced: Traced) -> Iterator[tuple[Any, ...]]:
    """Yield the row of each flow that sent payload."""
    flows = use.flows
    tables = flows.tables
    busy = traced.result.bins.wires["busy"]
    queued = traced.result.wires.counters["queued_max"]
    sent = tables["sent"].sum(axis=1)
    active_ps = use.time_ps(use.active)
    held_ps = use.time_ps(use.held)
    for row in np.argsort(-sent, kind="stable").tolist():
        if not sent[row]:
            continue
        bins = use.active[row]
        route = use.wires[row]
        shares = busy[route][:, bins].sum(axis=1) / active_ps[row]
        fullest = int(np.argmax(shares))
        rate_Bps = float(sent[row]) * 1e12 / active_ps[row]
        yield (
            flows.names[row],
            flows.control[row],
            sent[row],
            rate_Bps / 1e9,
            rate_Bps / flows.line_Bps[row],
            held_ps[row] / active_ps[row],
            tables["marked"][row].sum() / sent[row],
            _median(tables["rtt"][row][bins]),
            _median(tables["window"][row][bins]),
            traced.result.wires.names[int(route[fullest])],
            float(shares[fullest]),
            queued[route[fullest]],
        )
