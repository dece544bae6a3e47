"""NVIDIA RTX 6000 Ada Generation."""

from __future__ import annotations

from clusim.hardware.figures import published
from clusim.hardware.gpu import flops, units
from clusim.hardware.gpus.l40 import GPU as BASE

SHEET = "PNY and grafikkarten.com of 2022-09 (142 SMs, 91.1 TFLOP/s); matrix rates 4 and 8 times that, as L40S"

GPU = BASE.variant(
    "rtx-6000-ada",
    model="6000 Ada",
    products=("NVIDIA RTX 6000 Ada Generation",),
    names=("RTX 6000 Ada",),
    pci_ids=((0x10DE, 0x26B1),),
    figures={
        **units(142, SHEET),
        "memory": published("48GiB", SHEET),
        "power": published(300, f"{SHEET}: thermal design power"),
        "memory_rate": published("960 GB/s", f"{SHEET}: GDDR6, 384 bit at 20 Gb/s"),
        "peak_flops": flops(SHEET, f32=91.1, f16=364.2, bf16=364.2, f8=728.5),
        "links": published(0, "no NVLink, as all of Ada"),
    },
)
