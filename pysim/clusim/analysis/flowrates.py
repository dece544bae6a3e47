"""Latency and throughput of messages; rates of flows over time, their steady rates and fairness.

Data of a flow count as arrived evenly between the ends of its successive messages. The steady rate of a flow is its
mean rate in the interval in which all flows deliver: from the last first arrival to the first end of a flow. Fairness
is Jain's index ``(sum r)^2 / (n sum r^2)``: 1 for equal rates, 1/n if one flow has everything (Jain, Chiu and Hawe,
DEC-TR-301, 1984).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import numpy as np

from clusim.base.arrays import Array
from clusim.base.errors import InputError
from clusim.base.json_schema import JsonObject, Round6, Written
from clusim.base.records import dataclass
from clusim.results.result import Result

PERCENTILES = (50.0, 90.0, 99.0, 99.9, 100.0)


@dataclass(frozen=True, slots=True)
class LatencySummary(JsonObject):
    """Latency of messages, from their due time until their last byte is visible.

    A percentile is the smallest latency that this share of the messages does not exceed [ps].

    Attributes
    ----------
    messages : int
        Number of messages that arrived.
    throughput_GBps, per_source_GBps : float
        Payload over the time of the run, total and mean per source [10^9 bytes/s].
    """

    messages: int
    message_bytes: int
    throughput_GBps: Round6
    per_source_GBps: Round6
    latency_mean_ps: Annotated[float, Written(1)]
    latency_p50_ps: int
    latency_p90_ps: int
    latency_p99_ps: int
    latency_p99_9_ps: int
    latency_max_ps: int


def summarise(result: Result) -> LatencySummary:
    """Return the latency summary of a run of synthetic traffic."""
    messages = result.messages
    if messages is None:
        raise InputError(
            "latency: no messages in the run; it is not synthetic traffic"
        )
    done = messages.end_ps >= 0
    latency = (messages.end_ps - messages.start_ps)[done]
    percentiles = [0] * len(PERCENTILES)
    if len(latency):
        values = np.percentile(latency, PERCENTILES, method="inverted_cdf")
        percentiles = [int(value) for value in values]
    total = int(messages.size_bytes[done].sum())
    rate_GBps = total * 1e3 / result.time_ps if result.time_ps else 0.0
    sources = max(1, len(np.unique(messages.source)))
    return LatencySummary(
        len(latency),
        int(messages.size_bytes.max(initial=0)),
        rate_GBps,
        rate_GBps / sources,
        float(latency.mean()) if len(latency) else 0.0,
        *percentiles,
    )


INTERVALS = 100
"""Time bins of rates."""


@dataclass(frozen=True, slots=True)
class FlowRow(JsonObject):
    """Flow between two ranks.

    Attributes
    ----------
    end_ps : int or None
        Arrival of its last byte [ps]; None if it is incomplete.
    mean_GBps : float
        Arrived bytes over the time from its start to its last arrival [10^9 bytes/s].
    steady_GBps : float or None
        Rate while all flows deliver [10^9 bytes/s]; None without such an interval.
    rates_GBps : list of float
        Rate in each time bin [10^9 bytes/s].
    """

    source: int
    destination: int
    size_bytes: int
    start_ps: int
    end_ps: int | None
    mean_GBps: Round6
    steady_GBps: Round6 | None
    rates_GBps: list[Round6]


@dataclass(frozen=True, slots=True)
class FlowRates(JsonObject):
    """Rates of all flows of a run.

    Attributes
    ----------
    bin_ps : float
        Length of a time bin; the first begins at 0 [ps].
    steady_from_ps, steady_to_ps : int or None
        Interval in which all flows deliver [ps]; None if it is empty.
    fairness : float
        Jain's index of the steady rates; of the mean rates without steady interval.
    """

    flows: list[FlowRow]
    bin_ps: Round6
    steady_from_ps: int | None
    steady_to_ps: int | None
    fairness: Round6


def flow_rates(result: Result) -> FlowRates:
    """Return the rates of the flows of a traffic run.

    Raises
    ------
    InputError
        The run has no messages.
    """
    messages = result.messages
    if messages is None:
        raise InputError(
            "flow rates: no messages in the run; it is not synthetic traffic"
        )
    order = np.argsort(messages.flow, kind="stable")
    cuts = np.flatnonzero(np.diff(messages.flow[order])) + 1
    groups = np.split(order, cuts) if len(order) else []
    curves = [_arrivals(messages.start_ps[rows], messages.end_ps[rows], messages.size_bytes[rows])
              for rows in groups]  # fmt: skip
    begin_ps = max(
        (int(times[1]) for times, _ in curves if len(times) > 1), default=0
    )
    end_ps = min((int(times[-1]) for times, _ in curves), default=0)
    steady = begin_ps < end_ps and all(len(times) > 2 for times, _ in curves)
    edges = np.linspace(0, max(1, result.time_ps), INTERVALS + 1)
    rows = []
    for group, (times, arrived) in zip(groups, curves, strict=True):
        size_bytes, first = int(messages.size_bytes[group].sum()), int(group[0])
        bins = np.diff(np.interp(edges, times, arrived)) * 1e3 / np.diff(edges)
        during = np.diff(np.interp((begin_ps, end_ps), times, arrived))[0]
        rows.append(
            FlowRow(
                int(messages.source[first]),
                int(messages.destination[first]),
                size_bytes,
                int(times[0]),
                int(times[-1]) if arrived[-1] == size_bytes else None,
                float(arrived[-1]) * 1e3 / max(1, int(times[-1] - times[0])),
                float(during) * 1e3 / (end_ps - begin_ps) if steady else None,
                bins.tolist(),
            )
        )
    since_ps, until_ps = (begin_ps, end_ps) if steady else (None, None)
    shares = [
        row.mean_GBps if row.steady_GBps is None else row.steady_GBps for row in rows
    ]
    return FlowRates(rows, float(edges[1]), since_ps, until_ps, jain(shares))


def _arrivals(
    start_ps: Array, end_ps: Array, size_bytes: Array
) -> tuple[Array, Array]:
    """Return times [ps] and the bytes that arrived until then, from the start of a flow."""
    done = end_ps >= 0
    order = np.argsort(end_ps[done], kind="stable")
    times = np.append(start_ps.min(), end_ps[done][order])
    return times, np.append(0, np.cumsum(size_bytes[done][order]))


def jain(rates: Sequence[float]) -> float:
    """Return Jain's fairness index of rates; 1 if all are 0."""
    squares = sum(rate * rate for rate in rates)
    return sum(rates) ** 2 / (len(rates) * squares) if squares else 1.0
