"""Result of a serving run: latencies, throughput, cache, and parts of steps."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from clusim.base.json_schema import JsonObject, Picoseconds, Round3, Round6
from clusim.serving.expected import ServingError
from clusim.serving.layout import ReplicaLayout
from clusim.serving.replica import StepRecord
from clusim.serving.scheduler import Sequence
from clusim.serving.spec import LimitSpec
from clusim.serving.verdict import (
    BETWEEN,
    STEP_END,
    WAITS,
    ServingVerdict,
    SharedWire,
    StepLedger,
    latency_parts,
    limits_of,
)

TransferParts = tuple[dict[str, float], list[SharedWire]]
"""Parts of the time of transfers [s], and wires that they share with other traffic."""


@dataclass(frozen=True, slots=True)
class Latency(JsonObject):
    """Distribution of a latency [s].

    Attributes
    ----------
    mean, p50, p90, p99 : float
        Mean and percentiles [s].
    """

    KEYS = ("mean_s=mean", "p50_s=p50", "p90_s=p90", "p99_s=p99")

    mean: Round6
    p50: Round6
    p90: Round6
    p99: Round6

    @classmethod
    def of(cls, values_ps: Iterable[float]) -> Latency:
        """Return the distribution of times [ps]; without any all are 0."""
        values = np.fromiter(values_ps, float)
        if not values.size:
            return cls(0.0, 0.0, 0.0, 0.0)
        p50, p90, p99 = np.percentile(values, (50, 90, 99)) * 1e-12
        return cls(float(values.mean() * 1e-12), float(p50), float(p90), float(p99))


@dataclass(frozen=True, slots=True)
class CacheUse(JsonObject):
    """Cache of keys and values of a copy of attention.

    Attributes
    ----------
    tokens : int
        Tokens that fit.
    token_bytes : int
        Cache of a token on a rank [bytes].
    peak : float
        Largest fraction in use.
    preemptions : int
        Sequences that lost their cache, and computed it again.
    """

    tokens: int
    token_bytes: int
    peak: Round3
    preemptions: int


@dataclass(frozen=True)
class Serving(JsonObject):
    """Result of a serving run.

    Attributes
    ----------
    name : str
        Name of the serving file.
    system, engine : str
        Topology; engine and rule.
    gpus : int
        GPUs of all replicas.
    count : int
        Requests.
    input_tokens, output_tokens : int
        Tokens of all prompts and outputs.
    time_ps : int
        From the first arrival to the last token [ps].
    ttft, tpot, itl, latency : Latency
        Arrival to first token; (last - first token) / (tokens - 1) of a request; between two tokens, all requests
        together; arrival to last token [s].
    requests_per_s, tokens_per_s, tokens_per_s_per_gpu : float
        Requests and output tokens over the time.
    good_per_s : float
        Requests within the limits over the time; all requests without limits.
    records, cache_records : list of StepRecord
        Steps of all replicas; steps of decoding replicas.
    batch_blocks, batches : int
        Blocks of a decoding batch in flight; batches in flight of all replicas.
    steps, different_steps : int
        Steps; distinct steps.
    cache : CacheUse
        Cache of the decoding replicas.
    spent : dict
        Fraction of all steps by part.
    verdict : ServingVerdict
        Parts of the latencies, and their limits.
    expected : ServingError or None
        Expected error; None without comparable runs.
    notes : list of str
        Approximations.
    """

    KEYS = (
        *(
            "name",
            "system",
            "engine",
            "gpus",
            "count",
            "input_tokens",
            "output_tokens",
        ),
        *("time_s", "ttft", "tpot", "itl", "latency", "requests_per_s"),
        *("tokens_per_s", "tokens_per_s_per_gpu", "good_per_s", "steps"),
        *("different_steps", "cache", "spent", "verdict"),
        *("expected", "notes"),
    )

    name: str
    system: str
    engine: str
    layout: ReplicaLayout
    gpus: int
    sequences: list[Sequence]
    records: list[StepRecord]
    cache_records: list[StepRecord]
    batch_blocks: int
    batches: int
    different_steps: int
    cache: CacheUse
    spent_s: dict[str, float]
    ledger: StepLedger
    balance: float
    request_ps: int
    limits: LimitSpec
    notes: list[str]
    transfers: Callable[[], TransferParts] | None = None
    expected: ServingError | None = None

    @property
    def count(self) -> int:
        """Number of requests."""
        return len(self.sequences)

    @property
    def input_tokens(self) -> int:
        """Tokens of all prompts."""
        return sum(sequence.prompt for sequence in self.sequences)

    @property
    def output_tokens(self) -> int:
        """Tokens of all outputs."""
        return sum(sequence.generated for sequence in self.sequences)

    @property
    def time_ps(self) -> Picoseconds:
        """Time from the first arrival to the last token [ps]."""
        first = min(sequence.arrival_ps for sequence in self.sequences)
        return max(sequence.token_ps[-1] for sequence in self.sequences) - first

    @property
    def time_s(self) -> Round6:
        """Time from the first arrival to the last token [s]."""
        return self.time_ps * 1e-12

    @cached_property
    def ttft_ps(self) -> list[int]:
        """Time from the arrival of each request to its first token [ps]."""
        return [item.token_ps[0] - item.arrival_ps for item in self.sequences]

    @cached_property
    def tpot_ps(self) -> list[float]:
        """Time per token of each request after its first one [ps]; of one token, it is 0."""
        return [
            (item.token_ps[-1] - item.token_ps[0]) / max(1, item.generated - 1)
            for item in self.sequences
        ]

    @property
    def ttft(self) -> Latency:
        """Time to the first token."""
        return Latency.of(self.ttft_ps)

    @property
    def tpot(self) -> Latency:
        """Time per further token of a request."""
        rows = zip(self.tpot_ps, self.sequences, strict=True)
        return Latency.of(time_ps for time_ps, item in rows if item.generated > 1)

    @property
    def gaps_ps(self) -> list[int]:
        """Times between two tokens, of all requests together [ps]."""
        rows = (
            np.diff(np.array(item.token_ps, np.int64)) for item in self.sequences
        )
        return [gap for row in rows for gap in row.tolist()]

    @property
    def itl(self) -> Latency:
        """Time between two tokens."""
        return Latency.of(self.gaps_ps)

    @property
    def latency(self) -> Latency:
        """Time from the arrival to the last token."""
        return Latency.of(
            item.token_ps[-1] - item.arrival_ps for item in self.sequences
        )

    @property
    def requests_per_s(self) -> Round3:
        """Requests over the time."""
        return self.count / self.time_s

    @property
    def tokens_per_s(self) -> Round3:
        """Output tokens over the time."""
        return self.output_tokens / self.time_s

    @property
    def tokens_per_s_per_gpu(self) -> Round3:
        """Output tokens over the time, for each GPU."""
        return self.tokens_per_s / self.gpus

    @property
    def good_per_s(self) -> Round3:
        """Requests within the limits, over the time."""
        limits = self.limits.ttft, self.limits.tpot
        rows = zip(self.ttft_ps, self.tpot_ps, strict=True)
        good = sum(
            all(
                limit is None or value <= limit
                for value, limit in zip(row, limits, strict=True)
            )
            for row in rows
        )
        return good / self.time_s

    @property
    def steps(self) -> int:
        """Number of steps."""
        return sum(record.number for record in self.records)

    @property
    def spent(self) -> dict[str, Round3]:
        """Fraction of all steps by part, the largest first."""
        total = sum(self.spent_s.values())
        rows = sorted(self.spent_s.items(), key=lambda item: -item[1])
        return {name: seconds / total for name, seconds in rows}

    @cached_property
    def verdict(self) -> ServingVerdict:
        """Limits of the run."""
        moved_s, wires = ({}, []) if self.transfers is None else self.transfers()
        total_s = sum(self.ttft_ps) * 1e-12
        first_s = {
            "host": self.count * self.request_ps * 1e-12,
            "steps of prompts": sum(item.prompt_ps for item in self.sequences)
            * 1e-12,
            **{WAITS[name]: time for name, time in self.ledger.waits_s.items()},
            **moved_s,
        }
        first_s[STEP_END] = total_s - sum(first_s.values())
        further_ps = sum(
            item.token_ps[-1] - item.token_ps[0] for item in self.sequences
        )
        ledger = self.ledger
        token_s = limits_of(
            ledger.decoded_s.items(),
            memory_bound=self.balance
            > ledger.sequences / self.layout.attention_data,
        )
        token_s[BETWEEN] = further_ps * 1e-12 - sum(token_s.values())
        return ServingVerdict(
            latency_parts(self.ttft.mean, total_s, first_s),
            latency_parts(self.tpot.mean, further_ps * 1e-12, token_s),
            wires,
            self.cache.preemptions,
        )
