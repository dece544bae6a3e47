"""NVIDIA B300, of HGX B300."""

from __future__ import annotations

from clusim.hardware.figures import assumed, published
from clusim.hardware.gpu import CUDA, DRIVER, flops, pcie_rate, units
from clusim.hardware.gpus.b200_sxm import GPU as BASE

SHEET = "B300, NVIDIA data sheet and architecture whitepaper"

GPU = BASE.variant(
    "b300-sxm",
    model="B300",
    products=("NVIDIA B300 SXM6 AC",),
    pci_ids=((0x10DE, 0x3182),),
    usual=True,
    stands_for=("card:6",),
    pcie=6,
    figures={
        "compute_capability": published(10.3, CUDA),
        **units(148, SHEET),
        "memory": published("275040MiB", DRIVER),
        "power": assumed(
            1100,
            "a DGX B300 draws 14.5 kW where a DGX B200 with 1000 W per GPU draws 14.3 kW (NVIDIA user guides); 1400 W"
            " is the most of any form",
        ),
        "memory_rate": published("8 TB/s", f"{SHEET}: 8 stacks HBM3e"),
        "peak_flops": flops(SHEET, f32=76, f16=2250, bf16=2250, f8=4500),
        "gemm_fraction": assumed(0.78, "as the B200"),
        "pcie_rate": pcie_rate(6),
    },
)
