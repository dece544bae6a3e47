"""NVIDIA L40."""

from __future__ import annotations

from clusim.hardware.architectures.ada import ARCHITECTURE
from clusim.hardware.figures import published
from clusim.hardware.gpu import (
    COPIES,
    CUDA,
    DRIVER,
    GEMM,
    L2_HOLDS,
    PEERS,
    Gpu,
    common,
    flops,
    pcie_rate,
    traffic,
    units,
)

SHEET = "data sheet of L40 and L40S (181.05 dense, 362.1 sparse)"

GPU = Gpu(
    name="l40",
    architecture=ARCHITECTURE,
    form="card",
    model="L40",
    products=("NVIDIA L40",),
    pci_ids=((0x10DE, 0x26B5),),
    figures={
        "compute_capability": published(8.9, CUDA),
        **units(142, SHEET),
        "memory": published("46068MiB", DRIVER),
        "power": published(300, f"{SHEET}: thermal design power"),
        "memory_rate": published("864 GB/s", f"{SHEET}: GDDR6"),
        "memory_efficiency": COPIES,
        **traffic(0.57, L2_HOLDS),
        "peak_flops": flops(SHEET, f32=90.5, f16=181, bf16=181, f8=362),
        "gemm_fraction": GEMM,
        "links": published(0, "no NVLink; PCIe Gen4 x16 is its only interface"),
        "peer_access": PEERS,
        "pcie_rate": pcie_rate(4),
        **common(linked=False),
    },
)
