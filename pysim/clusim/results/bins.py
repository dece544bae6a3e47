"""Time bins: how counters that only ever grow become histories of bounded size.

Bins have one width. When all are full, neighbours are merged and the width doubles, so a run of any
length ends with between half of and all the bins used.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np

from clusim.base.arrays import Array
from clusim.base.records import dataclass
from clusim.engine.abi import FLOW_SAMPLE
from clusim.results.flows import (
    FLOW_COLUMNS,
    FLOW_SUMS,
    NO_FLOWS,
    Flows,
    flow_values,
)

MAX_BINS = 512
"""Default maximum of time bins per wire."""

FIRST_WIDTH_PS = 100_000
"""Width of the bins at the start of a run [ps]."""

WHOLE_PS = 1 << 62
"""Width of a bin that is longer than any run [ps]."""

MEMORY_LIMIT_BYTES = 32 << 20
"""Memory limit of the histories of all wires; topologies with many wires get fewer bins."""

COLUMNS = {
    "bytes": "bytes",
    "busy": "busy_ps",
    "stall_credit": "stall_credit_ps",
    "stall_arbitration": "stall_arbitration_ps",
    "queue": "queued_bytes",
}
"""Histories kept per wire: name in the trace -> engine counter."""


@dataclass(frozen=True, slots=True)
class Bins:
    """Histories of a run.

    Attributes
    ----------
    edge_ps : ndarray, shape (bins + 1,)
        Where bins start and end [ps]; all have one width except the last.
    wires : dict of ndarray, shape (wires, bins)
        One array for each name in `COLUMNS`.
    hbm_bytes : ndarray, shape (endpoints, bins)
        Memory traffic caused by communication [bytes].
    flows : Flows
        Flows with rate control, with their histories.
    """

    edge_ps: Array
    wires: dict[str, Array]
    hbm_bytes: Array
    flows: Flows = NO_FLOWS


class BinRecorder:
    """Recorder of time bins: `add` the engine's samples at the next edges; at the end, call `sample`.

    If `max_bins` is 1, one bin covers the complete run. For a run of at least `least_ps`, the first bins have the width
    that such a run needs, because each edge costs time.

    Attributes
    ----------
    flows : Flows
        Flows with histories.
    """

    def __init__(
        self,
        num_wires: int,
        num_endpoints: int,
        max_bins: int = 512,
        limit_bytes: int = MEMORY_LIMIT_BYTES,
        least_ps: int = 0,
    ) -> None:
        self._limit_bytes = min(limit_bytes, MEMORY_LIMIT_BYTES)
        affordable = self._limit_bytes // (8 * len(COLUMNS) * max(1, num_wires))
        is_single = max_bins == 1
        self.max_bins = 1 if is_single else max(16, min(max_bins, affordable)) & ~1
        self.width_ps = WHOLE_PS if is_single else FIRST_WIDTH_PS
        while self.max_bins * self.width_ps <= least_ps:
            self.width_ps *= 2
        self.count = 0
        self._end_ps = 0
        self._wires = {
            name: np.zeros((self.max_bins, num_wires), np.int64) for name in COLUMNS
        }
        self._hbm = np.zeros((self.max_bins, num_endpoints), np.int64)
        self._last = {name: np.zeros((1, num_wires), np.int64) for name in COLUMNS}
        self._last_hbm = np.zeros((1, num_endpoints), np.int64)
        self.follow(NO_FLOWS)

    def follow(self, flows: Flows) -> None:
        """Record flows from the start of a run on, evenly spaced flows if the memory limit excludes some."""
        bytes_per_flow = 8 * len(FLOW_COLUMNS) * self.max_bins
        self.flows = flows.spread_over(
            0 if self.max_bins == 1 else max(1, self._limit_bytes // bytes_per_flow)
        )
        shape = self.max_bins, len(self.flows.names)
        self._flow_tables = {
            name: np.zeros(shape, np.int64) for name in FLOW_COLUMNS
        }
        self._last_flows = np.zeros((1, shape[1]), FLOW_SAMPLE)

    @property
    def next_edge_ps(self) -> int:
        """Time at which the bin being filled ends [ps]."""
        return (self.count + 1) * self.width_ps

    @property
    def edges_left(self) -> int:
        """Number of bins, this one included, before the width changes."""
        return self.max_bins - self.count

    def sample(
        self, now_ps: int, counters: Array, mem_bytes_256: Array, flows: Array
    ) -> None:
        """Close the present bin at `now_ps` with the cumulative counters of that time."""
        if now_ps > self._end_ps:
            self._close(now_ps, counters[None], mem_bytes_256[None], flows[None])

    def add(self, samples: Array, mem_bytes_256: Array, flows: Array) -> None:
        """Close bins at the next edges, at most `edges_left`, with cumulative counters: a row per edge."""
        if len(samples):
            end_ps = (self.count + len(samples)) * self.width_ps
            self._close(end_ps, samples, mem_bytes_256, flows)

    def _close(
        self, end_ps: int, samples: Array, mem_bytes_256: Array, flows: Array
    ) -> None:
        new = slice(self.count, self.count + len(samples))
        for name, counter in COLUMNS.items():
            value = samples[counter].astype(np.int64)
            grown = (
                value
                if name == "queue"
                else np.diff(value, axis=0, prepend=self._last[name])
            )
            self._wires[name][new] = grown
            self._last[name] = value[-1:]
        hbm = (mem_bytes_256 >> np.uint64(8)).astype(np.int64)
        self._hbm[new] = np.diff(hbm, axis=0, prepend=self._last_hbm)
        self._last_hbm = hbm[-1:]
        for name, values in flow_values(flows, self._last_flows).items():
            self._flow_tables[name][new] = values
        self._last_flows = flows[-1:].copy()
        self._end_ps = end_ps
        self.count = new.stop
        if self.count == self.max_bins > 1:
            self._coarsen()

    def _coarsen(self) -> None:
        half = self.max_bins // 2
        for name, table in (*self._wires.items(), ("hbm", self._hbm)):
            pairs = table.reshape(half, 2, -1)
            table[:half] = (
                pairs.max(axis=1) if name == "queue" else pairs.sum(axis=1)
            )
            table[half:] = 0
        for name, table in self._flow_tables.items():
            pairs = table.reshape(half, 2, -1)
            table[:half] = pairs.sum(axis=1) if name in FLOW_SUMS else pairs[:, 1]
            table[half:] = 0
        self.count = half
        self.width_ps *= 2

    def bins(self) -> Bins:
        """Return the data collected so far."""
        edges = np.minimum(
            np.arange(self.count + 1, dtype=np.int64) * self.width_ps, self._end_ps
        )
        wires = {name: self._table(table) for name, table in self._wires.items()}
        flows = {
            name: self._table(table) for name, table in self._flow_tables.items()
        }
        return Bins(
            edge_ps=edges,
            wires=wires,
            hbm_bytes=self._table(self._hbm),
            flows=replace(self.flows, tables=flows),
        )

    def _table(self, rows: Array) -> Array:
        """Return a history with a row for each wire, endpoint or flow."""
        return rows[: self.count].T.copy()


class Usage:
    """Averages of histories over any span of time; inside a bin everything is taken as even."""

    def __init__(
        self, bins: Bins, memory_cost16: Array, unit_busy_ps: Array | None = None
    ) -> None:
        self.edge_ps = np.asarray(bins.edge_ps, np.int64)
        cost = np.asarray(memory_cost16, np.float64) / 65536.0
        self._sums = {
            "wire": _running(bins.wires["busy"]),
            "credit": _running(bins.wires["stall_credit"]),
            "hbm": _running(bins.hbm_bytes) * cost,
        }
        if unit_busy_ps is not None:
            self._sums["unit"] = _running(unit_busy_ps)
        self._flows = {
            flow: row for row, flow in enumerate(bins.flows.numbers.tolist())
        }
        if self._flows:
            self._sums["held"] = _running(
                bins.flows.held_bins * np.diff(self.edge_ps)
            )
        # Segments of a path share their ends, and their resources the spans.
        self._at = lru_cache(64)(self._sums_at)
        self.all_of = lru_cache(64)(self._shares)

    def _sums_at(self, what: str, time_ps: int) -> Array:
        """Return the running sums of all resources at a time, interpolated inside the bin."""
        sums, last = self._sums[what], len(self.edge_ps) - 1
        time_ps = min(max(time_ps, 0), int(self.edge_ps[last]))
        low = min(
            int(np.searchsorted(self.edge_ps, time_ps, side="right")) - 1, last - 1
        )
        start, end = int(self.edge_ps[low]), int(self.edge_ps[low + 1])
        part = (time_ps - start) / (end - start)
        return np.asarray(sums[low] * (1 - part) + sums[low + 1] * part)

    def _shares(self, what: str, start_ps: int, end_ps: int) -> Array:
        """Return the part of a span for which each resource was in use, or a wire in a credit stall.

        Parameters
        ----------
        what : str
            ``wire``, ``credit``, ``hbm`` (by communication; resources are endpoints), ``unit`` or ``held`` (flows).
        """
        if what not in self._sums or len(self.edge_ps) < 2 or end_ps <= start_ps:
            return _UNUSED
        grown = self._at(what, end_ps) - self._at(what, start_ps)
        return np.clip(grown / (end_ps - start_ps), 0.0, 1.0)

    def of(self, what: str, rows: Any, start_ps: int, end_ps: int) -> Array:
        """Return the shares of some resources; 0 if unknown."""
        shares = self.all_of(what, start_ps, end_ps)
        return np.zeros(len(rows)) if shares is _UNUSED else shares.take(rows)

    def one(self, what: str, number: int, start_ps: int, end_ps: int) -> float:
        """Return the share of one resource; 0 if unknown."""
        shares = self.all_of(what, start_ps, end_ps)
        return 0.0 if shares is _UNUSED else float(shares[number])

    def held_share(self, flow: int, start_ps: int, end_ps: int) -> float:
        """Return the part of a span in which a flow is held by its policy; 0 if unknown."""
        row = self._flows.get(flow, -1)
        return self.one("held", row, start_ps, end_ps) if row >= 0 else 0.0


_UNUSED = np.zeros(0)
"""Shares of resources whose history is unknown."""


def _running(table: Array) -> Array:
    """Return running sums, shape (bins + 1, resources)."""
    sums = np.zeros((table.shape[1] + 1, table.shape[0]), np.float64)
    np.cumsum(table.T, axis=0, out=sums[1:])
    return sums
