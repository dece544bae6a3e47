"""NVIDIA H100 80 GB on a PCIe card: fewer SMs, HBM2e, bridges instead of switches."""

from __future__ import annotations

from clusim.hardware.figures import published
from clusim.hardware.gpu import COPIES, DRIVER, GEMM, flops, units
from clusim.hardware.gpus.h100_sxm5 import GPU as BASE

SHEET = "H100 PCIe 80GB, NVIDIA data sheet"

GPU = BASE.variant(
    "h100-pcie",
    form="card",
    products=("NVIDIA H100 PCIe",),
    pci_ids=((0x10DE, 0x2331),),
    stands_for=("card:5",),
    switch="",
    planes=(),
    figures={
        **units(114, SHEET),
        "memory": published("81559MiB", DRIVER),
        "power": published(350, f"{SHEET}: thermal design power"),
        "memory_rate": published("2000 GB/s", f"{SHEET}: 5 stacks HBM2e"),
        "memory_efficiency": COPIES,
        "peak_flops": flops(SHEET, f32=51, f16=756, bf16=756, f8=1513),
        "gemm_fraction": GEMM,
        "links": published(12, "12 NVLink 4 links on three bridges to one other card"),
    },
)
