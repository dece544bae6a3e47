"""NVIDIA Tesla V100 on a PCIe card."""

from __future__ import annotations

from clusim.hardware.figures import published
from clusim.hardware.gpu import COPIES, GEMM, common, flops, units
from clusim.hardware.gpus.v100_sxm2 import GPU as BASE

SHEET = "V100 PCIe, NVIDIA data sheet"

GPU = BASE.variant(
    "v100-pcie",
    form="card",
    products=("Tesla V100-PCIE-32GB",),
    pci_ids=((0x10DE, 0x1DB6),),
    stands_for=("card:3",),
    link="",
    cube_mesh="",
    figures={
        **units(80, SHEET),
        "memory": published("32GiB", SHEET),
        "power": published(250, f"{SHEET}: thermal design power"),
        "memory_rate": published("900 GB/s", f"{SHEET}: 4 stacks HBM2"),
        "memory_efficiency": COPIES,
        "peak_flops": flops(SHEET, f32=14, f16=112),
        "gemm_fraction": GEMM,
        "links": published(0, "no NVLink"),
        **common(linked=False),
    },
)
