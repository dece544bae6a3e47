"""NVIDIA H800 SXM5: an H100 with fewer NVLinks."""

from __future__ import annotations

from clusim.hardware.figures import assumed, published
from clusim.hardware.gpus.h100_sxm5 import GPU as BASE

GPU = BASE.variant(
    "h800-sxm5",
    model="H800",
    products=("NVIDIA H800",),
    pci_ids=((0x10DE, 0x2324),),
    planes=(2, 2, 2, 2),
    figures={
        "memory_efficiency": assumed(0.87, "as H100 SXM5"),
        "gemm_fraction": assumed(0.8, "as H100 SXM5"),
        "links": published(
            8, "H800: 8 active links, 160 of 200 GB/s per direction (DeepSeek-V3 technical report)"
        ),
    },
)
