"""NVIDIA A100 SXM4 80 GB."""

from __future__ import annotations

from clusim.hardware.architectures.ampere import ARCHITECTURE
from clusim.hardware.figures import calibrated, published
from clusim.hardware.gpu import (
    CUDA,
    L2_PARTLY,
    MAMF,
    PEERS,
    Gpu,
    common,
    flops,
    pcie_rate,
    traffic,
    units,
)

SHEET = "A100, NVIDIA data sheet and architecture whitepaper"

GPU = Gpu(
    name="a100-sxm4-80gb",
    architecture=ARCHITECTURE,
    form="sxm",
    model="A100",
    products=("NVIDIA A100-SXM4-80GB", "A100-SXM4-80GB"),
    machines=("p4de|nd_?m?_?a100.*80|ndmv4",),
    pci_ids=((0x10DE, 0x20B2),),
    usual=True,
    stands_for=("switch:12", "mesh:12"),
    link="nvlink3",
    switch="nvswitch2",
    planes=(2, 2, 2, 2, 2, 2),
    figures={
        "compute_capability": published(8.0, CUDA),
        **units(108, SHEET),
        "memory": published("80GiB", SHEET),
        "power": published(400, f"{SHEET}: thermal design power"),
        "memory_rate": published("2039 GB/s", f"{SHEET}: 80 GB variant, 5 stacks HBM2e"),
        "memory_efficiency": calibrated(
            0.85,
            "read 1770 (86.8%), write 1791 (87.8%), copy 1672 GB/s (82%) of 2039, simllm A100 envelope",
            "copy-benchmarks",
        ),
        **traffic(0.82, L2_PARTLY),
        "peak_flops": flops(SHEET, f32=19.5, f16=312, bf16=312),
        "gemm_fraction": calibrated(0.87, f"271 of 312 TFLOP/s bf16, {MAMF}", "matrix-benchmarks"),
        "links": published(12, "12 NVLink 3 links"),
        "peer_access": PEERS,
        "pcie_rate": pcie_rate(4),
        **common(),
    },
)
