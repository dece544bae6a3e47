"""AMD Instinct MI325X: an MI300X with HBM3e."""

from __future__ import annotations

from clusim.hardware.figures import published
from clusim.hardware.gpu import COPIES, flops, units
from clusim.hardware.gpus.mi300x import GPU as BASE

SHEET = "Instinct MI325X, AMD data sheet; VRAM in GiB: AMD GPU specifications (rocm.docs.amd.com)"

GPU = BASE.variant(
    "mi325x",
    products=("AMD Instinct MI325X",),
    pci_ids=((0x1002, 0x74A5),),
    figures={
        **units(304, SHEET),
        "memory": published("256GiB", SHEET),
        "power": published(1000, f"{SHEET}: thermal design power"),
        "memory_rate": published("6000 GB/s", f"{SHEET}: 8 stacks HBM3e"),
        "memory_efficiency": COPIES,
        "peak_flops": flops(SHEET, f32=163.4, f16=1307.4, bf16=1307.4, f8=2614.9),
    },
)
