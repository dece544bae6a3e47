"""NVIDIA TITAN RTX: the whole chip of the RTX 2080 Ti."""

from __future__ import annotations

from clusim.hardware.figures import assumed, published
from clusim.hardware.gpu import flops, units
from clusim.hardware.gpus.rtx_2080ti import GPU as BASE

SHEET = (
    "Tom's Hardware and HotHardware of 2018-12; 130.5 as Quadro RTX 8000, the same chip and clock"
)

GPU = BASE.variant(
    "titan-rtx",
    model="TITAN RTX",
    products=("NVIDIA TITAN RTX", "TITAN RTX"),
    pci_ids=((0x10DE, 0x1E02),),
    stands_for=("pair:2",),
    figures={
        **units(72, SHEET),
        "memory": published("24GiB", SHEET),
        "power": published(280, f"{SHEET}: thermal design power"),
        "memory_rate": published("672 GB/s", f"{SHEET}: GDDR6, 384 bit"),
        "peak_flops": flops(SHEET, f32=16.3, f16=130.5),
        "links": published(2, "2 NVLink 2 links on a bridge, 100 GB/s in both directions"),
        "peer_access": assumed(
            False, "as GeForce cards with the same chip; NVLink bridges do give it"
        ),
    },
)
