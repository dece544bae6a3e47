"""Latency and throughput of synthetic traffic."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from clusim.base.errors import InputError
from clusim.results.result import Result

PERCENTILES = {"p50": 50.0, "p90": 90.0, "p99": 99.0, "p99.9": 99.9, "max": 100.0}


@dataclass(frozen=True, slots=True)
class LatencySummary:
    """Latency of messages, from their due time until their last byte is visible.

    Attributes
    ----------
    percentiles_ps : dict
        ``p50 p90 p99 p99.9 max``: the smallest latency that this share of the messages does not exceed [ps].
    throughput_GBps, per_source_GBps : float
        Payload over the time of the run, total and mean per source [10^9 bytes/s].
    """

    messages: int
    message_bytes: int
    mean_ps: float
    percentiles_ps: dict[str, int]
    throughput_GBps: float
    per_source_GBps: float

    def to_json(self) -> dict[str, Any]:
        """Return the results for scripts."""
        names = {
            f"latency_{name.replace('.', '_')}_ps": v for name, v in self.percentiles_ps.items()
        }
        return {
            "messages": self.messages,
            "message_bytes": self.message_bytes,
            "throughput_GBps": round(self.throughput_GBps, 6),
            "per_source_GBps": round(self.per_source_GBps, 6),
            "latency_mean_ps": round(self.mean_ps, 1),
            **names,
        }


def summarise(result: Result) -> LatencySummary:
    """Return the latency summary of a run of synthetic traffic."""
    messages = result.messages
    if messages is None:
        raise InputError("latency: no messages in the run; it is not synthetic traffic")
    done = messages.end_ps >= 0
    latency = (messages.end_ps - messages.start_ps)[done]
    percentiles = dict.fromkeys(PERCENTILES, 0)
    if len(latency):
        values = np.percentile(latency, list(PERCENTILES.values()), method="inverted_cdf")
        percentiles = {name: int(v) for name, v in zip(PERCENTILES, values, strict=True)}
    total = int(messages.size_bytes[done].sum())
    rate_GBps = total * 1e3 / result.time_ps if result.time_ps else 0.0
    sources = max(1, len(np.unique(messages.source)))
    return LatencySummary(
        messages=len(latency),
        message_bytes=int(messages.size_bytes.max(initial=0)),
        mean_ps=float(latency.mean()) if len(latency) else 0.0,
        percentiles_ps=percentiles,
        throughput_GBps=rate_GBps,
        per_source_GBps=rate_GBps / sources,
    )
