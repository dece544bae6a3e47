"""Kernels that move data: what part of the memory rate each kind reaches.

**Hardware** Copies, sums and optimisers stream through memory. Kernels with functions in them (activations, dropout
with its random numbers) and kernels that reduce rows (norms, softmax, cross-entropy) hold registers and wait for
partial sums, and reach less. Norms of an eager framework read their rows again for every sum; those of kernel libraries
and compilers keep them in registers. **Model** A share of the rate of copies for every kind, and the fill of the memory
system in front. **Not modelled** What a library makes of one kernel: fused ones differ from release to release; data
that are still in L2. **Parameters** `SHARES`, `EAGER_NORM`, `FILL_US`.

The clock that a power cap leaves, without what else a long run costs (`steady` of an architecture).

**Hardware** A GPU runs at its boost clock until it draws what its board may draw; then it lowers clock and voltage.
Memory keeps its own clock. **Model** A dense matrix product at the clock behind the peak rate would draw the idle power
and its operations times their energy. Voltage follows the clock, so that the power of arithmetic falls with its third
power: the clock is the third root of what the cap leaves for it, and never above the one behind the peak rate.
**Not modelled** Temperature, differences between boards, the milliseconds until the cap takes hold, clocks above the
one behind the peak rate. **Parameters** `power` of the chip; `idle_power` and `flop_energy` of its architecture.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

LEAST = 0.3
"""Clock that every chip keeps."""

_NARROW = (60, 70, 72, 75, 80)
"""Compute capabilities, times ten, whose SMs have 64 lanes of 32 bits; the others have 128 (CUDA programming guide)."""


@dataclass(frozen=True, slots=True)
class Power:
    """Power limit of a GPU, and the power of its arithmetic.

    Attributes
    ----------
    cap_W : float
        What the board may draw for long [W]; 0 is unknown: nothing is capped.
    idle_W : float
        Without arithmetic [W].
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
    """Return the clock that dense matrix products keep for long, against the one behind the peak rate."""
    need_W = power.flops * power.flop_pJ * 1e-12
    left_W = power.cap_W - power.idle_W
    if not power.cap_W or need_W <= left_W:
        return 1.0
    return float(max(LEAST, (max(0.0, left_W) / need_W) ** (1 / 3)))


def vector_clock_Hz(flops: float, sms: int, compute_capability: int) -> float:
    """Return the boost clock of an NVIDIA chip, which is behind its published peak of 32-bit arithmetic [Hz].

    Parameters
    ----------
    flops : float
        That peak; a lane multiplies and adds once a clock [FLOP/s].
    compute_capability : int
        Times ten.
    """
    lanes = 64 if compute_capability in _NARROW else 128
    return flops / (2 * lanes * sms)


Kind = Literal["copy", "function", "rows", "norm"]

SHARES: dict[Kind, float] = {"copy": 1.0, "function": 0.85, "rows": 0.75, "norm": 0.85}
"""Part of the rate of copies. *copy*: additions reach 1.03 to 1.07 of it (microsoft/vidur, A100 and H100). *norm*:
calibrated on Liger's layer norms of 2,048 and 8,192 features on A100, both passes (linkedin/Liger-Kernel). *function*
and *rows*: assumed, between kernels of serving engines and fused training kernels, which are written for it."""

EAGER_NORM = 0.65
"""The same of PyTorch's own layer norm, both passes: calibrated on 4,096 rows of 2,048 and 8,192 features on A100 and
H100 (linkedin/Liger-Kernel)."""

FILL_US = 1.0
"""Until the memory system is full, and until it is empty [us]; assumed: two latencies of memory."""

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
    """Return the time of a kernel that moves data [s], at a rate that copies reach.

    Parameters
    ----------
    eager : bool
        Kernels are those of an eager framework, an operator each.
    """
    if not size_bytes:
        return 0.0
    kind = kind_of(name)
    share = EAGER_NORM if eager and kind == "norm" else SHARES[kind]
    return FILL_US * 1e-6 + size_bytes / (memory_Bps * share)
