"""NVIDIA Tesla V100 SXM2."""

from __future__ import annotations

from clusim.hardware.architectures.volta import ARCHITECTURE
from clusim.hardware.figures import assumed, published
from clusim.hardware.gpu import CUDA, L2_SMALL, PEERS, Gpu, common, flops, pcie_rate, traffic, units

SHEET = "Tesla V100, NVIDIA data sheet and architecture whitepaper"

GPU = Gpu(
    name="v100-sxm2",
    architecture=ARCHITECTURE,
    form="sxm",
    model="V100",
    products=("Tesla V100-SXM2-32GB",),
    machines=("p3dn|p3|ndv2|dgx.?1v?",),
    pci_ids=((0x10DE, 0x1DB5),),
    usual=True,
    stands_for=("mesh:6", "pair:3"),
    pcie=3,
    link="nvlink2",
    cube_mesh="01 02 03 03 04 04 12 12 13 15 15 23 23 26 37 45 46 47 47 56 56 57 67 67",
    figures={
        "compute_capability": published(7.0, CUDA),
        **units(80, SHEET),
        "memory": published("32GiB", SHEET),
        "power": published(300, f"{SHEET}: thermal design power"),
        "memory_rate": published("900 GB/s", f"{SHEET}: 4 stacks HBM2"),
        "memory_efficiency": assumed(
            0.92, "STREAM-like copies on V100 are said to reach 830 to 850 of 900 GB/s"
        ),
        **traffic(1.32, L2_SMALL),
        "peak_flops": flops(SHEET, f32=15.7, f16=125),
        "gemm_fraction": assumed(
            0.8, "cuBLAS on V100 tensor cores is usually quoted at 95 to 105 of 125 TFLOP/s"
        ),
        "links": published(6, "6 NVLink 2 links"),
        "peer_access": PEERS,
        "pcie_rate": pcie_rate(3),
        **common(),
    },
)
