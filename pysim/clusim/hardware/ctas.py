"""Work of warp groups of a CTA: parameters of NCCL's kernels for all GPUs.

**Hardware** Kernels divide the warps of a CTA: by the up and down directions of a tree, by NVLS copy
loops, by messages. **Model** The throughput of a group in warps of a CTA without other work; its cost
per slice in slices of a ring. **Not modelled** Differences between chips. **Parameters** The figures
below.
"""

from __future__ import annotations

from clusim.hardware.figures import Figure, Preset, calibrated

_ALONE = "Tree Simple: 25 us for every 512 KiB more in a single chunk on the way up and down"
_BOTH = "Tree Simple: 66 us for every 512 KiB of many chunks"
_LINES = "Tree LL128: 77 us for every 480 KiB of many chunks"
_WHOLE = "Tree LL128: 11 us from 4 to 16 KiB, as a CTA that does nothing else"


def _tree(warps: float, source: str) -> Figure:
    return calibrated(
        warps, f"{source} (all-reduce on 4 p5en with one channel, ncclgauge)", "p5en-1-channel"
    )


CTAS: Preset = {
    "tree simple up alone": _tree(14, _ALONE),
    "tree simple down alone": _tree(14, _ALONE),
    "tree simple up": _tree(10, _BOTH),
    "tree simple down": _tree(10, _BOTH),
    "tree ll128 up alone": _tree(20, _WHOLE),
    "tree ll128 down alone": _tree(20, _WHOLE),
    "tree ll128 up": _tree(12, _LINES),
    "tree ll128 down": _tree(8, _LINES),
    "local copy": calibrated(
        1.4,
        "what a warp copies inside its GPU's memory, in what it sends to another GPU: NVLS all-reduce of 2 to 256 MiB"
        " on 8 H100 (AI-benchmarking-guide)",
        "azure-hopper",
    ),
    "nvls flags": calibrated(
        1.5,
        "slices whose fixed cost a loop of copies takes for the flags of all heads: loops of 2, 4 and 8 MiB on 8 H100"
        " take 12, 20 and 32 us (AI-benchmarking-guide)",
        "azure-hopper",
    ),
    "messages pushed": calibrated(
        2,
        "slices of pushed messages that share the fixed cost of one of a collective's: 1.0 us for a receive where a"
        " slice takes 2.4 us (npkit on GH200, spcl/atlahs)",
        "npkit-gh200",
    ),
}
"""Figures by group; trees in warps of a CTA, alone and with the opposite direction active."""


def cta_figure(name: str) -> float:
    """Return the value of a figure of `CTAS`."""
    value = CTAS[name].value
    if not isinstance(value, int | float):  # pragma: no cover - the table is ours
        raise TypeError(f"{name}: {value!r} is no number")
    return value
