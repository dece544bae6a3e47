"""NVIDIA Tesla V100S on a PCIe card: faster memory and clocks."""

from __future__ import annotations

from clusim.hardware.figures import published
from clusim.hardware.gpu import flops, units
from clusim.hardware.gpus.v100_pcie import GPU as BASE

SHEET = "V100S PCIe, NVIDIA V100 data sheet"

GPU = BASE.variant(
    "v100s-pcie",
    model="V100S",
    products=("Tesla V100S-PCIE-32GB",),
    pci_ids=((0x10DE, 0x1DF6),),
    figures={
        **units(80, SHEET),
        "memory_rate": published("1134 GB/s", f"{SHEET}: 4 stacks HBM2"),
        "peak_flops": flops(SHEET, f32=16.4, f16=130),
    },
)
