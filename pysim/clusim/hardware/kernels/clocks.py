"""The clock that a power cap leaves, without what else a long run costs (`steady` of an architecture).

**Hardware** A GPU runs at its boost clock until it draws what its board may draw; then it lowers clock and voltage.
Memory keeps its own clock. **Model** A dense matrix product at the clock behind the peak rate would draw the idle power
and its operations times their energy. Voltage follows the clock, so that the power of arithmetic falls with its third
power: the clock is the third root of what the cap leaves for it, and never above the one behind the peak rate.
**Not modelled** Temperature, differences between boards, the milliseconds until the cap takes hold, clocks above the
one behind the peak rate. **Parameters** `power` of the chip; `idle_power` and `flop_energy` of its architecture.
"""

from __future__ import annotations

from dataclasses import dataclass

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
