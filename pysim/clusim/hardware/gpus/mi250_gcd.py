"""AMD Instinct MI250: one of its two dies."""

from __future__ import annotations

from clusim.hardware.architectures.cdna import ARCHITECTURE
from clusim.hardware.figures import assumed, published
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

SHEET = (
    "half of AMD's table of 2022-03 (AnandTech 17326); MI250 microarchitecture (rocm.docs.amd.com)"
)

GPU = Gpu(
    name="mi250-gcd",
    architecture=ARCHITECTURE,
    form="oam",
    model="MI250",
    products=("AMD Instinct MI250",),
    pci_ids=((0x1002, 0x740C),),
    gfx=("90a", "910"),
    usual=True,
    link="xgmi-mi250x",
    figures={
        "compute_capability": STAND_IN,
        **units(104, SHEET),
        "memory": published("64GiB", SHEET),
        "power": assumed(250, "half of the module's 500 W"),
        "memory_rate": published("1638 GB/s", f"{SHEET}: HBM2e, 4096 bit at 3.2 Gb/s"),
        "memory_efficiency": COPIES,
        **traffic(1.32, L2_SMALL),
        "peak_flops": flops(SHEET, f32=22.6, f16=181, bf16=181),
        "gemm_fraction": GEMM,
        "links": published(
            7, "6 Infinity Fabric links of the package, 3 for each die, and four inside it"
        ),
        "peer_access": published(True, "ROCm: peer access over PCIe and xGMI"),
        "pcie_rate": pcie_rate(4),
        **common(linked=False),
    },
)
