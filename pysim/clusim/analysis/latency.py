"""Latency and throughput of synthetic traffic."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import numpy as np

from clusim.base.errors import InputError
from clusim.base.json_schema import JsonObject, Round6, Written
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
        raise InputError("latency: no messages in the run; it is not synthetic traffic")
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
