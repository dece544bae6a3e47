"""AMD Instinct MI100."""

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

SHEET = "Instinct MI100, AMD data sheet"

GPU = Gpu(
    name="mi100",
    architecture=ARCHITECTURE,
    form="card",
    model="MI100",
    products=("AMD Instinct MI100",),
    pci_ids=((0x1002, 0x738C), (0x1002, 0x738E)),
    gfx=("908", "936"),
    usual=True,
    link="xgmi-mi100",
    figures={
        "compute_capability": STAND_IN,
        **units(120, SHEET),
        "memory": published("32GiB", SHEET),
        "power": published(300, f"{SHEET}: thermal design power"),
        "memory_rate": published("1229 GB/s", f"{SHEET}: 4 stacks HBM2"),
        "memory_efficiency": COPIES,
        **traffic(1.32, L2_SMALL),
        "peak_flops": flops(SHEET, f32=23.1, f16=184.6, bf16=92.3),
        "gemm_fraction": GEMM,
        "links": published(3, "3 Infinity Fabric links"),
        "peer_access": published(True, "ROCm: peer access over PCIe and xGMI"),
        "pcie_rate": pcie_rate(4),
        **common(linked=False),
    },
)
