"""NVIDIA Tesla V100 with 16 GB on a PCIe card."""

from __future__ import annotations

from clusim.hardware.figures import published
from clusim.hardware.gpus.v100_pcie import GPU as BASE
from clusim.hardware.gpus.v100_pcie import SHEET

GPU = BASE.variant(
    "v100-pcie-16gb",
    products=("Tesla V100-PCIE-16GB",),
    pci_ids=((0x10DE, 0x1DB4),),
    figures={"memory": published("16GiB", f"{SHEET}: 4 stacks HBM2 of 4 GB")},
)
