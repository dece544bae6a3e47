"""Expert exchanges of DeepEP: a token is sent once to each rank that has one of its experts.

**Hardware** and parameters: see `clusim.hardware.ctas`. **Model** Experts are chosen evenly: a rank
with E/N of E experts has one of a token's k with the probability 1 - C(E - E/N, k) / C(E, k). With a
limit of L nodes these are chosen evenly first, then the experts among theirs. Between nodes a token is
sent once to each node that has one of its experts, to the GPU with the same place there, which forwards
it inside (normal kernels); or to each of its experts, directly to their ranks (low-latency kernels).
**Not modelled** Metadata sent with a token by the normal kernels: its source and weights.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from math import comb
from typing import Literal, NamedTuple

from clusim.base.units import parse_rate, parse_time
from clusim.hardware import DEEPEP

Way = Literal["dispatch", "combine"]

SCALED = 128
"""Elements in 8 bits that share a scale of 4 bytes."""

MARK = 16
"""Bytes that identify the source of a token (``num_bytes_per_dispatch_msg``, csrc/kernels/internode_ll.cu)."""

QUICK_BLOCKS = 32
"""CTAs that share the messages of low-latency kernels, enough that wires are the limit: assumed, consistent
with tables of 8 H100.
"""

BLOCKS = 128
"""Most CTAs of low-latency kernels, one for each expert or several experts."""


class Exchanged(NamedTuple):
    """Exchange of a rank inside its node (or with all ranks), and with other nodes [bytes].

    Local data are included; 0 if unused.
    """

    inside: int
    across: int = 0


@dataclass(frozen=True, slots=True)
class Routed:
    """Tokens of a rank, each with `top_k` of `experts`, spread over `ranks` on `machines`.

    Attributes
    ----------
    limit : int
        Most nodes with experts of a token; 0 is no limit.
    """

    tokens: int
    hidden: int
    ranks: int
    experts: int
    top_k: int
    machines: int = 1
    limit: int = 0

    @property
    def copies(self) -> Fraction:
        """Average copies that reach ranks, including the token's own rank."""
        return self.tokens * self._met(self.ranks)

    @property
    def visits(self) -> Fraction:
        """Average copies that reach nodes, including the token's own node."""
        return self.tokens * self._met(self.machines)

    def _met(self, parts: int) -> Fraction:
        """Return the average number of `parts` equal parts that have an expert of a token."""
        share = Fraction(self.limit or self.machines, self.machines)
        pool, per_part = int(self.experts * share), self.experts // parts
        missed = Fraction(comb(pool - per_part, self.top_k), comb(pool, self.top_k))
        return parts * share * (1 - missed)


@dataclass(frozen=True, slots=True)
class DeepEp:
    """Mode of expert exchanges.

    Attributes
    ----------
    sms : int
        CTAs of an exchange.
    fp8 : bool
        True if dispatched data have 8 bits.
    machines : int
        Nodes of the ranks of a group, with equally many ranks on each.
    limit : int
        Most nodes with experts of a token; 0 is no limit.
    low_latency : bool
        True for the low-latency kernels.
    inside_Bps : float
        Rate of a GPU to others of its node [B/s].
    """

    sms: int = 20
    fp8: bool = False
    machines: int = 1
    limit: int = 0
    low_latency: bool = False
    inside_Bps: float = 0.0

    @property
    def blocks(self) -> int:
        """CTAs that move data; with low-latency kernels enough that they are never the limit."""
        return QUICK_BLOCKS if self.low_latency else self.sms

    def route_tokens(
        self, tokens: int, hidden: int, ranks: int, experts: tuple[int, int]
    ) -> Routed:
        """Return the destinations of a rank's tokens; `experts` are the total and those per token."""
        return Routed(tokens, hidden, ranks, *experts, self.machines, self.limit)

    def exchange_sizes(
        self, direction: Way, routed: Routed, element: int
    ) -> Exchanged:
        """Return the sizes of an exchange, rounded up to equal 16-byte blocks for all ranks."""
        token = routed.hidden * element
        if direction == "dispatch" and self.fp8:
            token = routed.hidden + -(-routed.hidden // SCALED) * 4
        if self.low_latency:
            token += MARK if direction == "dispatch" else 0
            size = _round_up(routed.tokens * routed.top_k * token, routed.ranks)
            # The NIC carries all bytes of a GPU to other nodes, for any of their ranks.
            return Exchanged(
                size // routed.machines, size if routed.machines > 1 else 0
            )
        inside = _round_up(routed.copies * token, routed.ranks)
        if routed.machines == 1:
            return Exchanged(inside)
        return Exchanged(inside, _round_up(routed.visits * token, routed.ranks))

    def least_ps(self, direction: Way, routed: Routed, size: int) -> int:
        """Return the CTA time for a number of bytes, on infinitely fast wires [ps]."""
        if self.low_latency:
            return self._low_latency_ps(f"low_latency_{direction}", routed, size)
        rate = parse_rate(str(DEEPEP[f"{direction}_rate"].value))
        through = routed.tokens * _time(f"{direction}_token")
        return _time(f"{direction}_fixed") + int(
            (through + Fraction(size * rate.den, rate.num)) / self.sms
        )

    def _low_latency_ps(self, name: str, routed: Routed, size: int) -> int:
        """Return the CTA time of low-latency kernels [ps].

        It is the longer of the copies inside the node and the tokens per CTA.
        """
        blocks = -(-routed.experts // -(-routed.experts // BLOCKS))
        remote_bytes = size * (1 - routed.machines / routed.ranks)
        share = DEEPEP[f"{name}_share"].value
        assert isinstance(share, float)
        moved_ps = (
            remote_bytes / (share * self.inside_Bps) * 1e12 if remote_bytes else 0.0
        )
        fixed_ps = _time(f"{name}_fixed") + routed.experts * _time(f"{name}_expert")
        return fixed_ps + round(
            max(moved_ps, routed.tokens * _time(f"{name}_token") / blocks)
        )


def _time(name: str) -> int:
    return parse_time(str(DEEPEP[name].value))


def _round_up(size: Fraction | int, ranks: int) -> int:
    return -(-int(size) // (16 * ranks)) * 16 * ranks
