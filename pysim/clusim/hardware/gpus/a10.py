"""NVIDIA A10."""

from __future__ import annotations

from clusim.hardware.architectures.ampere import ARCHITECTURE
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

SHEET = "A10, NVIDIA data sheet"

GPU = Gpu(
    name="a10",
    architecture=ARCHITECTURE,
    form="card",
    model="A10",
    products=("NVIDIA A10",),
    pci_ids=((0x10DE, 0x2236),),
    figures={
        "compute_capability": published(8.6, CUDA),
        **units(72, SHEET),
        "memory": published("23028MiB", DRIVER),
        "power": published(150, f"{SHEET}: thermal design power"),
        "memory_rate": published("600 GB/s", f"{SHEET}: GDDR6"),
        "memory_efficiency": COPIES,
        **traffic(1.32, L2_SMALL),
        "peak_flops": flops(SHEET, f32=31.2, f16=125, bf16=125),
        "gemm_fraction": GEMM,
        "links": published(0, "no NVLink"),
        "peer_access": PEERS,
        "pcie_rate": pcie_rate(4),
        **common(linked=False),
    },
)
