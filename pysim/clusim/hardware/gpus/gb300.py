"""NVIDIA GB300: one of the two Blackwell Ultra GPUs beside a Grace."""

from __future__ import annotations

from clusim.hardware.figures import published
from clusim.hardware.gpu import CUDA, DRIVER, flops, pcie_rate, units
from clusim.hardware.gpus.gb200 import GPU as BASE

SHEET = "GB300, NVIDIA data sheet and architecture whitepaper"

GPU = BASE.variant(
    "gb300",
    model="GB300",
    products=("NVIDIA GB300",),
    pcie=6,
    figures={
        "compute_capability": published(10.3, CUDA),
        **units(148, SHEET),
        "memory": published("284208MiB", DRIVER),
        "power": published(1400, f"{SHEET}: thermal design power"),
        "memory_rate": published("8 TB/s", f"{SHEET}: 8 stacks HBM3e per GPU"),
        "peak_flops": flops(SHEET, f32=80, f16=2500, bf16=2500, f8=5000),
        "pcie_rate": pcie_rate(6),
    },
)
