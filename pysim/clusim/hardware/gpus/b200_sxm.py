"""NVIDIA B200, of HGX B200."""

from __future__ import annotations

from clusim.hardware.architectures.blackwell import ARCHITECTURE
from clusim.hardware.figures import assumed, calibrated, published
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

SHEET = "B200, NVIDIA data sheet and architecture whitepaper"

GPU = Gpu(
    name="b200-sxm",
    architecture=ARCHITECTURE,
    form="sxm",
    model="B200",
    products=("NVIDIA B200",),
    names=("B200 SXM6",),
    machines=("p6",),
    pci_ids=((0x10DE, 0x2901),),
    usual=True,
    pcie=5,
    link="nvlink5",
    switch="nvswitch4",
    planes=(9, 9),
    figures={
        "compute_capability": published(10.0, CUDA),
        **units(148, SHEET),
        "memory": published("183359MiB", DRIVER),
        "power": published(1000, f"{SHEET}: thermal design power"),
        "memory_rate": published("8 TB/s", f"{SHEET}: 8 stacks HBM3e"),
        "memory_efficiency": assumed(0.9, "the predecessors reach 84 to 93%"),
        **traffic(0.57, L2_HOLDS),
        "peak_flops": flops(SHEET, f32=80, f16=2250, bf16=2250, f8=4500),
        "gemm_fraction": calibrated(
            0.78, f"1745 of 2250 TFLOP/s bf16, {MAMF}", "matrix-benchmarks"
        ),
        "links": published(18, "18 NVLink 5 links"),
        "peer_access": PEERS,
        "pcie_rate": pcie_rate(5),
        **common(),
    },
)
