"""Kernels that move data, and the clock under a power cap.

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
from dataclasses import dataclass
from typing import Literal

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

SHARES: dict[Kind, float] = {"copy": 1.0, "function": 0.85, "rows": 0.75, "norm": 0.85}
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


def moved_s(name: str, size_bytes: float, memory_Bps: float, *, eager: bool = False) -> float:
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
