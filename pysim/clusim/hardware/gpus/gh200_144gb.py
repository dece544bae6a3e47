"""NVIDIA GH200 with 144 GB of HBM3e."""

from __future__ import annotations

from clusim.hardware.figures import assumed, published
from clusim.hardware.gpus.gh200 import GPU as BASE

SHEET = "GH200, NVIDIA data sheet"

GPU = BASE.variant(
    "gh200-144gb",
    products=("NVIDIA GH200 144G HBM3e",),
    pci_ids=((0x10DE, 0x2348),),
    figures={
        "memory": published("144GB", f"{SHEET}: 144 GB HBM3e"),
        "memory_rate": published("4900 GB/s", f"{SHEET}: HBM3e"),
        "memory_efficiency": assumed(0.86, "as the GH200 with HBM3"),
    },
)
