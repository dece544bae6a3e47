"""Expert exchanges as DeepEP makes them: a token goes once to each rank that has one of its experts.

**Hardware** and figures see `clusim.hardware.deepep`. **Model** Experts are chosen evenly: a rank with E/N of E experts
has one of a token's k with the probability 1 - C(E - E/N, k) / C(E, k). With a limit of L machines these are chosen
evenly first, and the experts among theirs. Between machines a token goes once to each machine that has one of its
experts, to the GPU with the same place there, which hands it on inside (normal kernels); or to each of its experts,
straight to their ranks (kernels for low latency). **Not modelled** What goes
with a token of the normal kernels: its source and weights.
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
"""Bytes that say where a token comes from (``num_bytes_per_dispatch_msg``, csrc/kernels/internode_ll.cu)."""

QUICK_BLOCKS = 32
"""Thread blocks among which messages of the kernels for low latency are divided, so many that wires are the limit:
assumed, with tables of 8 H100 in view."""

BLOCKS = 128
"""Thread blocks that the kernels for low latency have at most, one for each expert or several experts."""


class Exchanged(NamedTuple):
    """Exchange of a rank: inside its node (or with all ranks), and with other nodes, its own part included in both
    [bytes]; 0 is nothing of its own.
    """

    inside: int
    across: int = 0


@dataclass(frozen=True, slots=True)
class Routed:
    """Tokens of a rank that each visit `top_k` of `experts`, which `ranks` on `machines` have among them.

    Attributes
    ----------
    limit : int
        Machines that have all experts of a token; 0 is any.
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
        """Copies that reach ranks, those to the token's own included, on average."""
        return self.tokens * self._met(self.ranks)

    @property
    def visits(self) -> Fraction:
        """Copies that reach machines, those to the token's own included, on average."""
        return self.tokens * self._met(self.machines)

    def _met(self, parts: int) -> Fraction:
        """Return how many of so many equal parts have an expert of a token, on average."""
        share = Fraction(self.limit or self.machines, self.machines)
        pool, each = int(self.experts * share), self.experts // parts
        missed = Fraction(comb(pool - each, self.top_k), comb(pool, self.top_k))
        return parts * share * (1 - missed)


@dataclass(frozen=True, slots=True)
class DeepEp:
    """Mode of expert exchanges.

    Attributes
    ----------
    sms : int
        Thread blocks that they get.
    fp8 : bool
        What is dispatched has 8 bits.
    machines : int
        Machines that the ranks of a group are on, as many on each.
    limit : int
        Machines that have all experts of a token; 0 is any.
    low_latency : bool
        By the kernels for low latency.
    inside_Bps : float
        What a GPU sends to others of its machine [B/s].
    """

    sms: int = 20
    fp8: bool = False
    machines: int = 1
    limit: int = 0
    low_latency: bool = False
    inside_Bps: float = 0.0

    @property
    def blocks(self) -> int:
        """Thread blocks that move data; those for low latency are never what limits them."""
        return QUICK_BLOCKS if self.low_latency else self.sms

    def routed(self, tokens: int, hidden: int, ranks: int, experts: tuple[int, int]) -> Routed:
        """Return the destinations of a rank's tokens; `experts` are all and those of a token."""
        return Routed(tokens, hidden, ranks, *experts, self.machines, self.limit)

    def exchanged(self, way: Way, routed: Routed, element: int) -> Exchanged:
        """Return the exchange, in whole blocks for all ranks."""
        token = routed.hidden * element
        if way == "dispatch" and self.fp8:
            token = routed.hidden + -(-routed.hidden // SCALED) * 4
        if self.low_latency:
            token += MARK if way == "dispatch" else 0
            size = _whole(routed.tokens * routed.top_k * token, routed.ranks)
            # Its NIC gets what a GPU sends to other machines, wherever in them it goes.
            return Exchanged(size // routed.machines, size if routed.machines > 1 else 0)
        inside = _whole(routed.copies * token, routed.ranks)
        if routed.machines == 1:
            return Exchanged(inside)
        return Exchanged(inside, _whole(routed.visits * token, routed.ranks))

    def least_ps(self, way: Way, routed: Routed, size: int) -> int:
        """Return the time of thread blocks for a number of bytes, on wires that cost nothing [ps]."""
        if self.low_latency:
            return self._low_latency_ps(f"low_latency_{way}", routed, size)
        rate = parse_rate(str(DEEPEP[f"{way}_rate"].value))
        through = routed.tokens * _time(f"{way}_token")
        return _time(f"{way}_fixed") + int(
            (through + Fraction(size * rate.den, rate.num)) / self.sms
        )

    def _low_latency_ps(self, name: str, routed: Routed, size: int) -> int:
        """Return the same for the kernels for low latency: what stays in the machine, or tokens block by block."""
        blocks = -(-routed.experts // -(-routed.experts // BLOCKS))
        near = size * (1 - routed.machines / routed.ranks)
        share = DEEPEP[f"{name}_share"].value
        assert isinstance(share, float)
        moved_ps = near / (share * self.inside_Bps) * 1e12 if near else 0.0
        fixed_ps = _time(f"{name}_fixed") + routed.experts * _time(f"{name}_expert")
        return fixed_ps + round(max(moved_ps, routed.tokens * _time(f"{name}_token") / blocks))


def _time(name: str) -> int:
    return parse_time(str(DEEPEP[name].value))


def _whole(size: Fraction | int, ranks: int) -> int:
    return -(-int(size) // (16 * ranks)) * 16 * ranks
