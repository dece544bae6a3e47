"""NVIDIA H20 SXM5: an H100 with fewer SMs and more memory."""

from __future__ import annotations

from clusim.hardware.figures import assumed, published
from clusim.hardware.gpu import DRIVER, flops, units
from clusim.hardware.gpus.h100_sxm5 import GPU as BASE

SHEET = "H20, NVIDIA data sheet"

GPU = BASE.variant(
    "h20-sxm5",
    model="H20",
    products=("NVIDIA H20",),
    pci_ids=((0x10DE, 0x2329),),
    figures={
        **units(78, SHEET),
        "memory": published("97871MiB", DRIVER),
        "power": assumed(500, "reports of the press; there is no data sheet in public"),
        "memory_rate": published("4000 GB/s", f"{SHEET}: 96 GB HBM3, 4.0 TB/s"),
        "memory_efficiency": assumed(0.87, "as H100 SXM5"),
        "peak_flops": flops(SHEET, f32=44, f16=148, bf16=148, f8=296),
        "gemm_fraction": assumed(0.8, "as H100 SXM5"),
    },
)
