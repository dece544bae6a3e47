"""Fused attention: scores, softmax and values in one kernel, block by block.

**Hardware** A block of 128 rows of queries stays on an SM and meets the keys block by block: two
products on tensor cores, and an exponential for every score, on dedicated units that are slow in
comparison. With a causal mask a block of rows meets the keys up to its diagonal block. The backward pass
recomputes the scores and performs five products. **Model** Every pair of a block of rows and a block of
keys costs its products and its exponentials; blocks are spread over SMs in waves, and no wave ends
before its longest block. This overlaps with the traffic of queries, keys, values and outputs. **Not
modelled** Splitting keys over SMs (decoding), pages of keys, dropout, sliding windows.
**Parameters** `FusedForm`, fitted by architecture and library to measured kernels.

Kernels that move data, and the clock under a power cap.

**Hardware** Copies, sums and optimisers stream through memory. Kernels with functions (activations,
dropout with its random numbers) and kernels that reduce rows (norms, softmax, cross-entropy) hold
registers and wait for partial sums, and are slower. Norms of an eager framework read their rows again
for every sum; those of kernel libraries and compilers keep them in registers. A GPU runs at its boost
clock until it reaches the power limit of its board; then it lowers clock and voltage. Memory keeps its
clock.
**Model** A share of the rate of copies for every kind, preceded by the fill of the memory system. A
dense matrix product at the clock of the peak rate would draw the idle power and its operations times
their energy. Voltage follows the clock, so that the power of arithmetic falls with its third power: the
clock is the third root of the power that the cap leaves for arithmetic, and never above the clock of the
peak rate. Other costs of a long run are in `steady` of an architecture.
**Not modelled** Kernel fusion, which differs between releases of libraries; data still in L2; temperature,
differences between boards, the milliseconds until the cap takes effect, clocks above the one of the peak
rate.
**Parameters** `SHARES`, `EAGER_NORM`, `FILL_US`; `power` of the chip; `idle_power` and `flop_energy` of
its architecture.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, fields
from functools import lru_cache
from math import ceil
from typing import Any, Literal

from clusim.hardware.kernels.products import Silicon

LEAST = 0.3
"""Clock that every chip keeps."""

_NARROW = (60, 70, 72, 75, 80)
"""Compute capabilities, times ten, of chips with 64 lanes of 32 bits per SM.

Other chips have 128 (CUDA programming guide).
"""


@dataclass(frozen=True, slots=True)
class Power:
    """Power limit of a GPU, and the power of its arithmetic.

    Attributes
    ----------
    cap_W : float
        Sustained power limit of the board [W]; 0 if unknown (no cap).
    idle_W : float
        Power without arithmetic [W].
    flop_pJ : float
        Energy of an operation [pJ].
    flops : float
        Dense peak at 16 bits [FLOP/s]; types of fewer bits do more operations for the same power.
    """

    cap_W: float
    idle_W: float
    flop_pJ: float
    flops: float


def kept_clock(power: Power) -> float:
    """Return the sustained clock of dense matrix products, relative to that of the peak rate."""
    need_W = power.flops * power.flop_pJ * 1e-12
    left_W = power.cap_W - power.idle_W
    if not power.cap_W or need_W <= left_W:
        return 1.0
    return float(max(LEAST, (max(0.0, left_W) / need_W) ** (1 / 3)))


def vector_clock_Hz(flops: float, sms: int, compute_capability: int) -> float:
    """Return the boost clock that gives an NVIDIA chip's peak of 32-bit arithmetic [Hz].

    Parameters
    ----------
    flops : float
        Published peak; a lane multiplies and adds once per clock [FLOP/s].
    compute_capability : int
        Times ten.
    """
    lanes = 64 if compute_capability in _NARROW else 128
    return flops / (2 * lanes * sms)


Kind = Literal["copy", "function", "rows", "norm"]

SHARES: dict[Kind, float] = {
    "copy": 1.0,
    "function": 0.85,
    "rows": 0.75,
    "norm": 0.85,
}
"""Kernel rates relative to copies.

*copy*: additions reach 1.03 to 1.07 of it (microsoft/vidur, A100 and H100). *norm*: calibrated on
Liger's layer norms of 2,048 and 8,192 features on A100, both passes (linkedin/Liger-Kernel). *function*
and *rows*: assumed, between kernels of serving engines and specialised fused training kernels.
"""

EAGER_NORM = 0.65
"""Rate of PyTorch's layer norm, both passes, relative to copies.

Calibrated on 4,096 rows of 2,048 and 8,192 features on A100 and H100 (linkedin/Liger-Kernel).
"""

FILL_US = 1.0
"""Time to fill and drain the memory system [us]; assumed: two memory latencies."""

_NORMS = re.compile(r"^(?!summed).*\bnorm\b")
_ELEMENTS = re.compile(r"\bentropy (cast|difference|exponent|quotient)\b")
_ROWS = re.compile(r"\b(softmax|entropy)\b")
_FUNCTIONS = re.compile(r"\b(activation|residual|dropout|rotary)\b")


def kind_of(name: str) -> Kind:
    """Return the kind of a kernel by its name in a layer."""
    if _NORMS.search(name):
        return "norm"
    if _ROWS.search(name):
        return "copy" if _ELEMENTS.search(name) else "rows"
    return "function" if _FUNCTIONS.search(name) else "copy"


def moved_s(
    name: str, size_bytes: float, memory_Bps: float, *, eager: bool = False
) -> float:
    """Return the time of a kernel that moves data [s], given the rate of copies.

    Parameters
    ----------
    eager : bool
        True for kernels of an eager framework, one per operator.
    """
    if not size_bytes:
        return 0.0
    kind = kind_of(name)
    share = EAGER_NORM if eager and kind == "norm" else SHARES[kind]
    return FILL_US * 1e-6 + size_bytes / (memory_Bps * share)


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
        return float(
            sum(min(right, max(1, right - down + i + 1)) for i in range(down))
        )

    @property
    def elements_moved(self) -> int:
        """Elements read and written once: queries, outputs, keys, values; also their gradients if backward."""
        vectors = self.heads * self.rows + self.kv_heads * self.columns
        return (
            self.batch
            * vectors
            * (self.query + self.value)
            * (2 if self.backward else 1)
        )


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
    def of(cls, values: dict[str, Any]) -> FusedForm:
        """Return the form that a file has."""
        return cls(
            **{field.name: float(values[field.name]) for field in fields(cls)}
        )


@lru_cache(maxsize=65536)
def fused_s(
    form: FusedForm, chip: Silicon, fused: Fused, element_bytes: int = 2
) -> float:
    """Return the time of fused attention [s]."""
    down = ceil(fused.rows / BLOCK)
    blocks = fused.batch * fused.heads * down
    products = 5 if fused.backward else 2
    flops = products * BLOCK * BLOCK * (fused.query + fused.value)
    pair_s = (
        flops * chip.sms / (chip.flops * form.rate)
        + BLOCK * BLOCK * form.score_ps * 1e-12
    )
    block_s = form.block_us * 1e-6 + fused.pairs / down * pair_s
    waves = blocks / chip.sms
    waves = max(1.0, form.whole * ceil(waves) + (1.0 - form.whole) * waves)
    longest_s = form.block_us * 1e-6 + ceil(fused.columns / BLOCK) * pair_s
    memory_s = element_bytes * fused.elements_moved / (form.memory * chip.memory_Bps)
    longer_s, other = sorted(
        (max(waves * block_s, longest_s), memory_s), reverse=True
    )
    joint_s = longer_s * (1.0 + (other / longer_s) ** form.sharp) ** (
        1.0 / form.sharp
    )
    return float(form.start_us * 1e-6 + joint_s)
