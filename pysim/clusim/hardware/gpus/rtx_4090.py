"""NVIDIA GeForce RTX 4090."""

from __future__ import annotations

from clusim.hardware.architectures.ada import ARCHITECTURE
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

SHEET = "GeForce RTX 4090, NVIDIA data sheet"

GPU = Gpu(
    name="rtx-4090",
    architecture=ARCHITECTURE,
    form="card",
    model="4090",
    products=("NVIDIA GeForce RTX 4090",),
    pci_ids=((0x10DE, 0x2684),),
    usual=True,
    figures={
        "compute_capability": published(8.9, CUDA),
        **units(128, SHEET),
        "memory": published("24GiB", SHEET),
        "power": published(450, f"{SHEET}: thermal design power"),
        "memory_rate": published("1008 GB/s", f"{SHEET}: GDDR6X"),
        "memory_efficiency": COPIES,
        **traffic(0.57, L2_HOLDS),
        "peak_flops": flops(SHEET, f32=82.6, f16=165.2, bf16=165.2, f8=330.3),
        "gemm_fraction": GEMM,
        "links": published(0, "no NVLink"),
        "peer_access": NO_PEERS,
        "pcie_rate": pcie_rate(4),
        **common(linked=False),
    },
)
