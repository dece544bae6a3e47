"""NVIDIA L20."""

from __future__ import annotations

from clusim.hardware.figures import published
from clusim.hardware.gpu import DRIVER, flops, units
from clusim.hardware.gpus.l40 import GPU as BASE

SHEET = "L20, NVIDIA data sheet"

GPU = BASE.variant(
    "l20",
    model="L20",
    products=("NVIDIA L20",),
    pci_ids=((0x10DE, 0x26BA),),
    figures={
        **units(92, SHEET),
        "memory": published("46068MiB", DRIVER),
        "power": published(275, f"{SHEET}: thermal design power"),
        "memory_rate": published("864 GB/s", f"{SHEET}: GDDR6"),
        "peak_flops": flops(SHEET, f32=59.8, f16=119.5, bf16=119.5, f8=239),
        "links": published(0, "no NVLink"),
    },
)
