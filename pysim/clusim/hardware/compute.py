"""What kernels reach of a chip's peak, and how much memory it has: figures for roofline times.

**Hardware** A matrix product is cut into tiles, one per SM at a time; the last wave of tiles leaves SMs idle, narrow
products use smaller and less efficient tiles, and short inner dimensions do not hide the start of a tile. **Model**
peak x best fraction x tile and wave quantisation x k / (k + ramp); memory-bound kernels move their bytes at the
chip's memory rate; no kernel is shorter than the time between two launches. All of it times what a long run sustains.
**Not modelled** Choice of cuBLAS algorithms, clocks by load, L2 reuse across kernels. **Parameters** The figures
below.
"""

from __future__ import annotations

from clusim.hardware.figures import Figure, assumed, calibrated, measured, published

__all__ = [
    "ATTENTION_FRACTION",
    "GEMM_FRACTION",
    "GEMM_RAMP",
    "GEMM_TILES",
    "KERNEL_FLOOR",
    "MEMORY_CAPACITY",
    "SUSTAINED",
    "gemm_fraction",
    "memory_capacity",
]

_MAMF = "largest matrix product rate found by search, ml-engineering accelerator benchmarks (MAMF)"

GEMM_FRACTION: dict[str, Figure] = {
    "p100-sxm2": assumed(0.85, "plain FMA units, no tensor cores to feed"),
    "v100-sxm2": assumed(
        0.80, "cuBLAS on V100 tensor cores is usually quoted at 95 to 105 of 125 TFLOP/s"
    ),
    "a100-sxm4-40gb": measured(0.87, f"271 of 312 TFLOP/s bf16 on the 80 GB variant, {_MAMF}"),
    "a100-sxm4-80gb": measured(0.87, f"271 of 312 TFLOP/s bf16, {_MAMF}"),
    "h100-sxm5": measured(0.80, f"794.5 of 989 TFLOP/s bf16, {_MAMF}"),
    "b200-sxm": measured(0.78, f"1745 of 2250 TFLOP/s bf16, {_MAMF}"),
    "default": assumed(0.80, "between the measured A100 and B200"),
}
"""Part of the dense peak that large matrix products reach, by chip; variants of a chip share its figure."""

_SAME = {
    "a800-sxm4-80gb": "a100-sxm4-80gb",
    "h200-sxm5": "h100-sxm5",
    "h800-sxm5": "h100-sxm5",
    "h20-sxm5": "h100-sxm5",
    "gh200": "h100-sxm5",
    "gb200": "b200-sxm",
    "b300-sxm": "b200-sxm",
    "gb300": "b200-sxm",
}

ATTENTION_FRACTION: Figure = calibrated(
    0.62, "FlashAttention-2 on A100 reaches 190 to 220 TFLOP/s of 312 forward, less backward"
)
"""Part of the dense peak that fused attention kernels reach."""

GEMM_TILES: Figure = calibrated(
    {"256x128": 1.0, "128x128": 0.92, "128x64": 0.75, "64x64": 0.55},
    "tile shapes of cuBLAS kernels and their rate against the best, from published CUTLASS profiles",
)
"""Tile shapes and what they reach of the best."""

GEMM_RAMP: Figure = calibrated(
    64,
    "filling and draining the pipeline of a tile costs as much as 64 steps of the inner dimension",
)
"""Inner dimension at which a matrix product runs at half its rate."""

SUSTAINED: Figure = calibrated(
    0.87,
    "one factor fitted to four iteration times of Megatron-LM on A100 (22 and 175 billion parameters, full and"
    " selective recomputation, arXiv 2205.05198): clocks under the power limit, gaps between kernels, others left out",
)
"""What the kernels of a training run reach of what the same kernels reach alone in short benchmarks."""

KERNEL_FLOOR: Figure = measured(
    "1.81us",
    "pipelined launches on A100 and x86; 1.30 us on GH200: shorter kernels wait for the next launch",
)
"""Least time of a kernel in a stream of kernels."""

_SHEET = "data sheet"

MEMORY_CAPACITY: dict[str, Figure] = {
    "p100-sxm2": published("16GiB", _SHEET),
    "v100-sxm2": published("32GiB", f"{_SHEET}; the first ones had 16 GiB"),
    "a100-sxm4-40gb": published("40GiB", _SHEET),
    "a100-sxm4-80gb": published("80GiB", _SHEET),
    "a800-sxm4-80gb": published("80GiB", _SHEET),
    "h100-sxm5": published("80GiB", _SHEET),
    "h800-sxm5": published("80GiB", _SHEET),
    "h20-sxm5": published("96GiB", _SHEET),
    "h200-sxm5": published("141GB", _SHEET),
    "gh200": published("96GB", _SHEET),
    "b200-sxm": published("180GB", f"{_SHEET}: 180 GB usable in HGX B200"),
    "gb200": published("186GB", _SHEET),
    "b300-sxm": published("288GB", _SHEET),
    "gb300": published("288GB", _SHEET),
}
"""Memory of a GPU, by chip."""


def gemm_fraction(chip: str) -> Figure:
    """Return the part of the peak that large matrix products reach on `chip`."""
    return GEMM_FRACTION.get(_SAME.get(chip, chip), GEMM_FRACTION["default"])


def memory_capacity(chip: str) -> Figure | None:
    """Return the memory of `chip`, or None if it is not known."""
    return MEMORY_CAPACITY.get(chip)
