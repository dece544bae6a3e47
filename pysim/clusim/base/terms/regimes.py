"""Regimes of size and number of nodes, by which prediction errors are grouped."""

from __future__ import annotations

MIB = 1 << 20
REGIMES = {"small": (0, MIB), "mid": (MIB, 64 * MIB), "large": (64 * MIB, 1 << 62)}
"""Name -> lower limit (included) and upper limit (excluded) [bytes]."""

REGIME_TITLES = {"small": "< 1 MiB", "mid": "1 MiB to < 64 MiB", "large": ">= 64 MiB"}
"""Regime -> its sizes."""

ONE, SEVERAL = "one node", "several nodes"


def regime_of(size_bytes: int) -> str:
    """Return the regime of a size."""
    return next(name for name, (low, high) in REGIMES.items() if low <= size_bytes < high)


def place_of(num_nodes: int) -> str:
    """Return the label of a number of nodes: one or several."""
    return ONE if num_nodes == 1 else SEVERAL
