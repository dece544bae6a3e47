"""NVIDIA Tesla V100 on a PCIe card."""

from __future__ import annotations

from clusim.hardware.figures import assumed, published
from clusim.hardware.gpu import common, flops, units
from clusim.hardware.gpus.v100_sxm2 import GPU as BASE

SHEET = "V100 PCIe, NVIDIA data sheet"

GPU = BASE.variant(
    "v100-pcie",
    form="card",
    products=("Tesla V100-PCIE-32GB", "Tesla V100-PCIE-16GB"),
    pci_ids=((0x10DE, 0x1DB4), (0x10DE, 0x1DB6)),
    stands_for=("card:3",),
    link="",
    cube_mesh="",
    figures={
        **units(80, SHEET),
        "memory": published("32GiB", SHEET),
        "memory_rate": published("900 GB/s", f"{SHEET}: 4 stacks HBM2"),
        "memory_efficiency": assumed(
            0.88, "copies reach 85 to 92% of the peak on cards that were measured"
        ),
        "peak_flops": flops(SHEET, f32=14, f16=112),
        "gemm_fraction": assumed(
            0.8, "between the A100 (0.87) and B200 (0.78), which were measured"
        ),
        "links": published(0, "no NVLink"),
        **common(linked=False),
    },
)
