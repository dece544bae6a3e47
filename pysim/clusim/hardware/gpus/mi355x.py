"""AMD Instinct MI355X."""

from __future__ import annotations

from clusim.hardware.figures import published
from clusim.hardware.gpu import COPIES, flops, units
from clusim.hardware.gpus.mi300x import GPU as BASE

SHEET = "Instinct MI355X, AMD data sheet; VRAM in GiB: AMD GPU specifications (rocm.docs.amd.com)"

GPU = BASE.variant(
    "mi355x",
    products=("AMD Instinct MI355X",),
    pci_ids=((0x1002, 0x75A3),),
    gfx=("950",),
    usual=True,
    link="xgmi-mi355x",
    figures={
        **units(256, SHEET),
        "memory": published("288GiB", SHEET),
        "power": published(1400, f"{SHEET}: thermal design power"),
        "memory_rate": published("8000 GB/s", f"{SHEET}: 8 stacks HBM3e"),
        "memory_efficiency": COPIES,
        "peak_flops": flops(SHEET, f32=157.3, f16=2500, bf16=2500, f8=5000),
    },
)
