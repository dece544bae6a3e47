"""AMD Instinct MI60."""

from __future__ import annotations

from clusim.hardware.figures import published
from clusim.hardware.gpu import flops, units
from clusim.hardware.gpus.mi50 import GPU as BASE

SHEET = "AMD's announcement of 2018-11 (AnandTech 13562, golem.de)"

GPU = BASE.variant(
    "mi60",
    model="MI60",
    products=("AMD Instinct MI60",),
    pci_ids=((0x1002, 0x66A0),),
    gfx=("906",),
    usual=True,
    figures={
        **units(64, SHEET),
        "memory": published("32GiB", SHEET),
        "power": published(300, f"{SHEET}: thermal design power"),
        "memory_rate": published("1024 GB/s", f"{SHEET}: 4 stacks HBM2"),
        "peak_flops": flops(SHEET, f32=14.7, f16=29.5),
        "links": published(
            2, "2 Infinity Fabric links, 200 GB/s in both directions (AMD's announcement, 2018-11)"
        ),
    },
)
