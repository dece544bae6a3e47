"""What expert exchanges as DeepEP's normal kernels make them cost a GPU, besides the wires.

**Hardware** Half of the thread blocks send, half receive. A sender goes through all tokens of the rank for each
destination, and copies those that go there; a token goes once to each rank that has one of its experts. Combining is
the way back, in which a token's copies are added up. **Model** The longer of what the wires take for an all-to-all by
as many thread blocks, and of `fixed` + (tokens x `token` + bytes / `rate`) / thread blocks. **Not modelled** The
kernels for low latency; several machines.
**Parameters** The figures below, per thread block (SM).
"""

from __future__ import annotations

from clusim.hardware.figures import Figure, calibrated

__all__ = ["DEEPEP"]

_ROWS = "deepep-h100"


def _read(value: str, what: str) -> Figure:
    return calibrated(value, f"{what}, aiconfigurator's tables of DeepEP on 8 H100", _ROWS)


DEEPEP: dict[str, Figure] = {
    "dispatch_fixed": _read("25.6us", "median of the rows with one token"),
    "combine_fixed": _read("37.5us", "median of the rows with one token"),
    "dispatch_token": _read("419ns", "fit to rows with 4 SMs and 2,048 tokens or more"),
    "combine_token": _read("780ns", "fit to rows with 4 SMs and 2,048 tokens or more"),
    "dispatch_rate": _read("23.5 GB/s", "fit to rows with 4 SMs and 2,048 tokens or more"),
    "combine_rate": _read("29.1 GB/s", "fit to rows with 4 SMs and 2,048 tokens or more"),
}
"""Times and rates of one direction, by name."""
