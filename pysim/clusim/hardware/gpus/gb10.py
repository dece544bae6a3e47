"""NVIDIA GB10, the superchip of DGX Spark: one memory for CPU and GPU."""

from __future__ import annotations

from clusim.hardware.architectures.blackwell import ARCHITECTURE
from clusim.hardware.figures import assumed, published
from clusim.hardware.gpu import (
    COPIES,
    CUDA,
    GEMM,
    L2_PARTLY,
    Gpu,
    common,
    traffic,
    units,
)

SHEET = "DGX Spark, NVIDIA hardware overview"

GPU = Gpu(
    name="gb10",
    architecture=ARCHITECTURE,
    form="superchip",
    model="GB10",
    products=("NVIDIA GB10",),
    names=("DGX Spark",),
    machines=("dgx.?spark",),
    pci_ids=((0x10DE, 0x2E12),),
    pcie=5,
    figures={
        "compute_capability": published(12.1, CUDA),
        **units(48, f"{SHEET}: 6144 CUDA cores, 128 per SM"),
        "memory": published("128GB", f"{SHEET}: 128 GB LPDDR5X, shared with the CPU"),
        "power": published(140, f"{SHEET}: thermal design power of the superchip, CPU included"),
        "memory_rate": published("273 GB/s", f"{SHEET}: LPDDR5X, 256 bit, shared with the CPU"),
        "memory_efficiency": COPIES,
        **traffic(0.82, L2_PARTLY),
        "peak_flops": assumed(
            {"f32": 29.7e12, "f16": 125e12, "bf16": 125e12, "f8": 250e12},
            f"{SHEET}: 1 PFLOP/s of sparse f4; dense f16 is an eighth of it, as on RTX PRO 6000; f32 at 2.42 GHz",
        ),
        "gemm_fraction": GEMM,
        "links": published(0, "no NVLink between GPUs; the CPU is on NVLink-C2C"),
        "peer_access": assumed(False, "there is one GPU"),
        **common(linked=False),
    },
)
