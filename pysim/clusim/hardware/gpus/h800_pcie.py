"""NVIDIA H800 80 GB on a PCIe card: an H100 card with fewer NVLinks."""

from __future__ import annotations

from clusim.hardware.figures import published
from clusim.hardware.gpus.h100_pcie import GPU as BASE

GPU = BASE.variant(
    "h800-pcie",
    model="H800",
    products=("NVIDIA H800 PCIe",),
    pci_ids=((0x10DE, 0x2322),),
    figures={
        "links": published(8, "H800: 400 GB/s of NVLink 4 on bridges, 8 links; otherwise an H100"),
    },
)
