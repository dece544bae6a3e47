"""NVIDIA A800 SXM4: an A100 with fewer NVLinks."""

from __future__ import annotations

from clusim.hardware.figures import assumed, published
from clusim.hardware.gpus.a100_sxm4_80gb import GPU as BASE

GPU = BASE.variant(
    "a800-sxm4-80gb",
    model="A800",
    products=("NVIDIA A800-SXM4-80GB",),
    pci_ids=((0x10DE, 0x20F3),),
    planes=(1, 1, 1, 1, 2, 2),
    figures={
        "memory_efficiency": assumed(0.85, "as the A100"),
        "gemm_fraction": assumed(0.87, "as the A100"),
        "links": published(8, "A800: 400 GB/s of NVLink 3, 8 links; otherwise an A100"),
    },
)
