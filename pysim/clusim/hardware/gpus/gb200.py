"""NVIDIA GB200: one of the two Blackwell GPUs beside a Grace."""

from __future__ import annotations

from clusim.hardware.architectures.blackwell import ARCHITECTURE
from clusim.hardware.figures import assumed, published
from clusim.hardware.gpu import CUDA, DRIVER, L2_HOLDS, PEERS, Gpu, common, flops, traffic, units

SHEET = "GB200, NVIDIA data sheet and architecture whitepaper; 148 to 152 SMs are seen"

GPU = Gpu(
    name="gb200",
    architecture=ARCHITECTURE,
    form="superchip",
    model="GB200",
    products=("NVIDIA GB200",),
    machines=("nvl72|p6e",),
    pci_ids=((0x10DE, 0x2941),),
    pcie=5,
    link="nvlink5",
    switch="nvswitch4",
    planes=(1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1),
    figures={
        "compute_capability": published(10.0, CUDA),
        **units(148, SHEET),
        "memory": published("189471MiB", DRIVER),
        "power": published(1200, f"{SHEET}: thermal design power"),
        "memory_rate": published("8 TB/s", f"{SHEET}: 8 stacks HBM3e per GPU"),
        "memory_efficiency": assumed(0.9, "the predecessors reach 84 to 93%"),
        **traffic(0.57, L2_HOLDS),
        "peak_flops": flops(SHEET, f32=80, f16=2500, bf16=2500, f8=5000),
        "gemm_fraction": assumed(0.78, "as the B200"),
        "links": published(18, "18 NVLink 5 links per GPU"),
        "peer_access": PEERS,
        **common(),
    },
)
