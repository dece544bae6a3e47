"""AMD Instinct MI250X: one of its two dies."""

from __future__ import annotations

from clusim.hardware.figures import assumed, published
from clusim.hardware.gpu import flops, units
from clusim.hardware.gpus.mi250_gcd import GPU as BASE

SHEET = "Instinct MI250X, one of two dies, AMD data sheet"

GPU = BASE.variant(
    "mi250x-gcd",
    model="MI250X",
    products=("AMD Instinct MI250X",),
    pci_ids=((0x1002, 0x7408),),
    stands_for=("xgmi:4",),
    figures={
        **units(110, SHEET),
        "memory": published("64GiB", SHEET),
        "power": assumed(280, "half of the module's 560 W"),
        "memory_rate": published("1638 GB/s", f"{SHEET}: 4 stacks HBM2e"),
        "peak_flops": flops(SHEET, f32=23.9, f16=191.5, bf16=191.5),
        "links": published(8, "8 Infinity Fabric links, four of them inside the package"),
    },
)
