"""NVIDIA H200 SXM5."""

from __future__ import annotations

from clusim.hardware.figures import assumed, calibrated, published
from clusim.hardware.gpu import DRIVER, flops, units
from clusim.hardware.gpus.h100_sxm5 import GPU as BASE

SHEET = "H200 SXM, NVIDIA data sheet and architecture whitepaper"

GPU = BASE.variant(
    "h200-sxm5",
    model="H200",
    products=("NVIDIA H200",),
    machines=("p5en",),
    pci_ids=((0x10DE, 0x2335),),
    figures={
        **units(132, SHEET),
        "memory": published("143771MiB", DRIVER),
        "power": published(700, f"{SHEET}: thermal design power"),
        "memory_rate": published("4800 GB/s", f"{SHEET}: 6 stacks HBM3e"),
        "memory_efficiency": calibrated(
            0.84, "BabelStream copy 4.01 of 4.8 TB/s (83.5%), Azure ND H200 v5", "copy-benchmarks"
        ),
        "peak_flops": flops(SHEET, f32=67, f16=989, bf16=989, f8=1979),
        "gemm_fraction": assumed(0.8, "as H100 SXM5"),
    },
)
