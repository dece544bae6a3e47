"""NVIDIA A100 SXM4 40 GB."""

from __future__ import annotations

from clusim.hardware.figures import assumed, published
from clusim.hardware.gpu import flops, units
from clusim.hardware.gpus.a100_sxm4_80gb import GPU as BASE

SHEET = "A100, NVIDIA data sheet and architecture whitepaper"

GPU = BASE.variant(
    "a100-sxm4-40gb",
    products=("NVIDIA A100-SXM4-40GB", "A100-SXM4-40GB"),
    machines=("p4d|nda100v4|ndv4|nd.?a100",),
    pci_ids=((0x10DE, 0x20B0),),
    figures={
        **units(108, SHEET),
        "memory": published("40GiB", SHEET),
        "power": published(400, f"{SHEET}: thermal design power"),
        "memory_rate": published("1555 GB/s", f"{SHEET}: 40 GB variant, 5 stacks HBM2"),
        "memory_efficiency": assumed(0.88, "copies of 1.35 to 1.4 of 1.555 TB/s are said"),
        "peak_flops": flops(SHEET, f32=19.5, f16=312, bf16=312),
        "gemm_fraction": assumed(0.87, "as the 80 GB variant"),
    },
)
