"""NVIDIA RTX A6000."""

from __future__ import annotations

from clusim.hardware.figures import published
from clusim.hardware.gpu import flops, units
from clusim.hardware.gpus.a40 import GPU as BASE

SHEET = "RTX A6000, NVIDIA data sheet"

GPU = BASE.variant(
    "rtx-a6000",
    model="A6000",
    products=("NVIDIA RTX A6000",),
    pci_ids=((0x10DE, 0x2230),),
    figures={
        **units(84, SHEET),
        "memory": published("48GiB", SHEET),
        "power": published(300, f"{SHEET}: thermal design power"),
        "memory_rate": published("768 GB/s", f"{SHEET}: GDDR6"),
        "peak_flops": flops(SHEET, f32=38.7, f16=154.8, bf16=154.8),
    },
)
