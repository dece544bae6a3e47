"""Kinds of times in all commands, and regimes by which prediction errors are grouped.

A regime is a range of sizes on one or several nodes.
"""

from __future__ import annotations

MIB = 1 << 20
REGIMES = {"small": (0, MIB), "mid": (MIB, 64 * MIB), "large": (64 * MIB, 1 << 62)}
"""Name -> lower limit (included) and upper limit (excluded) [bytes]."""

REGIME_TITLES = {
    "small": "< 1 MiB",
    "mid": "1 MiB to < 64 MiB",
    "large": ">= 64 MiB",
}
"""Regime -> its sizes."""

ONE, SEVERAL = "one node", "several nodes"


def regime_of(size_bytes: int) -> str:
    """Return the regime of a size."""
    return next(
        name for name, (low, high) in REGIMES.items() if low <= size_bytes < high
    )


def place_of(num_nodes: int) -> str:
    """Return the label of a number of nodes: one or several."""
    return ONE if num_nodes == 1 else SEVERAL


KERNEL = "kernel only"
"""From the start of a collective's kernels to the end of the last kernel."""

LAUNCHED = "with launch overhead, as nccl-tests reports it"
"""An iteration of a stream of collectives: the kernel, and the time until the next kernel."""

MODEL = "NCCL's cost model"
"""Estimate of NCCL's tuner, on which its choice is based; it is not simulated."""


TICK_PS = 1000
"""Resolution of the host's clock, ``clock_gettime``."""


def ticks_ps(time_ps: int) -> int:
    """Return a time as a clock that was started at a tick measures it: rounded up [ps]."""
    return time_ps + -time_ps % TICK_PS


def includes(launched_us: float | None, model_us: float | None) -> str:
    """Return the label of a kernel's time, followed by the other times [us]."""
    parts = [KERNEL]
    if launched_us is not None:
        parts.append(f"{launched_us:,.2f} us {LAUNCHED}")
    if model_us is not None:
        parts.append(f"{model_us:,.1f} us by {MODEL}")
    return "; ".join(parts)
