"""NVIDIA A100 40 GB on a PCIe card."""

from __future__ import annotations

from clusim.hardware.figures import assumed, published
from clusim.hardware.gpu import COPIES, flops, units
from clusim.hardware.gpus.a100_sxm4_80gb import GPU as BASE

SHEET = "A100 PCIe 40GB, NVIDIA data sheet"

GPU = BASE.variant(
    "a100-pcie-40gb",
    form="card",
    model="A100-PCIE",
    products=("NVIDIA A100-PCIE-40GB", "A100-PCIE-40GB"),
    pci_ids=((0x10DE, 0x20F1),),
    switch="",
    planes=(),
    figures={
        **units(108, SHEET),
        "memory": published("40GiB", SHEET),
        "power": published(250, f"{SHEET}: thermal design power"),
        "memory_rate": published("1555 GB/s", f"{SHEET}: 5 stacks HBM2"),
        "memory_efficiency": COPIES,
        "peak_flops": flops(SHEET, f32=19.5, f16=312, bf16=312),
        "gemm_fraction": assumed(0.87, "as the SXM module; its power cap is counted apart"),
        "links": published(12, "12 NVLink 3 links on three bridges to one other card"),
    },
)
