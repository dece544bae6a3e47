"""Granularity of a run: the one meaning of `auto`, for collectives and for messages.

Granularity ``auto``: exact packets if the run's packet-hops are estimated at `EXACT_HOPS` or fewer; otherwise the
smallest power of two of packets per burst that gets the estimate to `TARGET_HOPS`, within the limits of every stream
(1/`SLICE_SHARE` of its mean slice). Where more than `MOST_HOPS` remain (rings over hundreds of ranks, whose slices
are small), bursts grow further, to at most `FACTORS` times their limits. ``docs/accuracy-approximations.md`` lists the
errors.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from clusim.base.errors import InputError
from clusim.base.records import dataclass

EXACT_HOPS = 32_000_000
"""Packet-hops up to which ``auto`` simulates exact packets."""

TARGET_HOPS = 16_000_000
"""Target of ``auto`` otherwise [burst-hops]: about a second."""

QUICK = "quick"
"""Granularity of many runs at once: the rule of ``auto`` with `QUICK_HOPS`."""

QUICK_HOPS = 2_000_000
"""Limit of ``quick`` for exact packets, and its target otherwise: a quarter of a second.

Where more than twice as many remain, bursts exceed their limits by `FACTORS`.
"""

STEP = "step"
"""Granularity of training steps: exact up to `EXACT_HOPS`, then the bursts of ``quick``.

Where more than `SLICES_HOPS` remain, bursts are complete slices.
"""

SLICES_HOPS = 16_000_000
"""Burst-hops above which bursts of ``step`` are complete slices.

These are rings over many ranks with small slices, which simulate a run for minutes otherwise: the gather of 1 GiB over
72 ranks has 568 slices per connection. All-gathers over the 72 ranks of an NVL72 are then 0.1% (LL128, against bursts
of a quarter) and 3.5% (Simple, against 1/24 of a slice) shorter.
"""

COARSE = "coarse"
"""Granularity of minor parts: ``auto`` with `COARSE_HOPS`, bursts of up to full slices."""

COARSE_HOPS = 500_000
"""Limit of ``coarse`` for exact packets, and its target otherwise [packet-hops]."""

SLICE_SHARE = 24
"""Divisor of a connection's mean slice that limits the bursts of ``auto``."""

MOST_HOPS = 150_000_000
"""Burst-hops above which ``auto`` gives up some accuracy: a minute or two.

The loss is 1% for a ring over 256 ranks.
"""

FACTORS = (1, 2, 4)
"""Factors by which bursts may exceed their limits until the run has at most `MOST_HOPS`."""

MAX_BURST_BYTES = 1 << 30
"""Coarsest granularity that users may request [bytes]."""

AUTO_ERROR = 0.08
"""Error limit of the time in bursts of ``auto``; largest error found: 0.071.

Source: docs/accuracy-approximations.md.
"""

MOST_GROWTH = 3.0
"""Growth of buffers for bursts up to which `AUTO_ERROR` is known.

Larger buffers let flows pass that block each other in exact packets: 172 random runs with growth up to 2.25 had
errors of at most 0.071, 8 of 53 from 4.06 on had errors of 0.1 to 0.23.
"""

QUICK_ERROR = 0.1
"""As `AUTO_ERROR`, of ``quick``; largest error found: 0.056."""

STEP_ERROR, COARSE_ERROR = 0.2, 0.5
"""Error limits of a training step with ``step`` and ``coarse``.

Relative to its exposed communication; the largest errors found are 0.12 and 0.43, in small steps on 8 H100
(docs/accuracy-approximations.md).
"""


@dataclass(frozen=True, slots=True)
class GrainRule:
    """Rule of a named granularity.

    Attributes
    ----------
    exact_hops, target_hops : int
        Packet-hops up to which packets are exact; target of burst-hops otherwise.
    most_hops : int
        Burst-hops above which bursts exceed their limits by the next of `factors`.
    error : float or None
        Error limit of a run's time against exact packets; None is not known.
    step_error : float or None
        Error limit of a training step, as a part of its exposed communication; None is not known.
    slices_hops : int or None
        Burst-hops above which bursts are complete slices; None is never.
    """

    exact_hops: int
    target_hops: int
    most_hops: int
    factors: Sequence[int]
    error: float | None = None
    step_error: float | None = None
    slices_hops: int | None = None


RULES = {
    "auto": GrainRule(
        EXACT_HOPS, TARGET_HOPS, MOST_HOPS, FACTORS, AUTO_ERROR, AUTO_ERROR
    ),
    QUICK: GrainRule(QUICK_HOPS, QUICK_HOPS, 2 * QUICK_HOPS, FACTORS, QUICK_ERROR),
    STEP: GrainRule(
        EXACT_HOPS,
        QUICK_HOPS,
        2 * QUICK_HOPS,
        FACTORS,
        None,
        STEP_ERROR,
        SLICES_HOPS,
    ),
    COARSE: GrainRule(
        COARSE_HOPS,
        COARSE_HOPS,
        2 * COARSE_HOPS,
        (1, 2, 4, 8, SLICE_SHARE),
        None,
        COARSE_ERROR,
    ),
}
"""Rules of the named granularities."""

SHARE = "/"
"""Separator of a named granularity and the number of runs that share its burst-hops, as in ``coarse/16``."""

MOST_SHARES = 32
"""Largest number of runs that share burst-hops.

Steps of more parts are of large systems, which need more in full. With 1,024 the step of Llama 3 405B on 16,384 GPUs is
2.3% longer, a fifth of its exposed communication.
"""

REQUESTED = GrainRule(-1, -1, MOST_HOPS, FACTORS)
"""Rule of a requested burst size: no exact packets and no target, only limits."""

Limits = Callable[[int], Sequence[int]]
"""Most packets per burst of every stream, for a factor of `FACTORS`."""


@dataclass(frozen=True, slots=True)
class Grain:
    """Granularity of a run.

    Attributes
    ----------
    requested : str
        Requested granularity: ``auto``, ``packet`` or a size in bytes.
    burst : int
        Packets of the largest burst.
    burst_bytes : tuple of int
        Least and greatest payload of a burst over the streams that move data [bytes].
    packet_hops : int
        Estimated packet-hops of the run in exact packets.
    grant_hops : int
        Estimated burst-hops: the work of the engine.
    least_hops : int
        Estimated burst-hops in the largest bursts that the rule allows without loss of accuracy.
    buffer_growth : float
        Largest receive buffer of a wire, relative to that for exact packets.
    """

    requested: str
    burst: int
    burst_bytes: tuple[int, int]
    packet_hops: int
    grant_hops: int
    least_hops: int = 0
    buffer_growth: float = 1.0

    @property
    def exact(self) -> bool:
        """True if no burst has more than one packet."""
        return self.burst == 1

    @property
    def error_bound(self) -> float | None:
        """Error limit of the time, relative to exact packets; None is not known."""
        if self.exact:
            return 0.0
        rule = rule_of(self.requested)
        return (
            None if rule is None or self.buffer_growth > MOST_GROWTH else rule.error
        )

    @property
    def step_error(self) -> float | None:
        """Error limit of a step, relative to its exposed communication; None is not known."""
        return step_error(self.requested, self.burst)

    def describe(self) -> str:
        """Return one line on the granularity of the run and its error limit."""
        if self.exact:
            return f"exact packets ({self.packet_hops:,} packet-hops estimated)"
        low, high = self.burst_bytes
        size = f"{high}" if low == high else f"{low} to {high}"
        bound = self.error_bound
        off = "" if bound is None else f"; error limit {bound:.0%}"
        return f"bursts of {size} B ({self.requested}; {self.packet_hops:,} packet-hops as {self.grant_hops:,}{off})"


def step_error(granularity: str, burst: int) -> float | None:
    """Return `Grain.step_error` of a run with bursts of at most `burst` packets."""
    rule = rule_of(granularity)
    return 0.0 if burst == 1 else None if rule is None else rule.step_error


def check_granularity(granularity: str | int) -> str | int:
    """Return a valid granularity: ``packet``, a word of `rule_of` or a size [bytes]."""
    if isinstance(granularity, int):
        if granularity < 1:
            raise InputError(f"granularity {granularity}: must be at least 1 byte")
        if granularity > MAX_BURST_BYTES:
            raise InputError(f"granularity {granularity}: too coarse; at most 1 GiB")
        return granularity
    word = granularity.strip().lower()
    if word != "packet" and rule_of(word) is None:
        words = ", ".join(RULES)
        raise InputError(
            f"granularity {granularity!r}: unknown; use packet, {words} or a size in bytes"
        )
    return word


def name_of(granularity: str | int) -> str | int:
    """Return a granularity without the number of runs that share its burst-hops."""
    return (
        granularity.partition(SHARE)[0]
        if isinstance(granularity, str)
        else granularity
    )


def share_granularity(granularity: str | int, runs: int) -> str | int:
    """Return the granularity of each of `runs` runs that share the burst-hops of one; others than names are unchanged.

    The number of runs is rounded up to a power of two, so that similar groups of runs have equal granularities; above
    `MOST_SHARES` it is that.
    """
    if granularity not in RULES or runs < 2:
        return granularity
    return f"{granularity}{SHARE}{min(MOST_SHARES, 1 << (runs - 1).bit_length())}"


def rule_of(word: str) -> GrainRule | None:
    """Return the rule of a named granularity; None if it is not known.

    With ``/N`` at its end, limits and targets are 1/N, as for N runs that share the burst-hops of one, and packets are
    exact up to the target only.
    """
    name, divided, number = word.partition(SHARE)
    rule = RULES.get(name)
    if rule is None or not divided:
        return rule
    if not (number.isascii() and number.isdecimal() and int(number)):
        return None
    share = int(number)
    return replace(
        rule,
        exact_hops=min(rule.exact_hops, rule.target_hops) // share,
        target_hops=rule.target_hops // share,
        most_hops=rule.most_hops // share,
        slices_hops=None if rule.slices_hops is None else rule.slices_hops // share,
    )


def automatic(
    hops: Sequence[int], limits: Limits, word: str | int = "auto"
) -> list[int]:
    """Return the bursts of every stream by a rule of `RULES`; of a requested size, the largest within `limits`.

    Parameters
    ----------
    hops : sequence of int
        Packet-hops of every stream.
    """
    rule = REQUESTED if isinstance(word, int) else rule_of(word)
    assert rule is not None
    burst = 1
    if sum(hops) <= rule.exact_hops:
        return [1] * len(hops)
    counts, packets = np.asarray(hops, np.int64), np.ones(len(hops), np.int64)
    enough = [rule.most_hops] * len(rule.factors)
    factors = [*rule.factors]
    if rule.slices_hops is not None:
        enough[-1], factors = rule.slices_hops, [*factors, SLICE_SHARE]
    for factor, most_hops in zip(factors, [*enough, 0], strict=False):
        packets = np.asarray(limits(factor), np.int64)
        while (
            burst < packets.max(initial=1)
            and _total(counts, packets, burst) > rule.target_hops
        ):
            burst *= 2
        if _total(counts, packets, burst) <= most_hops:
            break
    result: list[int] = np.minimum(burst, packets).tolist()
    return result


def _total(hops: NDArray[np.int64], packets: NDArray[np.int64], burst: int) -> int:
    return int((hops // np.minimum(burst, packets)).sum())


def power_below(number: int) -> int:
    """Return the largest power of two that is at most `number`, 1 at least."""
    return 1 << (max(1, number).bit_length() - 1)
