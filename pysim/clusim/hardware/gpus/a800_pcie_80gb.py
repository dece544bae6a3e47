"""NVIDIA A800 80 GB on a PCIe card: an A100 card with fewer NVLinks."""

from __future__ import annotations

from clusim.hardware.figures import assumed, published
from clusim.hardware.gpu import COPIES
from clusim.hardware.gpus.a100_pcie_80gb import GPU as BASE

GPU = BASE.variant(
    "a800-pcie-80gb",
    model="A800-PCIE",
    products=("NVIDIA A800 80GB PCIe",),
    pci_ids=((0x10DE, 0x20F5),),
    figures={
        "memory_efficiency": COPIES,
        "gemm_fraction": assumed(0.87, "as the A100"),
        "links": published(8, "A800: 400 GB/s of NVLink 3 on bridges, 8 links; otherwise an A100"),
    },
)
