"""NVIDIA GeForce RTX 5090."""

from __future__ import annotations

from clusim.hardware.architectures.blackwell import ARCHITECTURE
from clusim.hardware.figures import published
from clusim.hardware.gpu import (
    COPIES,
    CUDA,
    GEMM,
    L2_HOLDS,
    NO_PEERS,
    Gpu,
    common,
    flops,
    pcie_rate,
    traffic,
    units,
)

SHEET = "GeForce RTX 5090, NVIDIA data sheet"

GPU = Gpu(
    name="rtx-5090",
    architecture=ARCHITECTURE,
    form="card",
    model="5090",
    products=("NVIDIA GeForce RTX 5090",),
    pci_ids=((0x10DE, 0x2B85),),
    usual=True,
    pcie=5,
    figures={
        "compute_capability": published(12.0, CUDA),
        **units(170, SHEET),
        "memory": published("32GiB", SHEET),
        "power": published(575, f"{SHEET}: thermal design power"),
        "memory_rate": published("1792 GB/s", f"{SHEET}: GDDR7"),
        "memory_efficiency": COPIES,
        **traffic(0.57, L2_HOLDS),
        "peak_flops": flops(SHEET, f32=104.8, f16=209.5, bf16=209.5, f8=419),
        "gemm_fraction": GEMM,
        "links": published(0, "no NVLink"),
        "peer_access": NO_PEERS,
        "pcie_rate": pcie_rate(5),
        **common(linked=False),
    },
)
