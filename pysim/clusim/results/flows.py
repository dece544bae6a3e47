"""Flows with rate control: their names, and histories of rate, window, round trip and marks.

A flow is a connection or a traffic source of the engine's input, as a queue pair of a NIC. Histories have the bins of
wires: sums over a bin, or values at its end.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import Any

import numpy as np

from clusim.base.arrays import Array
from clusim.base.records import dataclass
from clusim.engine.abi import NONE

FLOW_SUMS = {"sent": "sent_bytes", "marked": "marked_bytes"}
"""Histories of sums over a bin: name in the trace -> field of a sample."""

FLOW_VALUES = {
    "rate": "rate",
    "window": "window",
    "in_flight": "in_flight",
    "rtt": "rtt_ps",
}
"""Histories of values at the end of a bin."""

FLOW_COLUMNS = FLOW_SUMS | FLOW_VALUES

UNLIMITED_BYTES = 1 << 62
"""Window of a flow without one [bytes]."""

HELD_RATE = 0.98
"""Share of the rate of the NIC's port below which a flow's rate limits it."""

BUILT_IN = "DCQCN"
"""Name of the rate control of flows without a policy."""


def rate_Bps(rate: Array) -> Array:
    """Return rates in bytes per 2^30 ps as integers in bytes per second."""
    return np.rint(rate * (1e12 / (1 << 30))).astype(np.int64)


def flow_values(samples: Array, before: Array) -> dict[str, Array]:
    """Return the rows of all `FLOW_COLUMNS` in bins that end with samples, given the sample before them."""
    values = {
        name: samples[key].astype(np.int64) for name, key in FLOW_COLUMNS.items()
    }
    for name, key in FLOW_SUMS.items():
        values[name] = np.diff(
            values[name], axis=0, prepend=before[key].astype(np.int64)
        )
    values["rate"] = rate_Bps(values["rate"])
    values["window"] = np.where(
        values["window"] < UNLIMITED_BYTES, values["window"], -1
    )
    values["rtt"] = np.where(values["rtt"] > 0, values["rtt"], -1)
    return values


@dataclass(frozen=True, slots=True)
class Flows:
    """Flows with rate control.

    Attributes
    ----------
    numbers : ndarray
        Rows of the engine's input: connections, then sources.
    names : list of str
        Both ends: ``n1/gpu0->n0/gpu0``, numbered if there are several.
    source, destination : ndarray
        Endpoints; -1 for a source that sends to several.
    control : list of str
        Sender policy, or ``DCQCN``.
    line_Bps : ndarray
        Rates of the NICs' ports [bytes/s].
    tables : dict of ndarray, shape (flows, bins)
        Histories, one for each of `FLOW_COLUMNS`: payload sent and payload delivered with a mark in the bin [bytes],
        rate [bytes/s], window and bytes in flight [bytes; -1 for an unlimited window], last round trip [ps; -1 before
        the first, and without notices] at its end.
    """

    numbers: Array
    names: list[str]
    source: Array
    destination: Array
    control: list[str]
    line_Bps: Array
    tables: dict[str, Array] = field(default_factory=dict)

    def __len__(self) -> int:
        """Return the number of flows."""
        return len(self.names)

    def _row(self, number: int) -> int:
        return int(np.searchsorted(self.numbers, number))

    def name_of(self, number: int) -> str:
        """Return the name of the flow with a row of the engine's input."""
        return self.names[self._row(number)]

    def control_of(self, number: int) -> str:
        """Return the sender policy of the flow with a row of the engine's input, or ``DCQCN``."""
        return self.control[self._row(number)]

    @property
    def held_bins(self) -> Array:
        """True where a policy limits a flow at the end of a bin: a rate below the port's, or a full window."""
        tables = self.tables
        least_Bps = HELD_RATE * self.line_Bps[:, None]
        slow = tables["rate"] < least_Bps
        is_full = tables["in_flight"] >= tables["window"]
        is_full &= tables["window"] >= 0
        return np.asarray(slow | is_full)

    def part(self, rows: Array) -> Flows:
        """Return some of the flows."""
        return Flows(
            numbers=self.numbers[rows],
            names=[self.names[row] for row in rows],
            source=self.source[rows],
            destination=self.destination[rows],
            control=[self.control[row] for row in rows],
            line_Bps=self.line_Bps[rows],
            tables={name: table[rows] for name, table in self.tables.items()},
        )

    def spread_over(self, limit: int) -> Flows:
        """Return at most `limit` flows, evenly spaced."""
        if len(self) <= limit:
            return self
        return self.part(np.arange(limit) * len(self) // max(1, limit))


_EMPTY = np.zeros(0, np.int64)
NO_FLOWS = Flows(_EMPTY, [], _EMPTY, _EMPTY, [], np.zeros(0))


def flows_of(
    image: Mapping[str, Array], senders: Sequence[Any], wires: Sequence[str]
) -> Flows:
    """Return the flows of an image, without histories.

    Parameters
    ----------
    image : mapping
        Tables of the image.
    senders : sequence
        Sender policies by row of ``controls``, or empty.
    wires : sequence of str
        Names of wires, which begin with the names of nodes.
    """
    conns = image["conns"]
    sources = image["sources"]
    control = np.append(conns["control"], sources["control"]).astype(np.int64)
    numbers = np.flatnonzero(control != NONE)
    if not len(numbers):
        return NO_FLOWS
    rows = control[numbers]
    source = np.append(conns["src"], sources["endpoint"]).astype(np.int64)
    destination = np.append(conns["dst"].astype(np.int64), _receivers(image))
    nodes = image["endpoints"]["node"].tolist()
    names = _node_names(image, wires)
    pairs = []
    for number in numbers.tolist():
        sender = names[nodes[source[number]]]
        receiver = (
            names[nodes[destination[number]]] if destination[number] >= 0 else "*"
        )
        pairs.append(f"{sender}->{receiver}")
    line = rate_Bps(image["controls"]["line_rate"].astype(np.int64))
    policies = [BUILT_IN] * len(line)
    for row, bound in enumerate(senders):
        if bound is not None:
            policies[row] = bound.sender.name
    return Flows(
        numbers=numbers,
        names=_number_duplicates(pairs),
        source=source[numbers],
        destination=destination[numbers],
        control=[policies[row] for row in rows],
        line_Bps=line[rows].astype(np.float64),
    )


def _receivers(image: Mapping[str, Array]) -> Array:
    """Return the endpoint to which each source sends; -1 if there are several."""
    sources = image["sources"]
    destination = image["messages"]["dst"]
    result = np.full(len(sources), -1, np.int64)
    for row, source in enumerate(sources):
        ends = destination[source["msg_lo"] : source["msg_hi"]]
        if len(ends) and (ends == ends[0]).all():
            result[row] = ends[0]
    return result


def _node_names(image: Mapping[str, Array], wires: Sequence[str]) -> dict[int, str]:
    """Return the names of nodes with wires."""
    names = {}
    for node, wire in zip(image["wires"]["src"].tolist(), wires, strict=True):
        names[node] = wire.partition("->")[0]
    return names


def _number_duplicates(names: Sequence[str]) -> list[str]:
    """Return names with a number where they occur several times, as of parallel wires."""
    total, used = Counter(names), Counter[str]()
    result = []
    for name in names:
        result.append(f"{name}.{used[name]}" if total[name] > 1 else name)
        used[name] += 1
    return result
