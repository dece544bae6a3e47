"""NVIDIA Tesla P100 SXM2."""

from __future__ import annotations

from clusim.hardware.architectures.pascal import ARCHITECTURE
from clusim.hardware.figures import assumed, published
from clusim.hardware.gpu import CUDA, L2_SMALL, PEERS, Gpu, common, flops, pcie_rate, traffic, units

SHEET = "Tesla P100, NVIDIA data sheet and architecture whitepaper"

GPU = Gpu(
    name="p100-sxm2",
    architecture=ARCHITECTURE,
    form="sxm",
    model="P100",
    products=("Tesla P100-SXM2-16GB",),
    pci_ids=((0x10DE, 0x15F9),),
    usual=True,
    stands_for=("mesh:4",),
    pcie=3,
    link="nvlink1",
    cube_mesh="01 02 03 12 13 23 45 46 47 56 57 67 04 15 26 37",
    figures={
        "compute_capability": published(6.0, CUDA),
        **units(56, SHEET),
        "memory": published("16GiB", SHEET),
        "power": published(300, f"{SHEET}: thermal design power"),
        "memory_rate": published("732 GB/s", f"{SHEET}: 4 stacks HBM2"),
        "memory_efficiency": assumed(
            0.75, "STREAM-like copies on P100 are said to reach about 75% of the peak"
        ),
        **traffic(1.32, L2_SMALL),
        "peak_flops": flops(SHEET, f32=10.6, f16=21.2),
        "gemm_fraction": assumed(0.85, "plain FMA units, no tensor cores to feed"),
        "links": published(4, "4 NVLink 1 links"),
        "peer_access": PEERS,
        "pcie_rate": pcie_rate(3),
        **common(),
    },
)
