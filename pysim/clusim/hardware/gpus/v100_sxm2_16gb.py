"""NVIDIA Tesla V100 SXM2 with 16 GB."""

from __future__ import annotations

from clusim.hardware.figures import published
from clusim.hardware.gpus.v100_sxm2 import GPU as BASE
from clusim.hardware.gpus.v100_sxm2 import SHEET

GPU = BASE.variant(
    "v100-sxm2-16gb",
    products=("Tesla V100-SXM2-16GB",),
    pci_ids=((0x10DE, 0x1DB1),),
    figures={"memory": published("16GiB", f"{SHEET}: 4 stacks HBM2 of 4 GB")},
)
