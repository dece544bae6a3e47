"""NVIDIA H200 NVL: a PCIe card."""

from __future__ import annotations

from clusim.hardware.figures import assumed, published
from clusim.hardware.gpu import COPIES, DRIVER, GEMM, units
from clusim.hardware.gpus.h200_sxm5 import GPU as BASE

SHEET = "H200 NVL, 4.8 TB/s as H200 SXM with the same stacks"

GPU = BASE.variant(
    "h200-nvl",
    form="card",
    products=("NVIDIA H200 NVL",),
    pci_ids=((0x10DE, 0x233B),),
    stands_for=("pair:18",),
    switch="",
    planes=(),
    figures={
        **units(132, SHEET),
        "memory": published("143771MiB", DRIVER),
        "power": published(600, f"{SHEET}: thermal design power"),
        "memory_rate": published("4800 GB/s", f"{SHEET}: 6 stacks HBM3e"),
        "memory_efficiency": COPIES,
        "peak_flops": assumed(
            {"f32": 60e12, "f16": 835e12, "bf16": 835e12, "f8": 1671e12},
            "as H100 NVL; a user reports 836 TFLOP/s of large products, so the peak may be higher",
        ),
        "gemm_fraction": GEMM,
        "links": assumed(18, "900 GB/s over bridges to one or three others are said of it"),
    },
)
