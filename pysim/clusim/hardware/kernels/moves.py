"""Kernels that move data: what part of the memory rate each kind reaches.

**Hardware** Copies, sums and optimisers stream through memory. Kernels with functions in them (activations, dropout
with its random numbers) and kernels that reduce rows (norms, softmax, cross-entropy) hold registers and wait for
partial sums, and reach less. Norms of an eager framework read their rows again for every sum; those of kernel libraries
and compilers keep them in registers. **Model** A share of the rate of copies for every kind, and the fill of the memory
system in front. **Not modelled** What a library makes of one kernel: fused ones differ from release to release; data
that are still in L2. **Parameters** `SHARES`, `EAGER_NORM`, `FILL_US`.
"""

from __future__ import annotations

import re
from typing import Literal

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
