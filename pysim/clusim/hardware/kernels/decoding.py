"""Kernels of decoding: attention of single queries to cached keys, absorbed latent attention, grouped experts.

**Hardware** Attention of one new token per sequence reads its keys and values once; libraries cut the keys of a
sequence over SMs (split-KV) and add the parts. Absorbed latent attention reads one compressed vector per token,
which all heads share. Grouped experts multiply the tokens of all experts of a rank in one kernel: it reads the
weights of the experts that have tokens, and rounds their tokens up to tiles.
**Model** A start, then memory traffic beside waves of heads over the SMs, or beside arithmetic, whichever is longer,
joined by a norm. Queries with a common head of keys are free. **Not modelled** Keys still in L2; pages that are
scattered; sliding windows.
**Parameters** `DecodeForm` and `ExpertForm`, by engine and architecture in ``hardware/engines.yaml``.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from typing import NamedTuple

from clusim.hardware.kernels.products import Silicon

TILE = 8
"""Tokens of an expert's tile; **assumed**: forms with 64 fit equally or worse, on all chips and engines."""


class Decoding(NamedTuple):
    """Attention of one token of each of `sequences` to its cached tokens.

    Attributes
    ----------
    kv_heads : int
        Heads of keys and values on the rank; latent attention has one for 64 heads of queries.
    kv_bytes : float
        Cache that is read [bytes].
    flops : float
        Operations of the products, which count for latent attention only.
    """

    sequences: int
    kv_heads: float
    kv_bytes: float
    flops: float = 0.0


@dataclass(frozen=True, slots=True)
class DecodeForm:
    """Efficiency of a library's decode attention.

    Attributes
    ----------
    start_us : float
        Time without work, its kernels' starts and the sum of parts included [us].
    share : float
        Fraction of the peak rate of memory.
    tile_us : float
        Time of a wave of heads after the first [us].
    norm : float
        Order of the norm that joins memory and waves: 1 is one after the other, large the longer only.
    rate : float
        Fraction of the dense peak at 16 bits of products; 0: free.
    """

    start_us: float
    share: float
    tile_us: float
    norm: float
    rate: float = 0.0

    def time_s(self, chip: Silicon, work: Decoding) -> float:
        """Return the time [s]; the rates of `chip` are its peaks."""
        units = work.sequences * work.kv_heads
        waves_s = max(0.0, units / chip.sms - 1) * self.tile_us * 1e-6
        memory_s = work.kv_bytes / (self.share * chip.memory_Bps)
        sums = waves_s**self.norm + memory_s**self.norm
        if self.rate:
            sums += (work.flops / (self.rate * chip.flops)) ** self.norm
        return float(self.start_us * 1e-6 + sums ** (1 / self.norm))


class Grouped(NamedTuple):
    """Experts of a rank and the tokens that they receive.

    Attributes
    ----------
    tokens : float
        Pairs of token and expert on the rank, all its experts together.
    active : float
        Experts that have tokens.
    weight_elements : int
        Elements of an expert's matrices.
    weight_bytes : float
        Size of an element [bytes].
    moved_elements : int
        Elements of activations that a token moves between the products.
    """

    tokens: float
    active: float
    weight_elements: int
    weight_bytes: float
    moved_elements: int


@dataclass(frozen=True, slots=True)
class ExpertForm:
    """Efficiency of a library's grouped experts.

    Attributes
    ----------
    start_us : float
        Time without work: choice, permutation and starts [us].
    share : float
        Fraction of the peak rate of memory, for weights.
    rate : float
        Fraction of the dense peak of the operands' type.
    norm : float
        As of `DecodeForm`.
    moved : float
        Fraction of the peak rate of memory, for activations.
    """

    start_us: float
    share: float
    rate: float
    norm: float
    moved: float

    def time_s(self, chip: Silicon, work: Grouped) -> float:
        """Return the time [s]; the rates of `chip` are its peaks at the operands' type."""
        if not work.tokens:
            return 0.0
        per_expert = work.tokens / work.active
        padded = work.active * ceil(per_expert / TILE) * TILE
        flops = 2 * padded * work.weight_elements
        read_bytes = work.active * work.weight_elements * work.weight_bytes
        memory_s = read_bytes / (self.share * chip.memory_Bps)
        product_s = flops / (self.rate * chip.flops)
        joint_s = (memory_s**self.norm + product_s**self.norm) ** (1 / self.norm)
        moved_s = (
            2 * work.tokens * work.moved_elements / (self.moved * chip.memory_Bps)
        )
        return float(self.start_us * 1e-6 + joint_s + moved_s)


def active_experts(experts: int, local: int, top_k: int, tokens: int) -> float:
    """Return the average number of `local` experts of `experts` that tokens choose evenly, `top_k` each."""
    return max(1.0, local * (1 - (1 - top_k / experts) ** tokens))
