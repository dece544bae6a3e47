"""What kernels reach of a chip's peak: figures for roofline times that all chips share.

**Hardware** A matrix product is cut into tiles, one per SM at a time; the last wave of tiles leaves SMs idle, narrow
products use smaller and less efficient tiles, and short inner dimensions do not hide the start of a tile. **Model**
peak x best fraction x tile and wave quantisation x k / (k + ramp); memory-bound kernels move their bytes at the
chip's memory rate; no kernel is shorter than the time between two launches. All of it times what a long run sustains.
**Not modelled** Choice of cuBLAS algorithms, clocks by load, L2 reuse across kernels. **Parameters** The figures
below; what large matrix products reach (`gemm_fraction`) is a figure of each chip, what attention reaches and the
least time of a kernel are of each architecture.
"""

from __future__ import annotations

from clusim.hardware.figures import Figure, assumed, calibrated

__all__ = [
    "GEMM_RAMP",
    "GEMM_TILES",
    "SUSTAINED",
]

GEMM_TILES: Figure = assumed(
    {"256x128": 1.0, "128x128": 0.92, "128x64": 0.75, "64x64": 0.55},
    "tile shapes of cuBLAS kernels and their rate against the best, as profiles of CUTLASS show it roughly",
)
"""Tile shapes and what they reach of the best."""

GEMM_RAMP: Figure = assumed(
    64,
    "filling and draining the pipeline of a tile costs as much as 64 steps of the inner dimension",
)
"""Inner dimension at which a matrix product runs at half its rate."""

SUSTAINED: Figure = calibrated(
    0.87,
    "one factor fitted to four iteration times of Megatron-LM on A100 (22 and 175 billion parameters, full and"
    " selective recomputation, arXiv 2205.05198): clocks under the power limit, gaps between kernels, others left out",
    "training-runs",
)
"""What the kernels of a training run reach of what the same kernels reach alone in short benchmarks."""
