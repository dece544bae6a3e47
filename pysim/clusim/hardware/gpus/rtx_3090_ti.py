"""NVIDIA GeForce RTX 3090 Ti: the complete chip of the RTX 3090."""

from __future__ import annotations

from clusim.hardware.figures import published
from clusim.hardware.gpu import flops, units
from clusim.hardware.gpus.rtx_3090 import GPU as BASE

SHEET = "GeForce RTX 3090 Ti, NVIDIA GA102 whitepaper"

GPU = BASE.variant(
    "rtx-3090-ti",
    model="3090 Ti",
    products=("NVIDIA GeForce RTX 3090 Ti", "GeForce RTX 3090 Ti"),
    pci_ids=((0x10DE, 0x2203),),
    figures={
        **units(84, SHEET),
        "power": published(450, f"{SHEET}: graphics card power"),
        "memory_rate": published("1008 GB/s", f"{SHEET}: GDDR6X"),
        "peak_flops": flops(SHEET, f32=40, f16=80, bf16=80),
    },
)
