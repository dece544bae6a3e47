"""NVIDIA A30."""

from __future__ import annotations

from clusim.hardware.figures import assumed, published
from clusim.hardware.gpu import flops, units
from clusim.hardware.gpus.a100_pcie_80gb import GPU as BASE

SHEET = "device query (56 SMs of 8.0 at 1.44 GHz, 24,060 MiB, 24 MiB of L2); rates as A100 per SM and clock"

GPU = BASE.variant(
    "a30",
    model="A30",
    products=("NVIDIA A30",),
    pci_ids=((0x10DE, 0x20B7),),
    figures={
        **units(56, SHEET),
        "memory": published("24GiB", SHEET),
        "power": published(165, f"{SHEET}: thermal design power"),
        "memory_rate": published("933 GB/s", f"{SHEET}: HBM2, 3072 bit at 1215 MHz"),
        "peak_flops": flops(SHEET, f32=10.3, f16=165, bf16=165),
        "links": assumed(
            4, "200 GB/s in both directions over a bridge are said of it, 50 for each NVLink 3"
        ),
    },
)
