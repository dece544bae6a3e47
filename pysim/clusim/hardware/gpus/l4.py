"""NVIDIA L4."""

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

SHEET = "L4, NVIDIA data sheet"

GPU = Gpu(
    name="l4",
    architecture=ARCHITECTURE,
    form="card",
    model="L4",
    products=("NVIDIA L4",),
    pci_ids=((0x10DE, 0x27B8),),
    figures={
        "compute_capability": published(8.9, CUDA),
        **units(58, SHEET),
        "memory": published("23034MiB", DRIVER),
        "power": published(72, f"{SHEET}: thermal design power"),
        "memory_rate": published("300 GB/s", f"{SHEET}: GDDR6"),
        "memory_efficiency": COPIES,
        **traffic(0.57, L2_HOLDS),
        "peak_flops": flops(SHEET, f32=30.3, f16=121, bf16=121),
        "gemm_fraction": GEMM,
        "links": published(0, "no NVLink"),
        "peer_access": PEERS,
        "pcie_rate": pcie_rate(4),
        **common(linked=False),
    },
)
