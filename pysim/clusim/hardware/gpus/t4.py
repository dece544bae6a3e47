"""NVIDIA T4."""

from __future__ import annotations

from clusim.hardware.architectures.volta import ARCHITECTURE
from clusim.hardware.figures import published
from clusim.hardware.gpu import (
    COPIES,
    CUDA,
    DRIVER,
    GEMM,
    L2_SMALL,
    PEERS,
    Gpu,
    common,
    flops,
    pcie_rate,
    traffic,
    units,
)

SHEET = "T4, NVIDIA data sheet"

GPU = Gpu(
    name="t4",
    architecture=ARCHITECTURE,
    form="card",
    model="T4",
    products=("Tesla T4",),
    pci_ids=((0x10DE, 0x1EB8),),
    usual=True,
    pcie=3,
    figures={
        "compute_capability": published(7.5, CUDA),
        **units(40, SHEET),
        "memory": published("15360MiB", DRIVER),
        "power": published(70, f"{SHEET}: thermal design power"),
        "memory_rate": published("320 GB/s", f"{SHEET}: GDDR6"),
        "memory_efficiency": COPIES,
        **traffic(1.32, L2_SMALL),
        "peak_flops": flops(SHEET, f32=8.1, f16=65),
        "gemm_fraction": GEMM,
        "links": published(0, "no NVLink"),
        "peer_access": PEERS,
        "pcie_rate": pcie_rate(3),
        **common(linked=False),
    },
)
