"""NVIDIA GH200: Hopper beside a Grace, 96 GB."""

from __future__ import annotations

from clusim.hardware.architectures.hopper import ARCHITECTURE
from clusim.hardware.figures import assumed, calibrated, published
from clusim.hardware.gpu import CUDA, DRIVER, L2_HOLDS, PEERS, Gpu, common, flops, traffic, units

SHEET = "GH200, NVIDIA data sheet and architecture whitepaper"

GPU = Gpu(
    name="gh200",
    architecture=ARCHITECTURE,
    form="superchip",
    model="GH200",
    products=("NVIDIA GH200 120GB", "NVIDIA GH200 480GB"),
    pci_ids=((0x10DE, 0x2342),),
    stands_for=("mesh:18",),
    pcie=5,
    link="nvlink4",
    figures={
        "compute_capability": published(9.0, CUDA),
        **units(132, SHEET),
        "memory": published("97871MiB", DRIVER),
        "power": assumed(700, "as the H100 SXM5; the module shares up to 1000 W with its CPU"),
        "memory_rate": published(
            "4023 GB/s", "GH200 96 GB HBM3: clock x bus width as the driver reports them"
        ),
        "memory_efficiency": calibrated(
            0.86,
            "read 3758 (93.4%), copy 3451 of 4023 GB/s (85.8%), simllm GH200 envelope",
            "copy-benchmarks",
        ),
        **traffic(0.57, L2_HOLDS),
        "peak_flops": flops(SHEET, f32=67, f16=989, bf16=989, f8=1979),
        "gemm_fraction": assumed(0.8, "as H100 SXM5"),
        "links": published(18, "18 NVLink 4 links; the CPU is on NVLink-C2C"),
        "peer_access": PEERS,
        **common(),
    },
)
