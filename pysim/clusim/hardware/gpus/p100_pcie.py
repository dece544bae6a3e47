"""NVIDIA Tesla P100 on a PCIe card."""

from __future__ import annotations

from clusim.hardware.figures import published
from clusim.hardware.gpu import COPIES, GEMM, common, flops, units
from clusim.hardware.gpus.p100_sxm2 import GPU as BASE

SHEET = "Tesla P100 PCIe 16GB, NVIDIA data sheet"

GPU = BASE.variant(
    "p100-pcie",
    form="card",
    products=("Tesla P100-PCIE-16GB",),
    pci_ids=((0x10DE, 0x15F8),),
    stands_for=("card:1", "card:2"),
    link="",
    cube_mesh="",
    figures={
        **units(56, SHEET),
        "memory": published("16GiB", SHEET),
        "power": published(250, f"{SHEET}: thermal design power"),
        "memory_rate": published("732 GB/s", f"{SHEET}: 4 stacks HBM2"),
        "memory_efficiency": COPIES,
        "peak_flops": flops(SHEET, f32=9.3, f16=18.7),
        "gemm_fraction": GEMM,
        "links": published(0, "no NVLink"),
        **common(linked=False),
    },
)
