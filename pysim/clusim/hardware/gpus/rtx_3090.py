"""NVIDIA GeForce RTX 3090."""

from __future__ import annotations

from clusim.hardware.figures import published
from clusim.hardware.gpu import NO_PEERS, flops, units
from clusim.hardware.gpus.a40 import GPU as BASE

SHEET = "GeForce RTX 3090, NVIDIA data sheet"

GPU = BASE.variant(
    "rtx-3090",
    model="3090",
    products=("NVIDIA GeForce RTX 3090", "GeForce RTX 3090"),
    pci_ids=((0x10DE, 0x2204),),
    usual=True,
    stands_for=("pair:4",),
    figures={
        **units(82, SHEET),
        "memory": published("24GiB", SHEET),
        "power": published(350, f"{SHEET}: thermal design power"),
        "memory_rate": published("936 GB/s", f"{SHEET}: GDDR6X"),
        "peak_flops": flops(SHEET, f32=35.6, f16=71, bf16=71),
        "peer_access": NO_PEERS,
    },
)
