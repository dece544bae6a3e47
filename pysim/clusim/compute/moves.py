"""Kernels that move data: what part of the memory rate each kind reaches.

**Hardware** Copies and optimisers stream through memory. Kernels with functions in them (activations, dropout with its
random numbers) and kernels that reduce rows (norms, softmax, cross-entropy) hold registers and wait for partial sums,
and reach less. **Model** A share of the rate of copies for every kind, and the fill of the memory system in front.
**Not modelled** What a library makes of one kernel: fused ones differ from release to release; data that are still in
L2. **Parameters** `SHARES`, `FILL_US`.
"""

from __future__ import annotations

import re
from typing import Literal

__all__ = ["FILL_US", "SHARES", "Kind", "kind_of", "moved_s"]

Kind = Literal["copy", "function", "rows"]

SHARES: dict[Kind, float] = {"copy": 1.0, "function": 0.85, "rows": 0.75}
"""Part of the rate of copies. Assumed: between the kernels of serving engines on A100 (activations 950 to 1040 GB/s,
norms 700 to 950, additions 1780 of 2039; microsoft/vidur) and fused training kernels, which are written for it."""

FILL_US = 1.0
"""Until the memory system is full, and until it is empty [us]; assumed: two latencies of memory."""

_ROWS = re.compile(r"\b(norm|softmax|entropy)\b")
_FUNCTIONS = re.compile(r"\b(activation|residual|dropout|rotary)\b")


def kind_of(name: str) -> Kind:
    """Return the kind of a kernel by its name in a layer."""
    if _ROWS.search(name):
        return "rows"
    return "function" if _FUNCTIONS.search(name) else "copy"


def moved_s(name: str, size_bytes: float, memory_Bps: float) -> float:
    """Return what a kernel that moves data takes [s], at a rate that copies reach."""
    if not size_bytes:
        return 0.0
    return FILL_US * 1e-6 + size_bytes / (memory_Bps * SHARES[kind_of(name)])
