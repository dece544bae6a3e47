"""NVIDIA H100 SXM5 80 GB."""

from __future__ import annotations

from clusim.hardware.architectures.hopper import ARCHITECTURE
from clusim.hardware.figures import calibrated, published
from clusim.hardware.gpu import (
    CUDA,
    DRIVER,
    L2_HOLDS,
    MAMF,
    PEERS,
    Gpu,
    common,
    flops,
    pcie_rate,
    traffic,
    units,
)

SHEET = "H100 SXM, NVIDIA data sheet and architecture whitepaper"

GPU = Gpu(
    name="h100-sxm5",
    architecture=ARCHITECTURE,
    form="sxm",
    model="H100",
    products=("NVIDIA H100 80GB HBM3",),
    machines=("p5|ndv5",),
    pci_ids=((0x10DE, 0x2330),),
    usual=True,
    stands_for=("switch:18", "anything"),
    pcie=5,
    link="nvlink4",
    switch="nvswitch3",
    planes=(5, 4, 4, 5),
    figures={
        "compute_capability": published(9.0, CUDA),
        **units(132, SHEET),
        "memory": published("81559MiB", DRIVER),
        "power": published(700, f"{SHEET}: thermal design power"),
        "memory_rate": published("3350 GB/s", f"{SHEET}: 5 stacks HBM3"),
        "memory_efficiency": calibrated(
            0.87, "BabelStream copy 2.90 of 3.35 TB/s (86.6%), Azure ND H100 v5", "copy-benchmarks"
        ),
        **traffic(0.57, L2_HOLDS),
        "peak_flops": flops(SHEET, f32=67, f16=989, bf16=989, f8=1979),
        "gemm_fraction": calibrated(0.8, f"794.5 of 989 TFLOP/s bf16, {MAMF}", "matrix-benchmarks"),
        "links": published(18, "18 NVLink 4 links"),
        "peer_access": PEERS,
        "pcie_rate": pcie_rate(5),
        **common(),
    },
)
