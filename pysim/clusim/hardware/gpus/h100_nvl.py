"""NVIDIA H100 NVL: a PCIe card with six stacks of HBM3."""

from __future__ import annotations

from clusim.hardware.figures import published
from clusim.hardware.gpu import COPIES, DRIVER, GEMM, flops, units
from clusim.hardware.gpus.h100_sxm5 import GPU as BASE

SHEET = "H100 NVL, NVIDIA data sheet"

GPU = BASE.variant(
    "h100-nvl",
    form="card",
    products=("NVIDIA H100 NVL",),
    switch="",
    planes=(),
    figures={
        **units(132, SHEET),
        "memory": published("95830MiB", DRIVER),
        "power": published(400, f"{SHEET}: thermal design power"),
        "memory_rate": published("3938 GB/s", f"{SHEET}: 6 stacks HBM3"),
        "memory_efficiency": COPIES,
        "peak_flops": flops(SHEET, f32=60, f16=835, bf16=835, f8=1671),
        "gemm_fraction": GEMM,
        "links": published(12, "12 NVLink 4 links on three bridges to one other card"),
    },
)
