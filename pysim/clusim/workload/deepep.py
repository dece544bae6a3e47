"""Expert exchanges as DeepEP makes them: a token goes once to each rank that has one of its experts.

**Hardware** and figures see `clusim.hardware.deepep`. **Model** Experts are chosen evenly: a rank with E/N of E experts
has one of a token's k with the probability 1 - C(E - E/N, k) / C(E, k). **Not modelled** Choices limited to groups.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from math import comb
from typing import Literal

from clusim.hardware import DEEPEP
from clusim.units import parse_rate, parse_time

__all__ = ["DeepEp", "Routed"]

SCALED = 128
"""Elements in 8 bits that share a scale of 4 bytes."""


@dataclass(frozen=True, slots=True)
class Routed:
    """Tokens of a rank that each visit `top_k` of `experts`, which `ranks` have among them."""

    tokens: int
    hidden: int
    ranks: int
    experts: int
    top_k: int

    @property
    def copies(self) -> Fraction:
        """Copies that leave a rank, those to itself included, on average."""
        there = self.experts // self.ranks
        missed = Fraction(comb(self.experts - there, self.top_k), comb(self.experts, self.top_k))
        return self.tokens * self.ranks * (1 - missed)


@dataclass(frozen=True, slots=True)
class DeepEp:
    """How exchanges are made: thread blocks that they get, and whether what is dispatched has 8 bits."""

    sms: int = 20
    fp8: bool = False

    def size_bytes(self, kind: Literal["dispatch", "combine"], routed: Routed, element: int) -> int:
        """Return what a rank gives or gets, its own part included, in whole blocks for all ranks [bytes]."""
        token = routed.hidden * element
        if kind == "dispatch" and self.fp8:
            token = routed.hidden + -(-routed.hidden // SCALED) * 4
        return -(-int(routed.copies * token) // (16 * routed.ranks)) * 16 * routed.ranks

    def least_ps(self, kind: Literal["dispatch", "combine"], tokens: int, size: int) -> int:
        """Return what the thread blocks need for so many tokens and bytes, on wires that cost nothing [ps]."""
        rate = parse_rate(str(DEEPEP[f"{kind}_rate"].value))
        through = tokens * parse_time(str(DEEPEP[f"{kind}_token"].value))
        fixed = parse_time(str(DEEPEP[f"{kind}_fixed"].value))
        return fixed + int((through + Fraction(size * rate.den, rate.num)) / self.sms)
