"""Fused attention: scores, softmax and values in one kernel, block by block.

**Hardware** A block of 128 rows of queries stays on an SM and meets the keys block by block: two
products on tensor cores, and an exponential for every score, on dedicated units that are slow in
comparison. With a causal mask a block of rows meets the keys up to its diagonal block. The backward pass
recomputes the scores and performs five products. **Model** Every pair of a block of rows and a block of
keys costs its products and its exponentials; blocks are spread over SMs in waves, and no wave ends
before its longest block. This overlaps with the traffic of queries, keys, values and outputs. **Not
modelled** Splitting keys over SMs (decoding), pages of keys, dropout, sliding windows.
**Parameters** `FusedForm`, fitted by architecture and library to measured kernels.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import lru_cache
from math import ceil
from typing import Any

from clusim.hardware.kernels.products import Silicon

BLOCK = 128
"""Rows and columns of a block."""


@dataclass(frozen=True, slots=True)
class Fused:
    """Attention of `rows` queries to `columns` keys, for each of `batch` samples.

    Attributes
    ----------
    heads, kv_heads : int
        Of queries; of keys and values.
    query, value : int
        Size of a head of queries and keys; of values.
    causal : bool
        Later keys are masked.
    backward : bool
        Gradients of queries, keys and values.
    """

    batch: int
    heads: int
    kv_heads: int
    rows: int
    columns: int
    query: int
    value: int
    causal: bool = False
    backward: bool = False

    @property
    def pairs(self) -> float:
        """Blocks of keys that the blocks of rows of a head meet."""
        down, right = ceil(self.rows / BLOCK), ceil(self.columns / BLOCK)
        if not self.causal:
            return down * right
        # Row i of blocks ends right - down + i + 1 blocks in, as masks are aligned at the last key.
        return float(sum(min(right, max(1, right - down + i + 1)) for i in range(down)))

    @property
    def moved(self) -> int:
        """Elements read and written once: queries, outputs, keys, values; also their gradients if backward."""
        own = self.heads * self.rows + self.kv_heads * self.columns
        return self.batch * own * (self.query + self.value) * (2 if self.backward else 1)


@dataclass(frozen=True, slots=True)
class FusedForm:
    """Efficiency of a library's attention.

    Attributes
    ----------
    start_us : float
        From the launch to the first block, and the end [us].
    rate : float
        Arithmetic rate of the inner products, relative to the largest matrix products.
    score_ps : float
        Additional time per score on one SM [ps].
    block_us : float
        Start and end of a block of rows [us].
    memory : float
        Memory rate, relative to the achievable rate.
    sharp : float
        Order of the norm by which arithmetic and memory overlap: 1 one after the other, large the longer only.
    whole : float
        Fraction of the last wave that waits, from 0 to 1 (a complete wave).
    """

    start_us: float
    rate: float
    score_ps: float
    block_us: float
    memory: float
    sharp: float
    whole: float

    @classmethod
    def of(cls, given: dict[str, Any]) -> FusedForm:
        """Return the form that a file has."""
        return cls(**{field.name: float(given[field.name]) for field in fields(cls)})


@lru_cache(maxsize=65536)
def fused_s(form: FusedForm, chip: Silicon, fused: Fused, element_bytes: int = 2) -> float:
    """Return the time of fused attention [s]."""
    down = ceil(fused.rows / BLOCK)
    blocks = fused.batch * fused.heads * down
    products = 5 if fused.backward else 2
    flops = products * BLOCK * BLOCK * (fused.query + fused.value)
    pair_s = flops * chip.sms / (chip.flops * form.rate) + BLOCK * BLOCK * form.score_ps * 1e-12
    block_s = form.block_us * 1e-6 + fused.pairs / down * pair_s
    waves = blocks / chip.sms
    waves = max(1.0, form.whole * ceil(waves) + (1.0 - form.whole) * waves)
    longest_s = form.block_us * 1e-6 + ceil(fused.columns / BLOCK) * pair_s
    memory_s = element_bytes * fused.moved / (form.memory * chip.memory_Bps)
    most, other = sorted((max(waves * block_s, longest_s), memory_s), reverse=True)
    together = most * (1.0 + (other / most) ** form.sharp) ** (1.0 / form.sharp)
    return float(form.start_us * 1e-6 + together)
