"""NVIDIA A10G: the A10 of AWS G5 instances, with more SMs, half the tensor rate and more power."""

from __future__ import annotations

from clusim.hardware.figures import assumed, published
from clusim.hardware.gpu import flops, units
from clusim.hardware.gpus.a10 import GPU as BASE

SHEET = "A10G, NVIDIA data sheet"

GPU = BASE.variant(
    "a10g",
    model="A10G",
    products=("NVIDIA A10G",),
    pci_ids=((0x10DE, 0x2237),),
    figures={
        **units(80, "AWS, EC2 G5 instances: 80 ray tracing cores and 320 tensor cores, 4 per SM"),
        "memory": assumed("23028MiB", "as the A10, which has 24 GB as well"),
        "power": published(300, f"{SHEET}: thermal design power"),
        "peak_flops": flops(SHEET, f32=35, f16=70, bf16=70),
    },
)
