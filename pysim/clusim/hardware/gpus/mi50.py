"""AMD Instinct MI50."""

from __future__ import annotations

from clusim.hardware.architectures.cdna import ARCHITECTURE
from clusim.hardware.figures import published
from clusim.hardware.gpu import (
    COPIES,
    GEMM,
    L2_SMALL,
    STAND_IN,
    Gpu,
    common,
    flops,
    pcie_rate,
    traffic,
    units,
)

SHEET = "Instinct MI50, AMD data sheet"

GPU = Gpu(
    name="mi50",
    architecture=ARCHITECTURE,
    form="card",
    model="MI50",
    products=("AMD Instinct MI50",),
    pci_ids=((0x1002, 0x66A1),),
    gfx=("906",),
    link="xgmi-mi50",
    figures={
        "compute_capability": STAND_IN,
        **units(60, SHEET),
        "memory": published("16GiB", SHEET),
        "power": published(300, f"{SHEET}: thermal design power"),
        "memory_rate": published("1024 GB/s", f"{SHEET}: 4 stacks HBM2"),
        "memory_efficiency": COPIES,
        **traffic(1.32, L2_SMALL),
        "peak_flops": flops(SHEET, f32=13.3, f16=26.5),
        "gemm_fraction": GEMM,
        "links": published(2, "2 Infinity Fabric links"),
        "peer_access": published(True, "ROCm: peer access over PCIe and xGMI"),
        "pcie_rate": pcie_rate(4),
        **common(linked=False),
    },
)
