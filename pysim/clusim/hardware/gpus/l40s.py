"""NVIDIA L40S."""

from __future__ import annotations

from clusim.hardware.figures import published
from clusim.hardware.gpu import DRIVER, flops, units
from clusim.hardware.gpus.l40 import GPU as BASE

SHEET = "L40S, NVIDIA data sheet"

GPU = BASE.variant(
    "l40s",
    model="L40S",
    products=("NVIDIA L40S",),
    pci_ids=((0x10DE, 0x26B9),),
    figures={
        **units(142, SHEET),
        "memory": published("46068MiB", DRIVER),
        "power": published(350, f"{SHEET}: thermal design power"),
        "memory_rate": published("864 GB/s", f"{SHEET}: GDDR6"),
        "peak_flops": flops(SHEET, f32=91.6, f16=362, bf16=362, f8=733),
        "links": published(0, "no NVLink"),
    },
)
