"""NVIDIA H100 80 GB on a PCIe card: fewer SMs, HBM2e, bridges instead of switches."""

from __future__ import annotations

from clusim.hardware.figures import assumed, published
from clusim.hardware.gpu import flops, units
from clusim.hardware.gpus.h100_sxm5 import GPU as BASE

SHEET = "H100 PCIe 80GB, NVIDIA data sheet"

GPU = BASE.variant(
    "h100-pcie",
    form="card",
    products=("NVIDIA H100 PCIe",),
    hints=("h100.?pcie",),
    pci_ids=((0x10DE, 0x2331),),
    stands_for=("card:5",),
    switch="",
    planes=(),
    figures={
        **units(114, SHEET),
        "memory": published("80GiB", SHEET),
        "memory_rate": published("2000 GB/s", f"{SHEET}: 5 stacks HBM2e"),
        "memory_efficiency": assumed(
            0.88, "copies reach 85 to 92% of the peak on cards that were measured"
        ),
        "peak_flops": flops(SHEET, f32=51, f16=756, bf16=756, f8=1513),
        "gemm_fraction": assumed(
            0.8, "between the A100 (0.87) and B200 (0.78), which were measured"
        ),
        "links": published(12, "12 NVLink 4 links on three bridges to one other card"),
    },
)
