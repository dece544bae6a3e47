"""AMD Instinct MI300A: GPU and CPU in one package."""

from __future__ import annotations

from clusim.hardware.figures import assumed, published
from clusim.hardware.gpu import COPIES, flops, units
from clusim.hardware.gpus.mi300x import GPU as BASE

SHEET = (
    "6 dies of 38 CUs, 5.3 TB/s (Chips and Cheese); rates as MI300X per CU at 2.1 GHz;"
    " VRAM in GiB: AMD GPU specifications (rocm.docs.amd.com)"
)

GPU = BASE.variant(
    "mi300a",
    form="apu",
    model="MI300A",
    products=("AMD Instinct MI300A",),
    pci_ids=((0x1002, 0x74A0),),
    gfx=("940",),
    usual=True,
    figures={
        **units(228, SHEET),
        "memory": published("128GiB", SHEET),
        "power": published(550, f"{SHEET}: thermal design power"),
        "memory_rate": published("5300 GB/s", f"{SHEET}: 8 stacks HBM3"),
        "memory_efficiency": COPIES,
        "peak_flops": flops(SHEET, f32=122.6, f16=980.6, bf16=980.6, f8=1961.2),
        "links": assumed(
            6, "four fully connected APUs of a node (arXiv 2508.11298), two links to each other one"
        ),
    },
)
