"""NVIDIA GeForce RTX 2080 Ti."""

from __future__ import annotations

from clusim.hardware.architectures.volta import ARCHITECTURE
from clusim.hardware.figures import published
from clusim.hardware.gpu import (
    COPIES,
    CUDA,
    GEMM,
    L2_SMALL,
    NO_PEERS,
    Gpu,
    common,
    flops,
    pcie_rate,
    traffic,
    units,
)

SHEET = (
    "reference clocks, f16 with f32 sums: Turing whitepaper as Tom's Hardware and Guru3D quote it"
)

GPU = Gpu(
    name="rtx-2080ti",
    architecture=ARCHITECTURE,
    form="card",
    model="2080 Ti",
    products=("NVIDIA GeForce RTX 2080 Ti", "GeForce RTX 2080 Ti"),
    pci_ids=((0x10DE, 0x1E04), (0x10DE, 0x1E07)),
    pcie=3,
    link="nvlink2",
    figures={
        "compute_capability": published(7.5, CUDA),
        **units(68, SHEET),
        "memory": published("11GiB", SHEET),
        "power": published(260, f"{SHEET}: thermal design power"),
        "memory_rate": published("616 GB/s", f"{SHEET}: GDDR6, 352 bit"),
        "memory_efficiency": COPIES,
        **traffic(1.32, L2_SMALL),
        "peak_flops": flops(SHEET, f32=13.4, f16=53.8),
        "gemm_fraction": GEMM,
        "links": published(2, "2 NVLink 2 links on a bridge (Tom's Hardware, Turing explored)"),
        "peer_access": NO_PEERS,
        "pcie_rate": pcie_rate(3),
        **common(),
    },
)
