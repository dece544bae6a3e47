"""AMD Instinct MI210: one die of an MI250 on a PCIe card."""

from __future__ import annotations

from clusim.hardware.figures import published
from clusim.hardware.gpu import flops, units
from clusim.hardware.gpus.mi250_gcd import GPU as BASE

SHEET = "AMD's table of 2022-03 (AnandTech 17326)"

GPU = BASE.variant(
    "mi210",
    form="card",
    model="MI210",
    products=("AMD Instinct MI210",),
    pci_ids=((0x1002, 0x740F),),
    stands_for=("xgmi:3",),
    figures={
        **units(104, SHEET),
        "memory": published("64GiB", SHEET),
        "power": published(300, f"{SHEET}: thermal design power"),
        "memory_rate": published("1638 GB/s", f"{SHEET}: HBM2e, 4096 bit at 3.2 Gb/s"),
        "peak_flops": flops(SHEET, f32=22.6, f16=181, bf16=181),
        "links": published(3, "3 Infinity Fabric links (AnandTech 17326)"),
    },
)
