"""Kinds of times, in the terms of every command."""

from __future__ import annotations

KERNEL = "kernel only"
"""From the start of a collective's kernels until the last one ends."""

LAUNCHED = "with launch overhead, as nccl-tests reports it"
"""An iteration of a stream of collectives: the kernel, and what comes between it and the next."""

MODEL = "NCCL's cost model"
"""Estimate of NCCL's tuner, by which it chooses; nothing is simulated for it."""


def includes(launched_us: float | None, model_us: float | None) -> str:
    """Return the meaning of a kernel's time, with the times of other meaning [us]."""
    parts = [KERNEL]
    if launched_us is not None:
        parts.append(f"{launched_us:,.2f} us {LAUNCHED}")
    if model_us is not None:
        parts.append(f"{model_us:,.1f} us by {MODEL}")
    return "; ".join(parts)
