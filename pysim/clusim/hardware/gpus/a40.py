"""NVIDIA A40."""

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

SHEET = "A40, NVIDIA data sheet"

GPU = Gpu(
    name="a40",
    architecture=ARCHITECTURE,
    form="card",
    model="A40",
    products=("NVIDIA A40",),
    pci_ids=((0x10DE, 0x2235),),
    link="nvlink3-bridge",
    figures={
        "compute_capability": published(8.6, CUDA),
        **units(84, SHEET),
        "memory": published("46068MiB", DRIVER),
        "power": published(300, f"{SHEET}: thermal design power"),
        "memory_rate": published("696 GB/s", f"{SHEET}: GDDR6"),
        "memory_efficiency": COPIES,
        **traffic(1.32, L2_SMALL),
        "peak_flops": flops(SHEET, f32=37.4, f16=149.7, bf16=149.7),
        "gemm_fraction": GEMM,
        "links": published(4, "4 NVLink links on a bridge, 56.25 GB/s per direction"),
        "peer_access": PEERS,
        "pcie_rate": pcie_rate(4),
        **common(),
    },
)
