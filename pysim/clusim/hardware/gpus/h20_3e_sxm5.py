"""NVIDIA H20-3e SXM5: an H20 with the HBM3e of the H200."""

from __future__ import annotations

from clusim.hardware.figures import assumed, published
from clusim.hardware.gpus.h20_sxm5 import GPU as BASE

GPU = BASE.variant(
    "h20-3e-sxm5",
    model="H20-3e",
    products=("NVIDIA H20-3e",),
    names=("H20 HBM3e",),
    pci_ids=((0x10DE, 0x232C),),
    figures={
        "memory": assumed("143771MiB", "as the H200, whose stacks it has: 141 GB HBM3e"),
        "memory_rate": published(
            "4800 GB/s", "H20-3e, vendors' data sheets: 141 GB HBM3e, 4.8 TB/s"
        ),
        "memory_efficiency": assumed(0.87, "as H100 SXM5"),
    },
)
