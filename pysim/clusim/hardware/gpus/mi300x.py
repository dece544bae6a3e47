"""AMD Instinct MI300X."""

from __future__ import annotations

from clusim.hardware.architectures.cdna import ARCHITECTURE
from clusim.hardware.figures import assumed, published
from clusim.hardware.gpu import GEMM, STAND_IN, Gpu, common, flops, pcie_rate, traffic, units

SHEET = "Instinct MI300X, AMD data sheet; VRAM in GiB: AMD GPU specifications (rocm.docs.amd.com)"

GPU = Gpu(
    name="mi300x",
    architecture=ARCHITECTURE,
    form="oam",
    model="MI300X",
    products=("AMD Instinct MI300X", "AMD Instinct MI300X VF"),
    pci_ids=((0x1002, 0x74A1), (0x1002, 0x74B5)),
    gfx=("941", "942"),
    usual=True,
    stands_for=("xgmi:7",),
    pcie=5,
    link="xgmi-mi300x",
    figures={
        "compute_capability": STAND_IN,
        **units(304, SHEET),
        "memory": published("192GiB", SHEET),
        "power": published(750, f"{SHEET}: thermal design power"),
        "memory_rate": published("5300 GB/s", f"{SHEET}: 8 stacks HBM3"),
        "memory_efficiency": assumed(
            0.78, "BabelStream on MI300X is quoted at 4.0 to 4.3 of 5.3 TB/s"
        ),
        **traffic(0.57, "the FIFO slices under way stay in the 256 MB Infinity Cache"),
        "peak_flops": flops(SHEET, f32=163.4, f16=1307.4, bf16=1307.4, f8=2614.9),
        "gemm_fraction": GEMM,
        "links": published(7, "7 Infinity Fabric links to the other GPUs of the board"),
        "peer_access": published(True, "ROCm: peer access over PCIe and xGMI"),
        "pcie_rate": pcie_rate(5),
        **common(linked=False),
    },
)
