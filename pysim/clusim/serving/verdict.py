"""Verdict of a serving run: parts of latencies, limits of steps, and traffic beside the transfers.

**Model** Time to the first token: host, waits, the steps that compute the prompt, and the transfer of the cache. Waits
are integrated over the sequences that wait when a step begins, by the reason of the scheduler; the rest is for the
end of a step. Time per token: the parts of the decode steps, weighted by their sequences; a step with prompts is
divided into the same step without them, and the rest. The rest is between steps.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from clusim.base.json_schema import JsonObject, Round3, Round6
from clusim.base.terms.operations import find_operation

LEAST_SHARE = 0.01
"""Smallest share of a latency that text names."""

LEAST_PART = 1e-6
"""Smallest share of a latency that is a part."""

MOST_SHOWN = 5
"""Parts that text names."""

WEIGHTS, ARITHMETIC = "reads of weights", "arithmetic of products"
ATTENTION, SMALL = "attention to caches", "norms and other small kernels"
PROMPTS, BETWEEN = "prompts of other requests", "waits between steps"
STEP_END, OTHERS = "wait for the end of a step", "other traffic beside the transfers"

EXPERTS = ("dispatch", "combine")
"""Exchanges of tokens by DeepEP."""

SMALL_KERNELS = ("norms", "rotation and cache", "latent norms", "activation")

WAITS = {
    "blocks": "wait for blocks of the cache",
    "tokens": "wait for earlier prompts",
    "sequences": "wait for the limit of sequences",
}
"""Names of the reasons for which a scheduler leaves requests waiting."""


@dataclass(frozen=True, slots=True)
class LatencyPart(JsonObject):
    """Part of a mean latency.

    Attributes
    ----------
    name : str
        Its name.
    time_ms : float
        Its mean [ms].
    share : float
        Fraction of the latency.
    """

    name: str
    time_ms: Round6
    share: Round3


@dataclass(frozen=True, slots=True)
class SharedWire(JsonObject):
    """Wire with caches and other traffic, during the longest overlap of transfers.

    Attributes
    ----------
    name : str
        The wire.
    busy : float
        Fraction of the time.
    caches, others : float
        Fractions of its bytes.
    """

    name: str
    busy: Round3
    caches: Round3
    others: Round3

    @property
    def words(self) -> str:
        """Return the wire in a line."""
        return f"{self.name}: busy {self.busy:.0%}, {self.caches:.0%} caches and {self.others:.0%} other traffic"


@dataclass(frozen=True, slots=True)
class ServingVerdict(JsonObject):
    """Limits of a serving run.

    Attributes
    ----------
    text : list of str
        The verdict as commands print it.
    ttft, tpot : list of LatencyPart
        Parts of the mean time to the first token and per further token, the largest first.
    wires : list of SharedWire
        The busiest wires on which other traffic meets transfers of caches; empty without.
    """

    KEYS = ("text=lines", "ttft", "tpot", "wires")

    ttft: list[LatencyPart]
    tpot: list[LatencyPart]
    wires: list[SharedWire]
    preemptions: int = 0

    def lines(self) -> list[str]:
        """Return the verdict as text, one statement a line."""
        lines = []
        for name, parts in (("TTFT", self.ttft), ("TPOT", self.tpot)):
            total_ms = sum(part.time_ms for part in parts)
            if total_ms:
                lines.append(f"{name} {total_ms:.2f} ms: {share_words(parts)}")
            for part in parts:
                if part.name == OTHERS and part.share >= LEAST_SHARE:
                    quiet_ms = total_ms - part.time_ms
                    lines.append(
                        f"without other traffic TTFT would be {quiet_ms:.2f} ms"
                    )
        lines += [wire.words for wire in self.wires]
        if self.preemptions:
            lines.append(
                f"the cache is full: {self.preemptions} sequences were preempted and computed again"
            )
        return lines


def latency_parts(
    mean_s: float, total_s: float, parts_s: Mapping[str, float]
) -> list[LatencyPart]:
    """Return the parts of a mean latency by shares of the sum, the largest first; parts of 0 are omitted."""
    rows = sorted(parts_s.items(), key=lambda item: -item[1])
    return [
        LatencyPart(name, seconds / total_s * mean_s * 1e3, seconds / total_s)
        for name, seconds in rows
        if seconds > LEAST_PART * total_s
    ]


def share_words(parts: Sequence[LatencyPart]) -> str:
    """Return the largest parts of a time in a line."""
    named = [part for part in parts if part.share >= LEAST_SHARE]
    return ", ".join(f"{part.share:.0%} {part.name}" for part in named[:MOST_SHOWN])


def limits_of(
    parts_s: Iterable[tuple[str, float]], *, memory_bound: bool
) -> dict[str, float]:
    """Return the time of steps by limit [s].

    Parameters
    ----------
    parts_s : iterable of (str, float)
        Kernels, collectives and host.
    memory_bound : bool
        Reading the weights is longer than the arithmetic of the products.
    """
    result: dict[str, float] = {}
    for name, seconds in parts_s:
        products = WEIGHTS if memory_bound else ARITHMETIC
        add_times(result, {step_limit(name) or products: seconds})
    return result


def step_limit(name: str) -> str | None:
    """Return the limit of a kernel or collective; None for products, by their size."""
    if name in EXPERTS:
        return "exchange for experts"
    if name in SMALL_KERNELS or name.endswith(" activation"):
        return SMALL
    if name.endswith("attention"):
        return ATTENTION
    if name in ("host", PROMPTS):
        return name
    operation = find_operation(name)
    return None if operation is None else operation.name


@dataclass
class StepLedger:
    """Time of sequences in steps [s].

    Attributes
    ----------
    decoded_s : dict
        Parts of steps without their prompts, once for each decoding sequence, and the time that prompts add.
    waits_s : dict
        Time of sequences without a token in the queue of a scheduler, by its reason.
    tokens, squares : int
        Decoding sequences of all steps, and their squares.
    """

    decoded_s: dict[str, float] = field(default_factory=dict)
    waits_s: dict[str, float] = field(default_factory=dict)
    tokens: int = 0
    squares: int = 0

    def add_decoding(
        self, steps: int, sequences: int, parts_s: Mapping[str, float]
    ) -> None:
        """Add the parts of equal steps with some decoding sequences."""
        self.tokens += steps * sequences
        self.squares += steps * sequences**2
        add_times(self.decoded_s, parts_s, steps * sequences)

    @property
    def sequences(self) -> float:
        """Mean number of decoding sequences in the step of a token."""
        return self.squares / max(1, self.tokens)

    def __add__(self, other: StepLedger) -> StepLedger:
        """Return the times of both."""
        result = StepLedger(
            {**self.decoded_s},
            {**self.waits_s},
            self.tokens + other.tokens,
            self.squares + other.squares,
        )
        add_times(result.decoded_s, other.decoded_s)
        add_times(result.waits_s, other.waits_s)
        return result


def add_times(
    total_s: dict[str, float], parts_s: Mapping[str, float], factor: float = 1
) -> None:
    """Add times by name, multiplied by a factor."""
    for name, seconds in parts_s.items():
        total_s[name] = total_s.get(name, 0.0) + factor * seconds
