"""Kinds of times, in the terms of every command."""

from __future__ import annotations

KERNEL = "kernel only"
"""From the start of a collective's kernels to the end of the last kernel."""

LAUNCHED = "with launch overhead, as nccl-tests reports it"
"""An iteration of a stream of collectives: the kernel, and the time until the next kernel."""

MODEL = "NCCL's cost model"
"""Estimate of NCCL's tuner, on which its choice is based; it is not simulated."""


def includes(launched_us: float | None, model_us: float | None) -> str:
    """Return the label of a kernel's time, followed by the other times [us]."""
    parts = [KERNEL]
    if launched_us is not None:
        parts.append(f"{launched_us:,.2f} us {LAUNCHED}")
    if model_us is not None:
        parts.append(f"{model_us:,.1f} us by {MODEL}")
    return "; ".join(parts)
